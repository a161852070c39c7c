"""Kernels of the compiler without one of their barriers, with a weaker wait, or an index shifted.

Each must be noticed by the simulator: as a race, an access out of bounds, threads that wait in vain
or a wrong result. Those that nobody can notice are listed with the reason.
"""

import re
from collections.abc import Iterator
from dataclasses import replace
from functools import cache

import dodeca as dd
import numpy as np
import pytest
from dodeca.dialect.errors import Error
from dodeca.runtime.device import find_target
from dodeca.runtime.executable import Executable
from gpu_kernels import TOLERANCE, Case, attention, executable, flash, matmul_turned, tiled

CASES = {
    "product": Case(matmul_turned, (((64, 320), "float16"),) * 2, tiled(64, 64, 4, "float16")),
    "attention": Case(attention, (((1, 112, 64), "float16"),) * 3, flash(32, 32, 2, 64)),
    "reduction": Case(lambda x: dd.sum(x, axis=1), (((2, 5000), "float32"),)),
}
CHIPS = ("cuda:sm_80", "hip:gfx942")

BARRIER = re.compile(r"call void @llvm\.(nvvm\.barrier\.cta|amdgcn\.s\.barrier)")
WAIT = re.compile(r"(call void @llvm\.nvvm\.cp\.async\.wait\.group\(i32 )(\d+)")
SHARED = re.compile(r"(getelementptr .*\bi8, ptr addrspace\(3\) .*, i(?:32|64) )(\d+)(.*)")
GLOBAL = re.compile(r"(getelementptr .*\bi8, ptr (?:addrspace\(1\) )?%.*, i64 )(\d+)(.*)")

LAST = "nobody touches shared memory after it"
ENDED = "the last turn of the loop ended with a barrier"
AGAIN = "the barriers around the copy of the other operand order all that it would"
EQUIVALENT = {
    "product gfx942 barrier 5": LAST,
    "attention sm_80 barrier 4": ENDED,
    "attention gfx942 barrier 0": AGAIN,
    "attention gfx942 barrier 2": AGAIN,
    "attention gfx942 barrier 4": AGAIN,
    "reduction sm_80 barrier 3": LAST,
    "reduction gfx942 barrier 3": LAST,
}


@cache
def _made(name: str, chip: str) -> tuple[Executable, np.ndarray]:
    case = CASES[name]
    exe = executable(case, chip)
    return exe, np.asarray(case.graph().interpret(*case.arrays(), precision="high"), np.float64)


def _error(name: str, chip: str, text: str, reverse: bool) -> float:
    """How far the results are off, as a part of the largest."""
    exe, expected = _made(name, chip)
    (kernel,) = exe.kernels
    program = replace(exe.program, kernels={kernel.name: replace(kernel, llvm_ir=text)})
    found = Executable(program, {}).simulate(*CASES[name].arrays(), reverse=reverse)
    off = np.abs(np.asarray(found, np.float64) - expected).max() / np.abs(expected).max()
    return float(np.nan_to_num(off, nan=np.inf))


def _mutants(name: str, chip: str) -> Iterator[tuple[str, str]]:
    (kernel,) = _made(name, chip)[0].kernels
    lines = kernel.llvm_ir.split("\n")
    # all lanes of a warp have its sum: an index that matters goes to another warp
    step = 4 * find_target(chip).warp if name == "reduction" else 16
    found: dict[str, list[tuple[int, str]]] = {
        "barrier": [],
        "wait": [],
        "shared": [],
        "global": [],
    }
    for number, line in enumerate(lines):
        if BARRIER.search(line):
            found["barrier"].append((number, ""))
        elif wait := WAIT.search(line):
            weaker = WAIT.sub(rf"\g<1>{int(wait[2]) + 1}", line)
            found["wait"].append((number, weaker))
        for kind, pattern in (("shared", SHARED), ("global", GLOBAL)):
            if at := pattern.search(line):
                found[kind].append((number, pattern.sub(rf"\g<1>{int(at[2]) + step}\g<3>", line)))
    for kind, changes in found.items():
        few = changes[:: max(1, len(changes) // 6)] if kind in ("shared", "global") else changes
        for i, (number, line) in enumerate(few):
            text = "\n".join([*lines[:number], line, *lines[number + 1 :]])
            yield f"{name} {chip.partition(':')[2]} {kind} {i}", text


MUTANTS = [
    pytest.param(name, chip, text, id=mutant)
    for name in CASES
    for chip in CHIPS
    for mutant, text in _mutants(name, chip)
]


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("chip", CHIPS)
def test_kernels_are_right(name: str, chip: str) -> None:
    (kernel,) = _made(name, chip)[0].kernels
    for reverse in (False, True):
        assert _error(name, chip, kernel.llvm_ir, reverse) <= _tolerance(name)


@pytest.mark.parametrize("name, chip, text", MUTANTS)
def test_mutants_are_caught(
    name: str, chip: str, text: str, request: pytest.FixtureRequest
) -> None:
    try:
        error = max(_error(name, chip, text, reverse) for reverse in (False, True))
    except Error as found:
        assert str(found).startswith("kernel ")
        error = np.inf
    caught = error > _tolerance(name)
    assert caught == (request.node.callspec.id not in EQUIVALENT)


def test_all_kinds_of_mutants_are_there() -> None:
    ids = [str(mutant.id) for mutant in MUTANTS]
    assert EQUIVALENT.keys() <= set(ids)
    for name in CASES:
        for chip in ("sm_80", "gfx942"):
            for kind in ("barrier", "shared", "global"):
                assert f"{name} {chip} {kind} 0" in ids
    assert {"product sm_80 wait 0", "attention sm_80 wait 0"} <= set(ids)


def _tolerance(name: str) -> float:
    return TOLERANCE[CASES[name].specs[0][1]]
