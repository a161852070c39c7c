"""One loop for all folds whose only turn holds the whole axis: the powers that it made are read
again where the result asks for them, and the next program's lines are asked for meanwhile."""

from __future__ import annotations

import dodeca as dd
import numpy as np
import pytest
from dodeca.fusion import fuse, schedule_attribute
from dodeca.passes import terms
from dodeca.passes.cost import step_schedule
from dodeca.passes.index import Axis, of_axis
from dodeca.passes.schedule import Schedule
from dodeca.passes.stage import Staged, stage
from dodeca.passes.terms import Term
from dodeca.passes.tile import read_kernel
from dodeca.pipeline import Clock, compile_kernels, simplified
from dodeca.runtime.device import find_target
from dodeca.runtime.executable import Executable
from dodeca.schedule_attribute import SCHEDULE, read_schedule
from mlir import ir

CPU = find_target("cpu")
F32 = dd.float32
NAN, INF = float("nan"), float("inf")


def shares(x: dd.Tensor) -> dd.Tensor:
    """Each row as shares of 1."""
    e = dd.exp(x - dd.max(x, axis=-1, keepdims=True))
    return e / dd.sum(e, axis=-1, keepdims=True)


def exactly(x: np.ndarray) -> np.ndarray:
    wide = x.astype(np.float64)
    with np.errstate(invalid="ignore"):
        e = np.exp(wide - wide.max(-1, keepdims=True))
        return e / e.sum(-1, keepdims=True)


def staged(fn, x: np.ndarray, rows: int, fold: int) -> Executable:
    """The function as one kernel, in a loop over blocks of so many rows and places."""
    graph = dd.trace(fn, x)
    with graph.module.context, ir.Location.unknown():
        module = simplified(graph.module, Clock())
        fused = fuse(module.operation, CPU, "fast")
        _, function = fused.module.body.operations
        kernel = read_kernel(function.operation)
        now = read_schedule(function.operation.attributes[SCHEDULE], kernel.axes)
        blocks = {a.name: a.size for a in kernel.axes} | {kernel.axes[0].name: rows}
        tiles = tuple((a.name, 1) for a in kernel.axes)
        wanted = Schedule(None, tiles, tuple(blocks.items()), (), now.lanes, fold=fold)
        function.operation.attributes[SCHEDULE] = schedule_attribute(wanted)
    program = compile_kernels(fused.module, "", CPU, "fast", Clock(), {})
    return Executable(program, graph.weights)


def powers(program: Staged) -> int:
    """How many of a program's steps compute an exp2 for every place of their axes."""
    steps = [step for phase in program.phases for step in phase.steps]
    return sum(
        x.op == "exp2" and len(x.axes & {*step.axes}) > 1
        for step in steps
        for x in terms.postorder([step.term])
    )


def normalised(power: Term, score: Term, r: Axis) -> Term:
    return power * terms.apply("recip", terms.reduction("roll", r, score, terms.constant(1, F32)))


def program(power: Term, score: Term, axes: tuple[Axis, ...], r: Axis, fold: int) -> Staged:
    blocks = tuple((a.name, 4 if a is axes[0] else a.size) for a in axes)
    schedule = Schedule(None, tuple((a.name, 1) for a in axes), blocks, (), 8, fold=fold)
    choose = lambda own, term: step_schedule(own, term, CPU)  # noqa: E731
    return stage(normalised(power, score, r), axes, schedule, choose)


ROW, PLACE, ALONG = Axis("d0", 16), Axis("d1", 64), Axis("r0", 64)


def load(*axes: Axis) -> Term:
    shape = tuple(64 if a in (PLACE, ALONG) else a.size for a in axes)
    return terms.load("x", tuple(map(of_axis, axes)), shape, F32)


def number(value: float) -> Term:
    return terms.constant(value, F32)


def exp2_of(x: Term, most: Term) -> Term:
    return terms.apply("exp2", x - most)


SCALED = load(ROW, ALONG) * number(1.5)
MOST = terms.reduction("max", ALONG, load(ROW, ALONG))
SAME = {
    "as the loop writes it": exp2_of(
        load(ROW, PLACE) * number(1.5), terms.reduction("max", ALONG, SCALED)
    ),
    "the maximum before its factor": exp2_of(load(ROW, PLACE) * number(1.5), MOST * number(1.5)),
    "a factor of both": terms.apply("exp2", (load(ROW, PLACE) - MOST) * number(1.5)),
}
OTHER = {
    "another factor": exp2_of(load(ROW, PLACE) * number(1.25), MOST * number(1.5)),
    "another maximum's factor": exp2_of(load(ROW, PLACE) * number(1.5), MOST * number(1.25)),
    "a number more": exp2_of(load(ROW, PLACE) * number(1.5) + number(1), MOST * number(1.5)),
    "no maximum": terms.apply("exp2", load(ROW, PLACE) * number(1.5)),
}


@pytest.mark.parametrize("power", SAME.values(), ids=SAME)
def test_what_the_only_turn_made_is_read_again(power: Term) -> None:
    assert powers(program(power, SCALED, (ROW, PLACE), ALONG, 64)) == 1
    assert powers(program(power, SCALED, (ROW, PLACE), ALONG, 256)) == 1
    assert (
        powers(program(power, SCALED, (ROW, PLACE), ALONG, 32)) == 2
    )  # the last turn has half of it


@pytest.mark.parametrize("power", OTHER.values(), ids=OTHER)
def test_another_power_is_computed(power: Term) -> None:
    assert powers(program(power, SCALED, (ROW, PLACE), ALONG, 64)) == 2


def test_the_maximum_of_what_is_turned_around_is_another() -> None:
    score = load(ROW, ALONG) * number(-1.5)
    power = exp2_of(load(ROW, PLACE) * number(-1.5), MOST * number(-1.5))
    assert powers(program(power, score, (ROW, PLACE), ALONG, 64)) == 2


def test_a_shorter_axis_has_powers_of_its_own() -> None:
    short = Axis("d1", 32)
    power = exp2_of(load(ROW, short) * number(1.5), MOST * number(1.5))
    assert powers(program(power, SCALED, (ROW, short), ALONG, 64)) == 2


def test_the_next_program_is_near_when_it_begins() -> None:
    """What is asked for lies a block of rows further, and inside the buffers."""
    made = program(SAME["a factor of both"], SCALED, (ROW, PLACE), ALONG, 64)
    (step,) = [s for phase in made.phases for s in phase.steps if s.ahead]
    assert {t.attr[0] for t in step.ahead} == {"x", "out0"}
    (rows,) = made.outer
    for asked in step.ahead:
        row, place = asked.attr[1]
        assert row.coefficient(rows) == 1 and row.constant == 4
        assert place.axes == {step.axes[-1]}
    exe = staged(shares, np.zeros((16, 64), np.float32), 4, 64)
    text = exe.ir("tile")
    assert text.count("memref.prefetch") == 2 and "arith.minsi" in text
    assert "write" in text and "read" in text
    assert exe.ir("text").count("prefetch")


@pytest.mark.parametrize("rows", [1, 4, 5, 8, 19])
@pytest.mark.parametrize("places", [48, 64, 100])
def test_shares_are_right(rows: int, places: int) -> None:
    """Also of rows with infinities and NaN, and where blocks overlap or end at the edge."""
    rng = np.random.default_rng(rows * places)
    x = (8 * rng.standard_normal((19, places))).astype(np.float32)
    x[3], x[5, 0], x[7, -1], x[9, places // 2] = -INF, NAN, INF, -INF
    x[11], x[13], x[15] = 0, 100, -100
    expected = exactly(x)
    assert np.isnan(expected[3]).all()
    for fold in {places, 256, 4}:
        found = staged(shares, x, rows, fold)(x)
        np.testing.assert_allclose(found, expected, rtol=2e-5, atol=1e-30)


def test_a_row_of_infinities_is_not_what_the_loop_takes_it_for() -> None:
    """The loop takes -inf as its maximum for 0: its powers are 0, those of the formula NaN."""

    def either(x: dd.Tensor) -> dd.Tensor:
        e = dd.exp(x - dd.max(x, axis=-1, keepdims=True))
        total = dd.sum(e, axis=-1, keepdims=True)
        return dd.where(dd.arange(16) < 3, e, e / total)

    x = np.array([[-INF] * 16, [0.0] * 16], np.float32)
    found = staged(either, x, 1, 16)(x)
    assert np.isnan(found[0]).all()
    assert (found[1] == [1.0] * 3 + [0.0625] * 13).all()


def test_the_model_prefers_rows_that_stay_near() -> None:
    """Of many rows so few at a time that their powers stay in the first cache."""
    exe = dd.compile(shares, np.zeros((4096, 1024), np.float32))
    (kernel,) = exe.kernels
    assert "fold = 1024" in exe.ir("kernels") and kernel.blocks >= 4096 * 1024 * 4 // 32768
