"""Kernels with several results, and reductions that share a loop, on every target."""

import dodeca as dd
import numpy as np
import pytest
from dodeca.passes import terms
from dodeca.passes.index import Axis, of_axis
from dodeca.passes.loops import joint
from dodeca.passes.terms import Term

TARGETS = ["cpu", "cuda:sm_90", "hip:gfx942"]
# a function, the shapes of its inputs, and how many results its kernels have on a CPU
PROGRAMS = {
    "projections": (lambda x, a, b, c: (x @ a, x @ b, x @ c), [(20, 40), *[(40, 16)] * 3], [3]),
    "of_rows": (lambda x: (dd.sum(x, axis=1), dd.max(x, axis=1)), [(37, 50)], [2]),
    "of_all": (lambda x: (dd.sum(x), dd.max(x), dd.min(x)), [(1000,)], [3]),
    "by_element": (lambda x: (x + 1, x * 2), [(13, 50)], [2]),
    "moments": (lambda x: (dd.mean(x, axis=1), dd.var(x, axis=1)), [(37, 50)], [2]),
    "attention_and_its_weight": (
        lambda q, k, v: (dd.softmax(q @ k.mT) @ v, dd.logsumexp(q @ k.mT, axis=-1)),
        [(2, 9, 8), (2, 30, 8), (2, 30, 8)],
        [2],
    ),
    "of_other_shapes": (
        lambda x, a, b: (dd.sum(x @ a, axis=1), x @ b, dd.max(x)),
        [(19, 33), (33, 5), (33, 5)],
        [2, 1, 1],
    ),
}
ADDS_ALONE = ("projections", "of_rows", "of_all", "by_element")  # the same bits, if in order


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("precision", ["fast", "strict"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_results_are_those_of_the_interpreter(name: str, precision: str, target: str) -> None:
    fn, shapes, results = PROGRAMS[name]
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(shape).astype(np.float32) for shape in shapes]
    graph = dd.trace(fn, *(dd.spec(shape) for shape in shapes))
    exe = dd.compile(graph, target=target, precision=precision)
    if (precision, target) == ("fast", "cpu"):
        assert [kernel.outputs for kernel in exe.kernels] == results
    found = exe.simulate(*arrays)
    exact = precision == "strict" and name in ADDS_ALONE
    expected = graph.interpret(*arrays) if exact else graph.interpret(*arrays, precision="high")
    for x, y in zip(found, expected, strict=True):
        if exact:
            np.testing.assert_array_equal(x, y)
        else:
            np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-5 * np.abs(y).max())


def test_an_axis_is_walked_once() -> None:
    fn, shapes, _ = PROGRAMS["of_rows"]
    exe = dd.compile(fn, *(dd.spec(shape) for shape in shapes))
    loops = [line for line in exe.ir("tile").splitlines() if "iter_args" in line]
    assert loops and all(line.count("vector<") >= 2 or line.count("f32") >= 2 for line in loops)


# --- which reductions share a loop ---------------------------------------------------------------

ROW, J, K = Axis("d0", 5), Axis("r0", 7), Axis("r1", 3)


def load(name: str, *axes: Axis) -> Term:
    shape = tuple(a.size for a in axes)
    return terms.load(name, tuple(map(of_axis, axes)), shape, dd.float32)


def together(*values: Term) -> set[frozenset[Term]]:
    root = terms.results([(value, 1) for value in values])
    return {frozenset(group) for group in joint(root).values()}


def test_what_is_over_one_axis_shares_a_loop() -> None:
    x, y = load("x", ROW, J), load("y", ROW, J)
    total, most = terms.reduction("sum", J, x * y), terms.reduction("max", J, x)
    assert together(total, most) == {frozenset({total, most})}


def test_what_needs_the_other_has_a_loop_of_its_own() -> None:
    x = load("x", ROW, J)
    most = terms.reduction("max", J, x)
    apart = terms.reduction("sum", J, x - most)
    assert together(most, apart) == {frozenset({most}), frozenset({apart})}
    assert together(apart * apart, most) == {frozenset({most}), frozenset({apart})}


def test_other_axes_have_other_loops() -> None:
    first = terms.reduction("sum", J, load("x", ROW, J))
    other = terms.reduction("sum", K, load("y", ROW, K))
    still = terms.reduction("sum", J, load("z", J))  # once for all rows
    assert together(first, other, still) == {frozenset({t}) for t in (first, other, still)}


def test_sums_inside_shared_loops_share_theirs() -> None:
    inner = [terms.reduction("sum", K, load(name, ROW, J, K)) for name in "ab"]
    outer = [terms.reduction("sum", J, x) for x in inner]
    assert together(*outer) == {frozenset(inner), frozenset(outer)}


@pytest.mark.parametrize("target", ["cpu", "cuda:sm_80"])
@pytest.mark.parametrize(
    "function",
    [
        lambda x: dd.softmax(x, axis=1),
        lambda x: dd.exp(x) + 1,
        lambda x: x.var(axis=0),
        lambda x: dd.sum(x, axis=1),
        lambda x: x @ x.T,
        lambda x: dd.reshape(x, (2, 2, 0)) * 2,
    ],
)
def test_no_elements(function, target):
    """An axis without places: nothing to store, or sums of nothing."""
    graph, x = dd.trace(function, dd.spec((4, 0))), np.zeros((4, 0), np.float32)
    found = dd.compile(graph, target=target).simulate(x)
    np.testing.assert_array_equal(found, graph.interpret(x))
