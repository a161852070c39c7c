"""Where the time of a case goes: its kernels, beside what the machine allows, and their loops.

    python bench/anatomy.py                                      prints the table
    python bench/anatomy.py --cases softmax_4096x1024 minilm_8x128
    python bench/anatomy.py --write                              writes it into docs/anatomy.md

Each case is a process of its own: compiled without a search, run launch by launch (`exe.profile`),
then once more with a counter in every block of its kernels' assembly, which says what loops are hot
(loops.py). Without llvm-mca and llvm-mc, or on another CPU than x86-64, the columns of the loops
stay empty.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import version
from math import prod
from typing import Any

import loops
from cases import build
from ceilings import ceilings
from dodeca.runtime.driver import waited_seconds
from page import ROOT, markdown, with_section
from run import BUSY, chosen_cases, wait_until_idle

PAGE = ROOT / "docs" / "anatomy.md"
SECTION = "kernels"
Facts = dict[str, Any]
CASES = (  # of the benchmark, single operators and what compiles quickly
    "matmul_256x256x256",
    "matmul_512x512x512",
    "matmul_1024x1024x1024",
    "linear_1x768x3072",
    "mlp_128x384x1536",
    "attention_12x512x64",
    "softmax_4096x1024",
    "layernorm_4096x768",
    "gelu_4194304",
    "transpose_4096x4096",
    "conv2d_64x56x56",
    "conv2d_256x14x14",
    "conv2d_512x7x7",
    "depthwise_144x56x56",
    "decode_32x4096x128",
    "minilm_1x128",
)
ARITHMETIC = ("add", "mul", "div", "mod", "exp2", "log2", "sin", "sqrt", "recip", "larger")
LEAST = 0.03  # of a case's time, that a kernel takes which is in the table
HOT = 0.2  # of the instructions that a kernel ran, that a loop has which is in the table
ROUNDS = 5  # profiles of a case, of whose medians a launch has the least
AWHILE = 0.5  # seconds to wait for an idle machine, before a profile is tried all the same
NAMED = 5  # operations that stand in a cell
PATIENCE = 900.0  # seconds for one process
HEADER = (
    "case", "kernel", "does", "share", "predicted us", "measured us", "MFLOP", "MB", "GFLOP/s",
    "GB/s", "bound us", "of bound", "in loop", "a turn of the loop", "spills", "cycles", "least",
    "IPC", "limit", "of FMA peak", "loop us",
)  # fmt: skip
SHORT = {"broadcast": "bcast"}


# --- what a process measures --------------------------------------------------------------------


def anatomy(name: str, threads: int, repeats: int, longest: float) -> Facts:
    """The kernels of a case that take part of its time, the slowest first."""
    import dodeca as dd
    from peers import traced

    function, arrays = traced(build(name))
    exe = dd.compile(function, *arrays, threads=threads)
    profiles, busy = profiled(lambda: exe.profile(*arrays, repeats=repeats), longest)
    kernels: dict[str, Facts] = {}
    for launches in zip(*(p.launches for p in profiles), strict=True):
        kernel = launches[0].kernel
        row = kernels.setdefault(kernel, {"launches": 0, "predicted": 0.0, "measured": 0.0})
        row["launches"] += 1
        row["predicted"] += launches[0].predicted
        row["measured"] += min(launch.measured for launch in launches)
    total = sum(row["measured"] for row in kernels.values())
    turned, note = {}, loops.missing()
    if not note:
        try:
            turned = loops.count(exe, arrays)
        except loops.ToolError as error:
            note = str(error)
    rows = []
    for kernel, row in sorted(kernels.items(), key=lambda item: -item[1]["measured"]):
        row["share"] = row["measured"] / total
        if row["share"] < LEAST:
            continue
        made = exe.program.kernels[kernel]
        flops, moved = work(made.stages["dodeca"])
        row |= {"kernel": kernel, "does": in_short(made.fused)}
        row |= {"flops": flops * row["launches"], "bytes": moved * row["launches"]}
        row["busy"] = min(threads, made.grid)
        row["loops"] = hot_loops(made.text, turned[kernel]) if turned else []
        rows.append(row)
    return {"rows": rows, "busy": busy, "note": note}


def profiled(profile: Callable[[], Any], longest: float) -> tuple[list[Any], bool]:
    """Profiles in which our threads had the cores that they wanted, if there are any; else others,
    and that the machine was busy."""
    quiet: list[Any] = []
    others: list[Any] = []
    end = time.monotonic() + longest
    while len(quiet) < ROUNDS and (len(others) < ROUNDS or time.monotonic() < end):
        wait_until_idle(min(end, time.monotonic() + AWHILE))
        waited, begin = waited_seconds(), time.perf_counter()
        found = profile()
        share = (waited_seconds() - waited) / (time.perf_counter() - begin)
        (quiet if share <= BUSY else others).append(found)
    return quiet or others, not quiet


def work(source: str) -> tuple[float, float]:
    """What a kernel has to do: operations on numbers, and bytes to read and to write once.

    Each of ARITHMETIC counts as one for an element of its result, a sum or a maximum for an element
    that goes into it; what the kernel says twice counts twice.
    """
    from dodeca.dialect.ops import context, entry_function
    from dodeca.passes.cost import bytes_read, bytes_written
    from dodeca.passes.terms import FOLDS, postorder
    from dodeca.passes.tile import read_kernel
    from mlir import ir

    with context(), ir.Location.unknown():
        module = ir.Module.parse(source)  # which owns the function
        kernel = read_kernel(entry_function(module.operation))
    flops, read = 0.0, dict[str, float]()
    for term in postorder([kernel.term]):
        elements = float(prod(axis.size for axis in term.axes))
        if term.op in FOLDS:
            flops += elements * term.attr.size
        elif term.op in ARITHMETIC and term.dtype.name != "bool":
            flops += elements
        elif term.op == "load":  # a gather reads no more than it takes
            least = min(bytes_read(term), elements * term.dtype.bytes)
            read[term.attr[0]] = max(read.get(term.attr[0], 0.0), least)
    return flops, sum(read.values()) + bytes_written(kernel.term, kernel.axes)


def in_short(fused: Sequence[str]) -> str:
    """The names of a kernel's operations, each once, the first ones."""
    names = list(dict.fromkeys(words.split()[0] for words in fused))
    return " ".join(names[:NAMED]) + " …" * (len(names) > NAMED)


def hot_loops(text: str, counts: Sequence[int]) -> list[Facts]:
    """The loops where most of a kernel's instructions run, with what llvm-mca says of them."""
    found = []
    for loop in loops.hottest(loops.read(text), counts, HOT):
        facts: Facts = {**asdict(loop), "speed": None, "fma": 0.0}
        try:
            speed = loops.simulate(loop.body)
            facts |= {"speed": asdict(speed), "fma": loops.fma_share(loop.body, speed.cycles)}
        except loops.ToolError as error:  # there may be what it does not know: the others stay
            facts["cannot"] = str(error)
        found.append(facts)
    return found


def fresh(*arguments: Any) -> Facts:
    """What a new process measures; `cannot` where it ended otherwise."""
    command = [sys.executable, __file__, "--measure", json.dumps(arguments)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        return {"cannot": f"no answer in {PATIENCE:.0f} s"}
    if done.returncode:
        said = done.stderr.strip().splitlines() or [f"its process ended ({done.returncode})"]
        return {"cannot": said[-1][:200]}
    return json.loads(done.stdout.splitlines()[-1])


# --- the table ----------------------------------------------------------------------------------


def table(found: Mapping[str, Facts], peak: Mapping[str, float], threads: int) -> str:
    """A row for each kernel, and one for each further loop of it."""
    lines = [list(HEADER)]
    for name, facts in found.items():
        for row in facts["rows"]:
            first, *others = row["loops"] or [None]
            lines.append(
                [
                    f"`{name}`",
                    *kernel_cells(row, peak, facts["busy"]),
                    *loop_cells(first, row, peak, threads),
                ]
            )
            empty = [""] * (len(HEADER) - len(loop_cells(None, row, peak, threads)))
            lines += [[*empty, *loop_cells(loop, row, peak, threads)] for loop in others]
    return markdown(lines)


def kernel_cells(row: Facts, peak: Mapping[str, float], busy: bool) -> list[str]:
    """A kernel's share and figures, beside what the ceilings allow; a star if it was busy."""
    seconds, flops, moved = row["measured"], row["flops"], row["bytes"]
    bound = max(flops / (peak["GFLOP/s"] * 1e9), moved / (peak["copy GB/s"] * 1e9))
    times = f" x {row['launches']}" if row["launches"] > 1 else ""
    return [
        f"`{row['kernel']}`{times}",
        row["does"],
        percent(row["share"]),
        number(row["predicted"] * 1e6) if row["predicted"] else "-",
        number(seconds * 1e6) + "*" * busy,
        number(flops / 1e6),
        number(moved / 1e6),
        number(flops / seconds / 1e9),
        number(moved / seconds / 1e9),
        number(bound * 1e6),
        percent(bound / seconds),
    ]


def loop_cells(
    loop: Facts | None, row: Facts, peak: Mapping[str, float], threads: int
) -> list[str]:
    """A loop's share, what a turn of it is made of, and what llvm-mca says of it."""
    if loop is None:
        return ["-"] * 9
    (stores, reads), speed = loop["spills"], loop["speed"]
    copies = f" in {loop['copies']}" if loop["copies"] > 1 else ""
    mix = ", ".join(f"{number(n)} {SHORT.get(kind, kind)}" for kind, n in loop["mix"].items())
    found = [percent(loop["share"]) + copies, mix, f"{number(stores)} + {number(reads)}"]
    if speed is None:
        return [*found, *["-"] * 6]
    hertz = peak["GFLOP/s"] * 1e9 / (threads * 2 * loops.lanes() * loops.peak_fmas())
    return [
        *found,
        number(speed["cycles"]),
        number(speed["least"]),
        f"{speed['ipc']:.1f}",
        speed["limit"],
        percent(loop["fma"]) if loop["fma"] else "-",
        number(loop["turns"] * speed["cycles"] / (hertz * row["busy"]) * 1e6),
    ]


def percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def number(value: float) -> str:
    """At least three digits; whole ones from 100."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


# --- the command --------------------------------------------------------------------------------


def machine(threads: int, peak: Mapping[str, float]) -> str:
    """Where, when and from what the figures come."""
    from dodeca.runtime.identity import device_in_words, identity

    most = ", ".join(f"{value:.3g} {unit}" for unit, value in peak.items())
    return (
        f"Measured {time.strftime('%d %B %Y')}{commit()}: "
        f"{device_in_words(identity('cpu', threads))}, at most {most}; "
        f"Python {sys.version.split()[0]}, llvmlite {version('llvmlite')}."
    )


def commit() -> str:
    """At which commit, and whether the code was changed since; "" outside of a checkout."""
    git = ["git", "-C", str(ROOT)]
    try:
        head = subprocess.run(
            [*git, "rev-parse", "--short", "HEAD"], capture_output=True, text=True
        )
        code = ["frontend", "dialect", "passes", "runtime", "bench"]
        same = subprocess.run([*git, "diff", "--quiet", "HEAD", "--", *code], capture_output=True)
    except OSError:
        return ""
    if head.returncode:
        return ""
    return f" at commit {head.stdout.strip()}{' with changes' * bool(same.returncode)}"


def main() -> int:
    """The command; its exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--cases", nargs="+", metavar="NAME", help="default: the quick ones")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=5, help=f"of each of {ROUNDS} profiles")
    text = "seconds that a case may wait for a machine that is not busy"
    parser.add_argument("--longest", type=float, default=10.0, metavar="SECONDS", help=text)
    parser.add_argument("--write", action="store_true", help=f"into docs/{PAGE.name}")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    options = parser.parse_args()
    os.environ["DODECA_CACHE"] = "off"  # what is measured is what is compiled now
    if options.measure:
        print(json.dumps(anatomy(*json.loads(options.measure))))
        return 0
    cases = chosen_cases(options.cases, CASES)
    lacking = loops.missing()
    if lacking:
        print(f"{lacking}\nThe columns of the loops stay empty.", file=sys.stderr)
    found, failed = {}, []
    peak = ceilings(options.threads)
    for name in cases:
        print(f"{name} ...", file=sys.stderr, flush=True)
        facts = fresh(name, options.threads, options.repeats, options.longest)
        again = ceilings(options.threads)  # the best of all, for the machine may have been busy
        peak = {unit: max(value, again[unit]) for unit, value in peak.items()}
        if "cannot" in facts:
            failed.append(f"{name}: {facts['cannot']}")
            print(failed[-1], file=sys.stderr)
        else:
            found[name] = facts
            notes = {
                facts["note"],
                *(x.get("cannot", "") for r in facts["rows"] for x in r["loops"]),
            }
            for note in notes - {"", lacking}:
                print(f"{name}: {note}", file=sys.stderr)
    text = f"{machine(options.threads, peak)}\n\n{table(found, peak, options.threads)}"
    print(text)
    if options.write and found:
        written = with_section(PAGE.read_text(encoding="utf-8"), SECTION, text)
        PAGE.write_text(written, encoding="utf-8")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
