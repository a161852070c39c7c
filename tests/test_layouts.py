"""Operands in panels, buffers between kernels in another order, and one accumulator for sums of
sums: what is chosen when, and that the results stay right."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from itertools import permutations
from typing import Any

import dodeca as dd
import numpy as np
import pytest
from dodeca.fusion import assemble, candidates
from dodeca.passes import cost, layouts, terms
from dodeca.passes.index import Axis, of_axis
from dodeca.passes.layouts import Layouts
from dodeca.passes.loops import goes_on
from dodeca.passes.panels import Chosen, packed
from dodeca.passes.regions import Region
from dodeca.passes.schedule import Schedule
from dodeca.passes.terms import Term
from dodeca.pipeline import Clock, compile_kernels, simplified
from dodeca.runtime.device import find_target
from dodeca.runtime.executable import Executable
from mlir import ir

CPU = find_target("cpu")
F32 = dd.float32


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def load(name: str, *axes: Axis) -> Term:
    return terms.load(name, tuple(map(of_axis, axes)), tuple(a.size for a in axes), F32)


def product(m: int, k: int, n: int) -> Chosen:
    """The kernel of a matrix product without panels."""
    i, j, r = Axis("d0", m), Axis("d1", n), Axis("r0", k)
    term = terms.reduction("sum", r, load("a", i, r) * load("b", r, j))
    seconds, schedule = cost.cheapest(term, (i, j), CPU)
    return Chosen("c", (i, j), term, schedule, seconds, False)


# --- panels -------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(8, 8, 8), (64, 32, 64), (1, 768, 3072)])
def test_a_copy_that_does_not_pay_is_not_made(shape: tuple[int, int, int]) -> None:
    kernel = product(*shape)
    assert packed(kernel, frozenset(), CPU, False) == kernel


def test_a_large_operand_is_read_from_panels() -> None:
    kernel = product(1024, 1024, 1024)
    way = packed(kernel, frozenset(), CPU, False)
    (copy,) = way.copies
    assert way.total < kernel.seconds
    assert copy.reads == ["b"] and way.reads == [copy.name, "a"]
    width = copy.axes[-1].size
    assert [a.size for a in copy.axes] == [1024 // width, 1024, width]
    assert way.schedule.tile(way.axes[1]) == width


def test_a_weight_is_in_panels_for_nothing() -> None:
    kernel = product(128, 384, 1536)
    way = packed(kernel, frozenset({"b"}), CPU, False)
    (copy,) = way.copies
    assert copy.free and not copy.seconds
    assert way.total == way.seconds < kernel.seconds


@pytest.mark.parametrize("width", [1001, 12, 1])
def test_panels_are_whole(width: int) -> None:
    """An axis that no width divides has none."""
    kernel = product(512, 512, width)
    for copy in packed(kernel, frozenset({"b"}), CPU, False).copies:
        assert copy.reads == ["a"]


def test_a_gpu_has_no_panels() -> None:
    kernel, target = product(1024, 1024, 1024), find_target("cuda:sm_80")
    assert packed(kernel, frozenset({"b"}), target, False) == kernel


PRODUCTS: dict[str, tuple[Callable[..., Any], list[tuple[int, ...]], list[tuple[int, ...]]]] = {
    "of_inputs": (lambda x, y: x @ y, [(300, 512), (512, 528)], []),
    "transposed": (lambda x, y: x @ y.mT, [(300, 512), (528, 512)], []),
    "of_a_batch": (lambda x, y: x @ y, [(2, 160, 512), (2, 512, 320)], []),
    "with_a_weight": (lambda x, w, b: dd.gelu(x @ w.mT + b), [(37, 96)], [(160, 96), (160,)]),
    "one_row": (lambda x, w: x @ w.mT, [(1, 384)], [(320, 384)]),
    "weight_first": (lambda x, w: w @ x, [(96, 50)], [(160, 96)]),
    "two_of_one_weight": (lambda x, y, w: (x @ w, (y * 2) @ w), [(40, 96), (9, 96)], [(96, 64)]),
    "narrow": (lambda x, w: x @ w, [(64, 96)], [(96, 16)]),
    "computed_weight": (lambda x, w, v: x @ (w * v + 1), [(64, 96)], [(96, 48), (48,)]),
}


@pytest.mark.parametrize("precision", ["fast", "strict"])
@pytest.mark.parametrize("name", PRODUCTS)
def test_results_with_panels(name: str, precision: str) -> None:
    fn, inputs, weights = PRODUCTS[name]
    arrays = [normal(*shape, seed=i) for i, shape in enumerate(inputs)]
    known = [dd.asarray(normal(*shape, seed=9 + i)) for i, shape in enumerate(weights)]
    graph = dd.trace(lambda *given: fn(*given, *known), *(dd.spec(a.shape) for a in arrays))
    exe = dd.compile(graph, precision=precision)
    strict = precision == "strict" and name != "with_a_weight"
    for seed in range(2):
        if seed:  # what is not finite must come out where the formula has it
            arrays[0].flat[:: arrays[0].size // 3] = [np.inf, -np.inf, np.nan, 1e30][:4]
        found, exact = exe(*arrays), graph.interpret(*arrays, precision="high")
        own = graph.interpret(*arrays) if strict else exact
        for x, y in zip(*(v if isinstance(v, tuple) else (v,) for v in (found, own)), strict=True):
            if strict:
                np.testing.assert_array_equal(x, y)
            else:
                limit = 1e-5 * np.abs(y[np.isfinite(y)]).max(initial=1) if not seed else 1e26
                np.testing.assert_allclose(x, y.astype(np.float32), rtol=1e-5, atol=limit)


def test_weights_are_packed_before_any_call() -> None:
    w = dd.asarray(normal(1536, 384))
    exe = dd.compile(lambda x: x @ w.mT, dd.spec((128, 384)))
    assert len(exe.plan) == 1
    (panels,) = [b for b in exe.program.buffers if b.role == "prepared"]
    assert len(panels.shape) == 3 and np.prod(panels.shape) == 1536 * 384
    assert not [b for b in exe.program.buffers if b.role == "weight" and b.shape == panels.shape]


# --- the order of a buffer's dimensions ---------------------------------------------------------


def _moved_by_hand(name: str, order: tuple[int, ...], size: int) -> Chosen:
    i, j = Axis("d0", size), Axis("d1", 2 * size)
    term = load("x", j, i) * load("t", i, j)
    kernel = Chosen("y", (i, j), term, cost.cheapest(term, (i, j), CPU)[1], 1.0, False)
    return layouts._moved(kernel, ((name, order),), CPU, False)


def test_a_moved_kernel_reads_and_stores_in_the_other_order() -> None:
    i, j = Axis("d0", 5), Axis("d1", 10)
    assert _moved_by_hand("t", (1, 0), 5).term == load("x", j, i) * load("t", j, i)
    stored = _moved_by_hand("y", (1, 0), 5)
    e, f = Axis("d0", 10), Axis("d1", 5)
    assert stored.axes == (e, f)
    assert stored.term == load("x", e, f) * load("t", f, e)


CONVOLUTIONS = {
    "one": (lambda x, w: dd.conv2d(x, w, padding=1), [(1, 32, 14, 14)], [(32, 32, 3, 3)]),
    "strided": (
        lambda x, w: dd.conv2d(x, w, stride=2, padding=1),
        [(2, 16, 15, 13)],
        [(32, 16, 3, 3)],
    ),
    "two": (
        lambda x, w, v: dd.conv2d(dd.relu(dd.conv2d(x, w, padding=1)), v, padding=1),
        [(1, 16, 12, 12)],
        [(32, 16, 3, 3), (16, 32, 3, 3)],
    ),
    "inverted_bottleneck": (
        lambda x, w, d, v: x + dd.conv2d(
            dd.relu(dd.conv2d(dd.relu(dd.conv2d(x, w)), d, padding=1, groups=48)), v
        ),
        [(1, 16, 14, 14)],
        [(48, 16, 1, 1), (48, 1, 3, 3), (16, 48, 1, 1)],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions(name: str) -> None:
    fn, inputs, weights = CONVOLUTIONS[name]
    arrays = [normal(*shape, seed=i) for i, shape in enumerate(inputs)]
    known = [dd.asarray(normal(*shape, seed=9 + i)) for i, shape in enumerate(weights)]
    graph = dd.trace(lambda *given: fn(*given, *known), *(dd.spec(a.shape) for a in arrays))
    found, exact = dd.compile(graph)(*arrays), graph.interpret(*arrays, precision="high")
    np.testing.assert_allclose(found, exact, rtol=1e-5, atol=1e-5 * np.abs(exact).max())


def test_the_padded_image_has_its_channels_last() -> None:
    w = dd.asarray(normal(256, 256, 3, 3))
    exe = dd.compile(lambda x: dd.conv2d(x, w, padding=1), dd.spec((1, 256, 14, 14)))
    scratch = [b.shape for b in exe.program.buffers if b.role == "scratch"]
    assert scratch == [(1, 16, 16, 256)]
    assert exe(normal(1, 256, 14, 14)).shape == (1, 256, 14, 14)


def programs(fn: Callable[..., Any], *arrays: np.ndarray, count: int = 1) -> Any:
    """A graph, its simplified module and its best programs."""
    graph = dd.trace(fn, *(dd.spec(a.shape) for a in arrays))
    with graph.module.context, ir.Location.unknown():
        module = simplified(graph.module, Clock())
        return graph, module, candidates(module.operation, CPU, "fast", (), count)


def run(graph: dd.Graph, module: Any, chosen: Any, arrays: list[np.ndarray]) -> np.ndarray:
    with module.context, ir.Location.unknown():
        fused = assemble(module.operation, chosen)
    program = compile_kernels(fused.module, "", CPU, "fast", Clock(), {})
    return Executable(program, graph.weights)(*arrays)


def test_any_order_of_any_buffer_gives_the_same() -> None:
    w, v = (dd.asarray(normal(8, 8, 3, 3, seed=i)) for i in (1, 2))
    x = normal(1, 8, 6, 5)
    graph, module, (best,) = programs(lambda x: dd.conv2d(dd.exp(dd.conv2d(x, w, padding=1)), v), x)
    exact = graph.interpret(x, precision="high")
    returned = {r for region, _ in best.chosen[-1:] for r in region.outputs}
    plain: list[tuple[Region, list[Chosen]]] = best.chosen
    seen = 0
    for order in permutations(range(4)):
        found = Layouts(plain, returned, CPU, False)
        for buffer, (_, maker) in found.makers.items():
            if buffer not in returned and len(maker.axes) == 4:
                found.orders[buffer] = order
                seen += 1
        y = run(graph, module, found.kernels(), [x])
        np.testing.assert_allclose(y, exact, rtol=1e-4, atol=1e-4 * np.abs(exact).max())
    assert seen >= 24


def test_the_other_programs_have_the_orders_of_the_first_between_regions() -> None:
    weights = [dd.asarray(normal(32, 32, 3, 3, seed=i) / 17) for i in range(12)]

    def deep(x: Any) -> Any:
        for w in weights:
            x = dd.relu(dd.conv2d(x, w, padding=1)) + x
        return x

    x = normal(1, 32, 14, 14)
    graph, module, found = programs(deep, x, count=3)
    exact = graph.interpret(x, precision="high")
    for one in found:
        y = run(graph, module, one.chosen, [x])
        np.testing.assert_allclose(y, exact, rtol=1e-4, atol=1e-4 * np.abs(exact).max())
    first, rest = found[0].chosen[0], found[0].chosen[1:]
    assert len(found) > 1 and rest
    region, kernels = first
    outputs = {region.names[v] for v in region.outputs}
    (last,) = [kernel for kernel in kernels if kernel.name in outputs]
    assert [a.size for a in last.axes] == [1, 14, 14, 32]  # channels last, though not in the graph
    for other in found[1:]:  # a region of one with the rest of another
        y = run(graph, module, [other.chosen[0], *rest], [x])
        np.testing.assert_allclose(y, exact, rtol=1e-4, atol=1e-4 * np.abs(exact).max())


# --- squares that turn in registers -------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "int8", "bool"])
@pytest.mark.parametrize(
    ("vector", "row"), [(16, 4), (8, 8), (16, 8), (32, 2), (8, 1), (16, 6), (8, 16), (4, 4)]
)
def test_a_tile_is_stored_along_another_axis_than_its_vector(
    vector: int, row: int, dtype: str
) -> None:
    rng = np.random.default_rng(0)
    x = rng.integers(0, 2 if dtype == "bool" else 100, (48, 2, 32)).astype(dtype)
    graph = dd.trace(lambda x: dd.transpose(x, (2, 1, 0)), dd.spec(x.shape, dtype))
    with graph.module.context, ir.Location.unknown():
        module = simplified(graph.module, Clock())
        (best,) = candidates(module.operation, CPU, "fast", (), 1)
    (region, (kernel,)), *_ = best.chosen
    d0, _, d2 = kernel.axes
    for along, tiles in ((d0, (vector, 1, row)), (d2, (row, 1, vector))):
        names = tuple(a.name for a in kernel.axes)
        pairs = tuple(zip(names, tiles, strict=True))
        blocks = tuple((a.name, a.size) for a in kernel.axes)
        order = tuple(n for (n, t), (_, b) in zip(pairs, blocks, strict=True) if b > t)
        schedule = Schedule(along.name, pairs, blocks, order, 8)
        chosen = [(region, [replace(kernel, schedule=schedule)])]
        np.testing.assert_array_equal(run(graph, module, chosen, [x]), x.transpose(2, 1, 0))


# --- sums of sums -------------------------------------------------------------------------------

I, J, K = Axis("d0", 6), Axis("r0", 7), Axis("r1", 3)  # noqa: E741


def test_what_may_go_on_with_the_outer_total() -> None:
    x, y = load("x", I, J, K), load("y", I, J)
    inner = terms.reduction("sum", K, x)
    outer = terms.reduction("sum", J, inner)
    assert goes_on(outer, outer)
    scaled = terms.reduction("sum", J, inner * y)
    assert not goes_on(scaled, scaled)
    other = terms.reduction("max", J, inner)
    assert not goes_on(other, other)
    apart = terms.reduction("sum", J, terms.reduction("sum", K, load("z", I, K)))
    assert not goes_on(apart, apart)  # it is the same in each turn


def zeros_and_loops(fn: Callable[..., Any], precision: str) -> tuple[int, int]:
    """Accumulators that start at a constant, and loops that carry one."""
    exe = dd.compile(fn, dd.spec((6, 7, 3, 5)), precision=precision)
    starts = re.findall(r"iter_args\(%\w+ = (%\w+)\)", exe.ir("tile"))
    return sum(s.startswith("%cst") for s in starts), len(starts)


def test_a_sum_of_sums_has_one_accumulator() -> None:
    def nested(x: Any) -> Any:
        return dd.sum(dd.sum(dd.sum(x, axis=3), axis=2), axis=1)

    zeros, loops = zeros_and_loops(nested, "fast")
    assert loops >= 2 and zeros < loops
    zeros, loops = zeros_and_loops(nested, "strict")
    assert zeros == loops >= 2


@pytest.mark.parametrize("precision", ["fast", "strict"])
@pytest.mark.parametrize("op", [dd.sum, dd.max])
def test_folds_of_folds(op: Callable[..., Any], precision: str) -> None:
    x = normal(6, 7, 3, 5)
    x[0, 0] = -np.inf
    x[1, 2, 0, 0] = np.nan
    graph = dd.trace(lambda x: op(op(op(x, axis=3), axis=2), axis=1), dd.spec(x.shape))
    found, exact = dd.compile(graph, precision=precision)(x), graph.interpret(x)
    if precision == "strict" or op is dd.max:
        np.testing.assert_array_equal(found, exact)
    np.testing.assert_allclose(found, exact, rtol=1e-5, atol=1e-5)


# --- what the cost model sees -------------------------------------------------------------------


def seconds(term: Term, axes: tuple[Axis, ...], vector: Axis, width: int, rows: int = 1) -> float:
    tiles = tuple((a.name, width if a is vector else rows) for a in axes)
    blocks = tuple((a.name, a.size) for a in axes)
    order = tuple(a.name for a in axes)
    return cost.estimate(term, axes, Schedule(vector.name, tiles, blocks, order, 8), CPU)


def test_a_walk_from_page_to_page_costs_more_than_a_straight_one() -> None:
    i, j, r = Axis("d0", 64), Axis("d1", 1024), Axis("r0", 1024)
    far = terms.reduction("sum", r, load("a", i, r) * load("b", r, j))
    place = of_axis(j)
    index = (place // 16, of_axis(r), place % 16)
    near = terms.load("b", index, (64, 1024, 16), F32)
    straight = terms.reduction("sum", r, load("a", i, r) * near)
    assert seconds(far, (i, j), j, 16, 4) > 1.5 * seconds(straight, (i, j), j, 16, 4)


def test_one_accumulator_waits_for_itself() -> None:
    i, j, r = Axis("d0", 64), Axis("d1", 64), Axis("r0", 1024)
    term = terms.reduction("sum", r, load("a", i, r) * load("b", r, j))
    one, eight = seconds(term, (i, j), j, 8), seconds(term, (i, j), j, 8, 8)
    assert one > 3 * eight


def test_a_clamped_coordinate_costs() -> None:
    i, r = Axis("d0", 512), Axis("r0", 3)

    def windows(offset: int) -> Term:
        place = of_axis(i) + of_axis(r) + offset
        x = terms.load("x", (place,), (514,), F32)
        return terms.reduction("sum", r, x)

    assert seconds(windows(-1), (i,), i, 8) > 2 * seconds(windows(0), (i,), i, 8)


def test_many_numbers_are_loaded_for_more_elements_at_once() -> None:
    """A chain with more constants than registers has wider tiles; a short one does not."""

    def chain(length: int) -> Schedule:
        i = Axis("d0", 1 << 20)
        value = load("x", i)
        for n in range(length):
            value = value * load("x", i) + terms.constant(1.5 + n, F32)
        return cost.cheapest(value, (i,), CPU)[1]

    lanes = CPU.lanes(32)
    assert [size for _, size in chain(3).tiles] == [lanes]
    assert [size for _, size in chain(2 * CPU.registers).tiles] == [4 * lanes]
