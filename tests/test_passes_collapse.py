"""Axes that lie next to each other in every buffer become one; others do not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dodeca as dd
import numpy as np
import pytest
from dodeca.dialect.errors import CompileError
from dodeca.fusion import fuse, schedule_attribute
from dodeca.passes import cost, terms
from dodeca.passes.collapse import forms, shaped
from dodeca.passes.index import Axis, Expr, of_axis, of_term
from dodeca.passes.schedule import Schedule
from dodeca.passes.terms import Term
from dodeca.passes.tile import read_kernel
from dodeca.pipeline import Clock, compile_kernels, simplified
from dodeca.runtime.device import find_target
from dodeca.runtime.executable import Executable
from dodeca.schedule_attribute import SCHEDULE, read_schedule
from mlir import ir

CPU = find_target("cpu")
F32 = dd.float32
Y, X, C, R = Axis("d0", 7), Axis("d1", 5), Axis("d2", 64), Axis("r0", 32)
R0 = Expr(0)
XC, YX, ALL = Axis("d2", 320), Axis("d1", 35), Axis("d2", 2240)


def collapsed(term: Term, axes: tuple[Axis, ...]) -> tuple[Term, tuple[Axis, ...]]:
    return forms(term, axes)[0]


def load(name: str, *places: Axis | Expr, shape: tuple[int, ...] | None = None) -> Term:
    index = tuple(of_axis(p) if isinstance(p, Axis) else p for p in places)
    return terms.load(
        name, index, shape or tuple(p.size for p in places if isinstance(p, Axis)), F32
    )


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


PRODUCT = terms.reduction("sum", R, load("x", Y, X, R) * load("w", R, C))
ONE = {
    "an image times weights": (PRODUCT, (YX, C)),
    "and a bias for each channel": (PRODUCT + load("b", C), (YX, C)),
    "and another image": (PRODUCT + load("z", Y, X, C), (YX, C)),
    "element by element": (load("x", Y, X, C) + load("y", Y, X, C), (ALL,)),
    "with a number": (load("x", Y, X, C) * terms.constant(2, F32), (ALL,)),
    "a channel's number": (load("x", Y, X, C) * load("b", C), (YX, C)),
    "the first of longer rows": (load("x", Y, X, C, shape=(9, 5, 64)), (ALL,)),
    "a row's number": (load("x", Y, X, C) * load("b", Y), (Y, XC)),
    "the image inside another buffer": (load("x", Expr(1), Y, X, C, shape=(2, 7, 5, 64)), (ALL,)),
}
IMAGE = load("x", Y, X, C)
APART = {
    "turned": (load("x", X, Y, C), (Y, X, C)),
    "a part of a row": (load("x", Y, X, C, shape=(7, 9, 64)), (Y, XC)),
    "a part of two": (load("x", Y, X, C, shape=(7, 9, 70)), (Y, X, C)),
    "moved": (load("x", of_axis(Y) + 1, X, C, shape=(8, 5, 64)), (Y, XC)),
    "a window": (
        terms.reduction("sum", R, load("x", Y, of_axis(X) + of_axis(R), C, shape=(7, 36, 64))),
        (Y, X, C),
    ),
    "by its position": (load("x", Y, X, C) * terms.index(of_axis(Y), F32), (Y, XC)),
    "one buffer in two ways": (IMAGE * load("x", Y, R0, C, shape=(7, 5, 64)), (Y, X, C)),
    "its first pixel too": (IMAGE * load("x", R0, R0, C, shape=(7, 5, 64)), (Y, X, C)),
    "a difference of neighbours": (
        load("x", Y, X, C) + load("x", Expr(6) - of_axis(Y), X, C, shape=(7, 5, 64)),
        (Y, XC),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", [*ONE, *APART])
def test_axes(name: str) -> None:
    term, expected = (ONE | APART)[name]
    found, axes = collapsed(term, (Y, X, C))
    assert axes == expected
    assert found.axes <= {*axes}
    assert collapsed(found, axes) == (found, axes)
    assert shaped(term, (Y, X, C), tuple(a.name for a in axes)) == (found, axes)


HIGH, WIDE, DEEP = Axis("d0", 7), Axis("d1", 7), Axis("d2", 512)
DOWN, ALONG, K = Axis("r0", 3), Axis("r1", 3), Axis("r2", 512)


def windows(size: int) -> Term:
    """A convolution of an image with a border of `size` places more."""
    index = (of_axis(HIGH) + of_axis(DOWN), of_axis(WIDE) + of_axis(ALONG), of_axis(K))
    image = terms.load("x", index, (7 + size, 7 + size, 512), F32)
    body = image * load("w", DOWN, ALONG, K, DEEP)
    for axis in (K, ALONG, DOWN):
        body = terms.reduction("sum", axis, body)
    return body


def test_windows_of_short_rows() -> None:
    """The places of an image are one axis, if it pays, though the loads need its two."""
    axes = (HIGH, WIDE, DEEP)
    (_, apart), (term, one) = forms(windows(2), axes)
    assert apart == axes and one == (Axis("d1", 49), DEEP)
    (loaded,) = [t for t in terms.postorder([term]) if t.op == "load" and t.attr[0] == "x"]
    assert not loaded.outside and loaded.axes == {one[0], DOWN, ALONG, K}
    assert cost.cheapest(windows(2), axes, CPU)[1].names == ("d1", "d2")
    with pytest.raises(CompileError, match="no form of a kernel over d0, d2 has the axes d0"):
        shaped(windows(2), axes, ("d0",))


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("size", [5, 7, 14])
def test_convolutions_of_small_images(size: int, stride: int) -> None:
    x, w = normal(1, 16, size, size), dd.asarray(normal(40, 16, 3, 3, seed=1) / 12)
    graph = dd.trace(lambda x: dd.conv2d(x, w, padding=1, stride=stride), dd.spec(x.shape))
    exact = graph.interpret(x, precision="high")
    exe = dd.compile(graph)
    np.testing.assert_allclose(exe(x), exact, rtol=1e-4, atol=1e-5)


def test_a_condition_on_data_is_no_place() -> None:
    """What a choice reads is moved with the rest."""
    x = load("x", Y, X, C)
    below = terms.apply("less_than", x, terms.constant(0, F32))
    chosen = terms.select(terms.nonneg(of_term(below) * -1), load("y", Y, X, C), x)
    found, axes = collapsed(chosen, (Y, X, C))
    assert axes == (ALL,)
    assert all(t.axes <= {ALL} for t in terms.postorder([found]))


def test_results_over_fewer_axes() -> None:
    """Two axes become one if each result has both or none."""
    inner = terms.reduction("sum", R, load("v", Y, X, R))
    both = terms.results([(PRODUCT, 3), (inner, 2)])
    found, axes = collapsed(both, (Y, X, C))
    assert axes == (YX, C)
    assert [rank for _, rank in terms.outcomes(found, 2)] == [2, 1]
    one = terms.results([(PRODUCT, 3), (terms.constant(1, F32), 1)])
    assert collapsed(one, (Y, X, C))[1] == (Y, X, C)


def test_rows_of_a_small_image_fill_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """49 places are 9 tiles of 6; 7 rows of 7 would be 14."""
    high, wide, k, c = Axis("d0", 7), Axis("d1", 7), Axis("r0", 192), Axis("d2", 1152)
    term = terms.reduction("sum", k, load("x", high, wide, k) * load("w", k, c))
    cost.cheapest.cache_clear()
    seconds, schedule = cost.cheapest(term, (high, wide, c), CPU)
    assert [name for name, _ in schedule.tiles] == ["d1", "d2"]
    assert seconds == cost.estimate(*collapsed(term, (high, wide, c)), schedule, CPU)
    cost.cheapest.cache_clear()
    monkeypatch.setattr(cost, "forms", lambda *kernel: (kernel,))
    assert seconds < 0.8 * cost.cheapest(term, (high, wide, c), CPU)[0]
    cost.cheapest.cache_clear()


FUNCTIONS: dict[str, tuple[Callable[..., Any], tuple[np.ndarray, ...]]] = {
    "product": (lambda x, w: x @ w, (normal(7, 7, 40), normal(40, 24, seed=1))),
    "product, bias, choice": (
        lambda x, w, b: dd.relu(x @ w + b),
        (normal(3, 5, 7, 40), normal(40, 24, seed=1), normal(24, seed=2)),
    ),
    "batches": (lambda x, y: x @ y, (normal(3, 4, 9, 16), normal(3, 4, 16, 11, seed=1))),
    "elements": (lambda x, y: dd.exp(x) * y + 1.0, (normal(5, 3, 7), normal(5, 3, 7, seed=1))),
    "rows": (lambda x, y: x * y[:, None, None], (normal(5, 3, 7), normal(5, seed=1))),
    "sums": (lambda x: dd.sum(x, axis=-1), (normal(5, 3, 70),)),
    "a turned image": (lambda x: dd.transpose(x, (1, 2, 0)) + 1.0, (normal(5, 3, 9),)),
    "shares": (lambda x: dd.softmax(x, axis=-1), (normal(2, 3, 4, 33),)),
}


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("precision", ["fast", "strict"])
def test_results(name: str, precision: str) -> None:
    function, arrays = FUNCTIONS[name]
    graph = dd.trace(function, *(dd.spec(a.shape) for a in arrays))
    exact = graph.interpret(*arrays, precision="high")
    found = dd.compile(graph, precision=precision)(*arrays)
    np.testing.assert_allclose(found, exact, rtol=2e-5, atol=2e-5)


def test_a_schedule_by_hand_may_leave_axes_apart() -> None:
    """It names all axes of the result; the kernel is read as it says."""
    w, x = normal(16, 8), normal(7, 5, 16)
    graph = dd.trace(lambda x: x @ w, dd.spec(x.shape))
    with graph.module.context, ir.Location.unknown():
        fused = fuse(simplified(graph.module, Clock()).operation, CPU, "fast")
        function = list(fused.module.body.operations)[-1].operation
        kernel = read_kernel(function)
        chosen = read_schedule(function.attributes[SCHEDULE], kernel.axes)
        assert chosen.names == ("d1", "d2")
        sizes = (("d0", 7), ("d1", 5), ("d2", 8))
        tiles = (("d0", 1), ("d1", 2), ("d2", 8))
        own = Schedule("d2", tiles, sizes, ("d0", "d1"), 8)
        function.attributes[SCHEDULE] = schedule_attribute(own)
        assert read_schedule(function.attributes[SCHEDULE], kernel.axes) == own
        program = compile_kernels(fused.module, "", CPU, "fast", Clock(), {})
    found = Executable(program, graph.weights)(x)
    np.testing.assert_allclose(found, x @ w, rtol=1e-5, atol=1e-5)
