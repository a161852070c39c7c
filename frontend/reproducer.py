"""Bugs of the compiler that a search met, as files that repeat them.

    path = write_reproducer(trial)           # a candidate that was wrong, crashed or hung
    check_reproducer(path).status            # "wrong"; the command is: dodeca check PATH

A file is MLIR: the kernel with its schedule, and what it was compiled for as attributes of the
module.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

from mlir import ir
from mlir.ir import MLIRError  # pyright: ignore[reportAttributeAccessIssue]  # not in stubs

from .dialect.errors import ParseError
from .dialect.ops import context, entry_function
from .kernel_tasks import build, kernel_source, make_task, reference_cases
from .passes.tile import read_kernel
from .runtime.cache_folder import cache_folder
from .runtime.measurer import LocalWorkers, Tools
from .runtime.space import from_json, to_json
from .runtime.trial import STATUSES, Candidate, Trial
from .schedule_attribute import SCHEDULE, read_schedule, schedule_attribute

_TARGET, _PRECISION, _THREADS = "dodeca.target", "dodeca.precision", "dodeca.threads"


def write_reproducer(trial: Trial) -> Path:
    """Write the file into the cache's folder `bugs`, or a temporary one; its path."""
    candidate, task = trial.candidate, trial.candidate.task
    with context(), ir.Location.unknown():
        module = ir.Module.parse(task.source)
        function = entry_function(module.operation)
        function.attributes[SCHEDULE] = schedule_attribute(from_json(candidate.schedule))
        facts = module.operation.attributes
        facts[_TARGET] = ir.StringAttr.get(task.target)
        facts[_PRECISION] = ir.StringAttr.get(task.precision)
        facts[_THREADS] = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), task.threads)
        text = str(module)
    name = hashlib.sha256(text.encode()).hexdigest()[:16] + ".mlir"
    cache = cache_folder()
    folder = cache / "bugs" if cache else Path(tempfile.mkdtemp(prefix="dodeca-bugs-"))
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    lines = [f"{trial.status}: {trial.message}", f"repeat with: dodeca check {path}"]
    notes = "".join(f"// {line}\n" for note in lines for line in note.splitlines())
    new = path.with_suffix(f".{os.getpid()}.new")
    new.write_text(f"{notes}{text}", encoding="utf-8")
    os.replace(new, path)
    return path


def read_reproducer(path: str | os.PathLike[str]) -> Candidate:
    """The candidate of a file; ParseError if it is not such a file."""
    try:
        text = Path(path).read_text(encoding="utf-8")
        with context(), ir.Location.unknown():
            module = ir.Module.parse(text)
            facts = module.operation.attributes
            target, precision = (ir.StringAttr(facts[n]).value for n in (_TARGET, _PRECISION))
            threads = ir.IntegerAttr(facts[_THREADS]).value
            function = entry_function(module.operation)
            kernel = read_kernel(function)
            schedule = to_json(read_schedule(function.attributes[SCHEDULE], kernel.axes))
            source = kernel_source(function)
            arguments = len(kernel.inputs) + len(kernel.outputs)
    except (OSError, ValueError, KeyError, MLIRError) as error:
        raise ParseError(f"{path}: not a reproducer of a kernel: {error}") from None
    task = make_task(source, target, precision, threads, (False,) * arguments)
    return Candidate(task, schedule, 0.0)


def check_reproducer(path: str | os.PathLike[str]) -> Trial:
    """Compile and run the candidate of a file again, in a process of its own."""
    candidate = read_reproducer(path)
    with LocalWorkers(Tools(build, reference_cases), workers=1) as measurer:
        return measurer.measure(measurer.build([candidate]))[0]


def main(words: Sequence[str]) -> int:
    """`dodeca check FILE`: the exit status is 0 if the kernel is right now."""
    parser = argparse.ArgumentParser(prog="dodeca check", description=check_reproducer.__doc__)
    parser.add_argument("file", metavar="FILE", help="as a search wrote it")
    trial = check_reproducer(parser.parse_args(words).file)
    print(f"{trial.status}: {trial.message or STATUSES[trial.status]}")
    if trial.status == "ok":
        print(f"{trial.seconds * 1e6:.1f} us ± {100 * trial.noise:.0f} %")
    return 0 if trial.status == "ok" else 1
