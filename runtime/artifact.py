"""An executable in one file, and back: `exe.save("model.dodeca")`, `dodeca.load("model.dodeca")`.

A file is a container (`container.py`) with these members:

    manifest.json     format, version of dodeca, target, what the CPU must have, inputs, outputs,
                      how results are put together, weights
    program/...       the program: kernels, buffers, memory, launches (`serial.py`)
    code.so           for a CPU: kernels, driver and threads as a shared library
    data/N            the array of buffer N, where weights are inside: used where it is mapped

Loading needs numpy and nothing of the compiler, and runs no code of the file: that happens in
calls. Prepared buffers, which are computed once from weights, are kept as they came out, without
the weights that only they need; where weights are references they are computed again.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..dialect.dtypes import DTYPES
from ..dialect.errors import ArgumentError, ParseError, TargetError
from . import serial
from .arguments import as_array, describe
from .container import Container, open_container, parse_json, write_container
from .cpu import read_by_calls, thread_count
from .cpu_features import CpuNeeds, host_flags, host_needs, missing_features, this_architecture
from .driver_ir import VERSION
from .executable import Executable
from .program import Buffer, Program
from .results import assembled, described
from .shared_library import LibraryCode, library
from .weight_file import read_weights

if TYPE_CHECKING:
    from .container import Bytes

FORMAT = 1
MANIFEST, CODE, PROGRAM, DATA = "manifest.json", "code.so", "program/", "data/"
_FIELDS = ("dodeca", "target", "cpu", "inputs", "outputs", "results", "weights", "data", "driver")
_LARGEST_MANIFEST = 1 << 26

# --- saving -------------------------------------------------------------------------------------


def save(exe: Executable, path: str | os.PathLike[str], weights: str = "inside") -> None:
    """Write an executable to a file: whole, or not at all. `Executable.save` says the rest."""
    final = Path(path)
    if weights not in ("inside", "reference"):
        raise ArgumentError(f"save: weights is 'inside' or 'reference', not {weights!r}")
    if final.is_dir():
        raise ArgumentError(f"save: {final} is a folder; dump writes folders")
    files = _files(exe, weights == "inside")
    made = final.with_name(f".{final.name}.{os.urandom(4).hex()}.new")
    try:
        with made.open("x+b") as file:
            write_container(file, files)
            file.flush()
            os.fsync(file.fileno())  # or a crash might leave the new name with none of the content
        os.replace(made, final)
    finally:
        made.unlink(missing_ok=True)


def _files(exe: Executable, inside: bool) -> dict[str, Bytes]:
    program = exe.program
    data: dict[int, np.ndarray] = {}
    references: list[dict[str, Any]] = []
    if inside:
        data = dict(exe.resident)
        if program.target == "cpu":
            program = _prepared(program)
    else:
        references = _references(exe)
    on_cpu = program.target == "cpu"
    code = _library(exe, program) if on_cpu else None
    manifest = {
        "format": FORMAT,
        "dodeca": version(),
        "target": program.target,
        "cpu": asdict(needs_of(exe)) if on_cpu else None,
        "driver": VERSION,
        "inputs": [_described(program.buffers[i]) for i in program.inputs],
        "outputs": [_described(program.buffers[i]) for i in program.outputs],
        "results": described(exe.unflatten, len(program.outputs)),
        "weights": references,
        "data": sorted(data),
    }
    files: dict[str, Bytes] = {MANIFEST: (json.dumps(manifest, indent=1) + "\n").encode()}
    slim = {  # with texts that can be read without LLVM
        key: replace(kernel, binary=b"", assembly=kernel.text)
        for key, kernel in program.kernels.items()
    }
    encoded = serial.encode(replace(program, kernels=slim) if on_cpu else program)
    files.update({PROGRAM + name: blob for name, blob in encoded.items()})
    if code is not None:
        files[CODE] = code
    # flat bytes: a bfloat16 has no buffer protocol of its own
    files.update({f"{DATA}{i}": _flat(array).data for i, array in sorted(data.items())})
    return files


def _flat(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def _prepared(program: Program) -> Program:
    """The program for which what `prepare` computes is there already."""
    used = {launch.kernel for launch in program.plan}
    kernels = {name: kernel for name, kernel in program.kernels.items() if name in used}
    return replace(program, kernels=kernels, prepare=())


def _library(exe: Executable, program: Program) -> bytes:
    """The code of a program's kernels; a loaded executable has it already."""
    if isinstance(exe.code, LibraryCode):
        if [*exe.program.kernels] == [*program.kernels]:
            return exe.code.data
        raise ArgumentError("save: a file with references must be saved with references again")
    return library(program.kernels)


def needs_of(exe: Executable) -> CpuNeeds:
    """What the code of an executable for a CPU relies on."""
    return exe.needs if exe.needs is not None else host_needs()


def _references(exe: Executable) -> list[dict[str, Any]]:
    rows = []
    for name, index in exe.program.weights.items():
        array = exe.weight(index)
        if array is None:
            raise ArgumentError(
                f"save: weight {name!r} is not there any more: it was needed only once, and "
                "nothing else has kept it"
            )
        digest = hashlib.sha256(_flat(array).data).hexdigest()
        rows.append({**_described(exe.program.buffers[index]), "name": name, "sha256": digest})
    return rows


def _described(buffer: Buffer) -> dict[str, Any]:
    return {"name": buffer.name, "dtype": buffer.dtype, "shape": list(buffer.shape)}


def version() -> str:
    """dodeca's own."""
    from importlib import metadata

    try:
        return metadata.version("dodeca")
    except metadata.PackageNotFoundError:
        return "unknown"


# --- loading ------------------------------------------------------------------------------------


def load(
    path: str | os.PathLike[str],
    weights: Mapping[str, Any] | str | os.PathLike[str] | None = None,
    *,
    threads: int | None = None,
) -> Executable:
    """The executable of a file that `Executable.save` wrote.

    `weights` is for a file that has references: arrays by name, or the path of a safetensors file;
    they must have the same bytes as those that it was saved with. `threads` is as for `compile`.

    Raises:
        ParseError: the file is damaged, of a later format, or makes no sense.
        TargetError: this machine cannot run it; the message names what is missing.
        ArgumentError: a weight is missing or another one.
        OSError: the file cannot be read.
    """
    held = open_container(path)
    try:
        return _executable(held, weights, thread_count(threads))
    except ParseError as error:
        if str(path) in str(error):
            raise
        raise ParseError(f"{path}: {error}") from None
    except TargetError as error:
        raise TargetError(f"{path}: {error}") from None


def _executable(held: Container, weights: Any, threads: int) -> Executable:
    manifest = _manifest(held)
    names = [name for name in held.names if name.startswith(PROGRAM)]
    held.check([name for name in held.names if name not in names], threads)
    program = serial.decode({name[len(PROGRAM) :]: held.bytes(name) for name in names})
    _check_manifest(manifest, program)
    unflatten = assembled(manifest["results"], len(program.outputs))
    code, needs = None, None
    if program.target == "cpu":
        needs = _check_machine(manifest["cpu"])
        if CODE not in held:
            raise ParseError(f"it has no {CODE}")
        code = LibraryCode(held.bytes(CODE), program.kernels)
    resident, given = None, {}
    if manifest["weights"]:
        given = _given(program, manifest["weights"], weights)
    elif weights is not None and manifest["data"]:
        raise ArgumentError("load: the file has its weights inside; it takes none")
    else:
        resident = _resident(held, program, manifest["data"])
    try:
        made = Executable(
            program, given, threads=threads, unflatten=unflatten, code=code, resident=resident
        )
    except MemoryError:
        raise ParseError("its buffers do not fit into this machine's memory") from None
    made.needs = needs
    return made


def _manifest(held: Container) -> dict[str, Any]:
    if MANIFEST not in held or held.size(MANIFEST) > _LARGEST_MANIFEST:
        raise ParseError("it is not a saved executable")
    manifest = parse_json(held.view(MANIFEST), MANIFEST)
    if not isinstance(manifest, dict) or not isinstance(manifest.get("format"), int):
        raise ParseError(f"{MANIFEST}: it has no format")
    if manifest["format"] != FORMAT or manifest.get("driver") != VERSION:
        by = str(manifest.get("dodeca"))[:40]
        raise ParseError(
            f"it has format {manifest['format']}, by dodeca {by}; this version reads format "
            f"{FORMAT}: save it again"
        )
    if {*manifest} != {*_FIELDS, "format"}:
        odd = sorted({*manifest} ^ {*_FIELDS, "format"})[0]
        raise ParseError(f"{MANIFEST}: the field {odd!r} is unknown or missing")
    return manifest


def _check_manifest(manifest: Mapping[str, Any], program: Program) -> None:
    """What the manifest says for readers is what the program says."""
    for field, said in (
        ("target", program.target),
        ("inputs", [_described(program.buffers[i]) for i in program.inputs]),
        ("outputs", [_described(program.buffers[i]) for i in program.outputs]),
    ):
        if manifest[field] != said:
            raise ParseError(f"{MANIFEST}: {field} are not those of the program")


def _check_machine(row: Any) -> CpuNeeds:
    """ParseError if it is no description of a CPU; TargetError if this machine is not like it."""
    texts = [row.get("architecture"), row.get("core")] if isinstance(row, dict) else []
    features = row.get("features") if isinstance(row, dict) else None
    if not isinstance(features, list) or not all(isinstance(x, str) for x in [*texts, *features]):
        raise ParseError(f"{MANIFEST}: cpu: expected an architecture, a core and features")
    needs = CpuNeeds(row["architecture"], row["core"], tuple(features))
    here = this_architecture()
    if not sys.platform.startswith("linux"):
        raise TargetError(f"it was compiled for Linux; this system is {sys.platform}")
    if needs.architecture != here:
        raise TargetError(f"it was compiled for {needs.architecture}; this machine is {here}")
    if not host_flags():
        raise TargetError("what this CPU can do is not known: /proc/cpuinfo cannot be read")
    if missing := missing_features(needs):
        raise TargetError(
            f"it was compiled for a {needs.core}; this CPU lacks {', '.join(missing)}: "
            "compile it on this machine"
        )
    return needs


def _resident(held: Container, program: Program, ids: Any) -> dict[int, np.ndarray]:
    """The arrays that are in the file, where they are mapped."""
    if not isinstance(ids, list) or not all(type(index) is int for index in ids):
        raise ParseError(f"{MANIFEST}: data: expected a list of buffers")
    arrays = {}
    for index in ids:
        if not 0 <= index < len(program.buffers):
            raise ParseError(f"{MANIFEST}: data: there is no buffer {index}")
        buffer = program.buffers[index]
        if buffer.role not in ("weight", "prepared"):
            raise ParseError(f"{MANIFEST}: data: buffer {index} is no weight")
        content = held.view(f"{DATA}{index}")
        if len(content) != buffer.bytes:
            raise ParseError(f"{DATA}{index} has {len(content)} bytes, its buffer {buffer.bytes}")
        # not np.frombuffer, which takes no empty ones
        array = np.ndarray(buffer.shape, DTYPES[buffer.dtype].numpy, content)
        arrays[index] = array
    _check_data(program, {*arrays})
    return arrays


def _check_data(program: Program, there: set[int]) -> None:
    """Every weight or prepared buffer that is read is in the file, or is computed from such."""
    for launch in program.prepare:
        kernel = program.kernels[launch.kernel]
        reads = len(launch.arguments) - kernel.outputs
        _check_there(program, launch.arguments[:reads], there)
        there.update(launch.arguments[reads:])
    _check_there(program, sorted(read_by_calls(program)), there)


def _check_there(program: Program, ids: Any, there: set[int]) -> None:
    for index in ids:
        buffer = program.buffers[index]
        if buffer.role in ("weight", "prepared") and index not in there:
            raise ParseError(f"{MANIFEST}: data: the array of buffer {index} is missing")


def _given(program: Program, rows: Any, weights: Any) -> dict[str, np.ndarray]:
    """The caller's weights, which must be those that the file refers to."""
    rows = rows if isinstance(rows, list) else [rows]
    names = [row.get("name") if isinstance(row, dict) else None for row in rows]
    if names != [*program.weights]:
        raise ParseError(f"{MANIFEST}: weights are not those of the program")
    if weights is None:
        some = ", ".join(map(repr, names[:3])) + (", ..." if len(names) > 3 else "")
        raise ArgumentError(
            f"load: the file has {len(names)} weights by reference ({some}); "
            "give them: load(path, weights=arrays by name, or a safetensors file)"
        )
    of_file = isinstance(weights, str | os.PathLike)
    arrays = read_weights(weights) if of_file else weights
    given = {}
    for row, (name, index) in zip(rows, program.weights.items(), strict=True):
        buffer, where = program.buffers[index], f"weight {name!r}"
        digest = row.get("sha256")
        if not isinstance(digest, str) or not re.fullmatch("[0-9a-f]{64}", digest):
            raise ParseError(f"{MANIFEST}: {where} has no hash")
        if name not in arrays:
            raise ArgumentError(f"{where}: missing; expected {describe(buffer)}")
        given[name] = as_array(arrays[name], buffer, where)
        if hashlib.sha256(_flat(given[name]).data).hexdigest() != digest:
            raise ArgumentError(f"{where}: not the one that the file was saved with")
    return given
