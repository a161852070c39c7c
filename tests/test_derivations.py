"""Naive programs become what a specialist would write: `derivations.DERIVATIONS`, one by one."""

import importlib
import re
from functools import cache
from pathlib import Path
from types import ModuleType

import dodeca as dd
import numpy as np
import pytest
from derivations import (
    DERIVATIONS,
    Launch,
    Plan,
    derive,
    failures,
    form,
    limits,
    naive,
    passes_over,
    read_plan,
    work,
)
from dodeca.dialect import DTYPES
from dodeca.dialect.ops import context
from dodeca.passes import terms
from dodeca.passes.index import Axis, Expr, of_axis
from dodeca.passes.rules import TABLE
from dodeca.passes.terms import Term
from dodeca.runtime.device import find_target
from mlir import ir

# What is not derived yet, and what is missing. A line must go when its derivation succeeds.
PENDING: dict[str, str] = {
    "entropy": "a rolling sum is not distributed over its weight, which reads finished folds",
    "softmax_moments": "no rolling form of a weighted variance",
}

ROOT = Path(__file__).resolve().parents[1]
SEEDS = ("random 0", "random 1")
CASES = [(name, case) for name, row in DERIVATIONS.items() for case in (*SEEDS, *row.edges)]


@cache
def compiled(name: str, size: int):
    return dd.compile(DERIVATIONS[name].graph(size))


def compiled_plan(name: str, size: int) -> Plan:
    with context(), ir.Location.unknown():
        return read_plan(ir.Module.parse(compiled(name, size).ir("kernels")))


@pytest.mark.parametrize("name, case", CASES)
def test_the_result_is_right(name: str, case: str) -> None:
    """It agrees with the interpreter in float64, NaN for NaN, relative to the largest number."""
    row = DERIVATIONS[name]
    given = row.arrays(SEEDS.index(case)) if case in SEEDS else row.arrays(2, case)
    found = compiled(name, row.n)(*given)
    expected = row.graph(row.n).interpret(*given, precision="high")
    pairs = zip(found, expected, strict=True) if isinstance(found, tuple) else [(found, expected)]
    close = row.tolerance if case in SEEDS else row.edge_tolerance
    for x, y in pairs:
        assert x.shape == y.shape
        largest = np.abs(y[np.isfinite(y)]).max(initial=1.0)
        np.testing.assert_allclose(
            x.astype(np.float64), y, rtol=close, atol=close * largest, equal_nan=True
        )


@pytest.mark.parametrize("precision", ["fast", "strict"])
@pytest.mark.parametrize("rows, size", [(1, 2), (2, 3), (2, 5), (40, 3), (1, 8)])
def test_sums_inside_sums_keep_their_axes_apart(rows: int, size: int, precision: str) -> None:
    """In A (B (C x)) as one kernel the innermost and the outermost sum have an axis of one name."""
    shapes = [(rows, size), (size, size), (size, size), (size,)]
    graph = dd.trace(lambda a, b, c, x: a @ (b @ (c @ x)), *(dd.spec(s) for s in shapes))
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(shape).astype(np.float32) for shape in shapes]
    expected = graph.interpret(*arrays, precision="high")
    found = dd.compile(graph, precision=precision)(*arrays)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(
            name,
            marks=[pytest.mark.xfail(reason=PENDING[name], raises=AssertionError, strict=True)]
            if name in PENDING
            else [],
        )
        for name in DERIVATIONS
    ],
)
def test_it_is_derived(name: str) -> None:
    row = DERIVATIONS[name]
    broken = failures(row, lambda size: compiled_plan(name, size))
    if find_target("cpu").units == 1:
        broken.pop("programs", None)  # nobody to share with
    assert broken == {}
    if row.scratch == 0:
        small, large = compiled(name, row.n), compiled(name, 2 * row.n)
        assert large.scratch_bytes <= small.scratch_bytes


def test_what_is_pending_is_in_the_table() -> None:
    assert set(PENDING) <= set(DERIVATIONS)


# --- can a derivation fail? ---------------------------------------------------------------------


@pytest.mark.parametrize("name", DERIVATIONS)
def test_every_limit_rejects_something(name: str) -> None:
    """Either a kernel for each operation, or fusion alone, breaks it."""
    row = DERIVATIONS[name]
    broken = failures(row, lambda size: naive(row.graph(size)))
    assert broken
    if set(broken) != set(limits(row)):
        broken |= failures(row, lambda size: derive(row.graph(size), "strict"))
    assert set(broken) == set(limits(row))


@pytest.mark.parametrize("name", ["attention", "attention_mask", "softmax"])
def test_fusion_alone_takes_more_passes(name: str) -> None:
    row = DERIVATIONS[name]
    assert form(derive(row.graph(row.n), "strict"), row.n).passes >= 2


def test_a_rolling_sum_that_is_not_run_in_one_loop_takes_two_passes() -> None:
    name = "attention"
    size = DERIVATIONS[name].n
    text = compiled(name, size).ir("kernels")
    with context(), ir.Location.unknown():
        one_loop = read_plan(ir.Module.parse(text))
        apart = read_plan(ir.Module.parse(re.sub(r"\bfold = \d+", "fold = 0", text)))
    assert [x.folded for x in one_loop.launches] == [True]
    assert form(one_loop, size).passes == 1
    assert form(apart, size).passes == 2


# --- the page that lists them --------------------------------------------------------------------


@pytest.fixture
def ablation(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """bench/ablation.py as a module."""
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    return importlib.import_module("ablation")


def test_the_page_is_up_to_date(ablation: ModuleType) -> None:
    page = ablation.PAGE.read_text(encoding="utf-8")
    assert ablation.section(page, "catalogue") == ablation.catalogue()
    assert ablation.section(page, "built in") == ablation.built_in()
    header, *rows, _ = ablation.cells(ablation.section(page, "ablation"))
    assert header == ["derivation", "derived", *ablation.SEARCHED]
    assert {*ablation.SEARCHED, *ablation.BUILT_IN} == {rule.name for rule in TABLE}
    assert [row[0] for row in rows] == [f"`{name}`" for name in DERIVATIONS]
    not_derived = {row[0].strip("`") for row in rows if row[1] != "yes"}
    assert not_derived == set(PENDING)


@pytest.mark.parametrize("name", ["rms_norm_linear", "matmul_chain", "softmax"])
def test_a_row_of_the_ablation(name: str, ablation: ModuleType) -> None:
    page = ablation.PAGE.read_text(encoding="utf-8")
    rows = {row[0]: row for row in ablation.cells(ablation.section(page, "ablation"))}
    (found,) = ablation.cells(ablation.table([ablation.ablate(name)]))[1:-1]
    assert found == rows[f"`{name}`"]
    assert ablation.NEEDED in found


# --- counting, on terms made by hand ------------------------------------------------------------

SIZE, BLOCK = 91, 13
ROW, OUT = Axis("d0", 5), Axis("d1", 3)
J, JO, JI = Axis("r0", SIZE), Axis("r0", SIZE // BLOCK), Axis("r1", BLOCK)
PLACE = of_axis(JO) * BLOCK + of_axis(JI)


def load(name: str, shape: tuple[int, ...], *index: Expr) -> Term:
    return terms.load(name, index, shape, DTYPES["float32"])


def score(place: Expr) -> Term:
    return load("s", (5, SIZE), of_axis(ROW), place)


def total(axis: Axis, x: Term) -> Term:
    return terms.reduction("sum", axis, x)


def most(axis: Axis, x: Term) -> Term:
    return terms.reduction("max", axis, x)


def times(x: Term, y: Term) -> Term:
    return terms.apply("mul", x, y)


def power(x: Term, top: Term) -> Term:
    """exp2(x - top)."""
    return terms.apply("exp2", terms.apply("add", x, times(top, terms.constant(-1, x.dtype))))


def passes(*stored: Term, axes: tuple[Axis, ...] = (ROW,)) -> int:
    """Of kernels that store these terms, in the buffers b0, b1, ..."""
    return passes_over([Launch(f"b{n}", x, axes) for n, x in enumerate(stored)], SIZE)


def test_a_reduction_is_one_pass() -> None:
    assert passes(score(of_axis(ROW))) == 0
    assert passes(total(J, score(of_axis(J)))) == 1
    assert passes(total(Axis("r0", 90), score(of_axis(Axis("r0", 90))))) == 0


def test_reductions_that_do_not_read_each_other_are_one_pass() -> None:
    x = score(of_axis(J))
    assert passes(terms.apply("add", total(J, x), total(J, times(x, x)))) == 1
    assert passes(total(J, x), most(J, x)) == 1


def test_a_reduction_that_reads_another_is_the_next_pass() -> None:
    x = score(of_axis(J))
    mean = total(J, x)
    spread = total(J, times(x, mean))
    assert passes(spread) == 2
    assert passes(total(J, times(x, spread))) == 3
    assert passes(mean, total(J, times(x, load("b0", (5,), of_axis(ROW))))) == 2


def test_a_value_that_is_only_stored_for_each_place_is_no_pass() -> None:
    wide = (ROW, Axis("d1", SIZE))
    x = score(of_axis(wide[1]))
    mean = load("b0", (5,), of_axis(ROW))
    assert passes_over(
        [
            Launch("b0", total(J, score(of_axis(J))), (ROW,)),
            Launch("b1", times(x, mean), wide),
            Launch("b2", total(J, load("b1", (5, SIZE), of_axis(ROW), of_axis(J))), (ROW,)),
        ],
        SIZE,
    ) == 2  # fmt: skip


def test_what_does_not_depend_on_the_axis_is_no_pass() -> None:
    assert passes(total(J, score(of_axis(ROW)))) == 0


def test_a_rolling_sum_is_one_pass() -> None:
    x, v = score(of_axis(J)), load("v", (SIZE, 3), of_axis(J), of_axis(OUT))
    plain = total(J, times(power(x, most(J, x)), v))
    assert passes(plain, axes=(ROW, OUT)) == 2
    assert terms.rolled(plain) is terms.reduction("roll", J, x, v)
    assert passes(terms.rolled(plain), axes=(ROW, OUT)) == 1
    scores = total(OUT, times(load("q", (5, 3), of_axis(ROW), of_axis(OUT)), v))
    assert passes(terms.reduction("roll", J, scores, v)) == 1
    assert passes(terms.reduction("roll", J, times(x, most(J, x)), v)) == 2
    spread, tilt = terms.reduction("spread", J, x), terms.reduction("tilt", J, x, v)
    assert passes(terms.plain(spread)) == 2
    assert passes(times(spread, tilt)) == passes(terms.rolled(terms.plain(spread))) == 1


def test_blocks_of_the_axis_and_then_their_sum_are_one_pass() -> None:
    inner = total(JI, score(PLACE))
    assert passes(total(JO, inner)) == 1
    assert passes(total(JI, total(JO, score(PLACE)))) == 1
    # the blocks in programs of their own, two dependent reductions in each
    block = Axis("d1", JO.size)
    s = score(of_axis(block) * BLOCK + of_axis(JI))
    parts = Launch("b0", most(JI, s), (ROW, block)), Launch("b1", total(JI, s), (ROW, block))
    top, part = (load(b, (5, JO.size), of_axis(ROW), of_axis(JO)) for b in ("b0", "b1"))
    whole = Launch("b2", total(JO, times(power(top, most(JO, top)), part)), (ROW,))
    assert passes_over([*parts, whole], SIZE) == 1
    again = Launch("b1", total(JI, power(s, most(JI, s))), (ROW, block))
    assert passes_over([parts[0], again, whole], SIZE) == 1


def test_blocks_that_read_a_finished_value_are_a_second_pass() -> None:
    top = most(JO, most(JI, score(PLACE)))
    assert passes(total(JO, total(JI, power(score(PLACE), top)))) == 2
    stored = load("b0", (5,), of_axis(ROW))
    assert passes(top, total(JO, total(JI, power(score(PLACE), stored)))) == 2


def test_an_overlapping_window_is_no_part_of_an_axis() -> None:
    window = Axis("r0", 3)
    place = of_axis(Axis("d1", SIZE - 2)) + of_axis(window)
    assert passes(total(window, score(place))) == 0


def test_work_is_counted_where_it_is_done() -> None:
    x = score(of_axis(J))
    assert work(Launch("o", terms.apply("exp2", load("a", (5,), of_axis(ROW))), (ROW,))) == 5
    assert work(Launch("o", total(J, x), (ROW,))) == 5 * SIZE
    assert work(Launch("o", total(J, times(x, x)), (ROW,))) == 2 * 5 * SIZE
    # one value for each place of the axis is computed again for each point of the result
    line = terms.apply("exp2", load("a", (SIZE,), of_axis(J)))
    assert work(Launch("o", total(J, times(x, line)), (ROW,))) == 3 * 5 * SIZE
    assert work(Launch("o", total(J, times(x, line)), (ROW,), folded=True)) == (2 * 5 + 1) * SIZE
    # a reduction that reads fewer axes of the result than there are is not done again for the rest
    assert work(Launch("o", times(total(J, x), load("w", (3,), of_axis(OUT))), (ROW, OUT))) == (
        5 * SIZE + 5 * 3
    )
    inner = total(JI, load("b", (SIZE, BLOCK), of_axis(J), of_axis(JI)))
    assert work(Launch("o", total(J, times(x, inner)), (ROW,))) == 5 * SIZE * (BLOCK + 2)
    place = terms.load("i", (of_axis(J),), (SIZE,), DTYPES["int64"])
    position = terms.index(of_axis(ROW), place.dtype)
    value = load("g", (SIZE, 3), of_axis(J), of_axis(OUT))
    added = terms.reduction("scatter", J, place, value, position)
    assert work(Launch("o", added, (ROW, OUT), folded=True)) == 5 * 3 + SIZE * 3
