"""Movement, indexing and reductions against numpy: hypothesis draws shapes, axes and indices.

Zero-size arrays come up by themselves: sizes are drawn from 0 to 4.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dodeca as dd
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

quick = settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)
Draw = st.DataObject
SHAPES = st.lists(st.integers(0, 4), min_size=0, max_size=4).map(tuple)


def run(function: Callable[..., Any], *arrays: Any) -> Any:
    return dd.trace(function, *arrays).interpret(*arrays)


def filled(shape: tuple[int, ...], kind: str = "float32") -> np.ndarray:
    """Different numbers everywhere, so that a misplaced element shows."""
    count = int(np.prod(shape, initial=1))
    return (np.arange(count) - count // 3).reshape(shape).astype(kind)


def same(function: Callable[..., Any], expected: np.ndarray, *arrays: np.ndarray) -> None:
    got = run(function, *arrays)
    assert got.shape == expected.shape
    np.testing.assert_array_equal(got, expected)


@quick
@given(SHAPES, st.data())
def test_permute_flip_and_squeeze(shape: tuple[int, ...], data: Draw) -> None:
    x = filled(shape)
    order = data.draw(st.permutations(range(len(shape))))
    same(lambda v: dd.permute_dims(v, order), x.transpose(order), x)
    same(lambda v: v.T, x.T, x)
    axes = tuple(data.draw(st.sets(st.sampled_from(range(len(shape)))))) if shape else ()
    same(lambda v: dd.flip(v, axes), np.flip(x, axes), x)
    same(lambda v: dd.squeeze(v), np.squeeze(x), x)
    same(lambda v: dd.expand_dims(v, (0, -1)), np.expand_dims(x, (0, -1)), x)
    if len(shape) > 1:
        same(lambda v: v.mT, np.swapaxes(x, -1, -2), x)
        same(lambda v: dd.tril(v, 1), np.tril(x, 1), x)
        same(lambda v: dd.triu(v, -1), np.triu(x, -1), x)


@quick
@given(st.lists(st.sampled_from([1, 2, 3, 4]), min_size=1, max_size=4), st.data())
def test_reshape_regroups_anything(sizes: list[int], data: Draw) -> None:
    x = filled(tuple(sizes))
    rest, wanted = x.size, []
    while rest > 1:
        step = data.draw(st.sampled_from([d for d in range(1, rest + 1) if rest % d == 0]))
        wanted.append(step)
        rest //= step
        if step == 1 and len(wanted) > 4:
            wanted.append(rest)
            break
    same(lambda v: v.reshape(wanted), x.reshape(wanted), x)
    same(lambda v: v.reshape(-1), x.reshape(-1), x)
    order = data.draw(st.permutations(range(len(sizes))))
    expected = x.transpose(order).reshape(wanted).reshape(sizes)
    same(lambda v: v.permute(order).reshape(wanted).reshape(sizes), expected, x)


def test_chains_of_movement_are_one_view() -> None:
    graph = dd.trace(
        lambda x: x.reshape(2, 3, 4, 5).permute(0, 2, 1, 3)[:, ::-1, 1:, None].mT.reshape(2, 4, 10),
        dd.spec((2, 12, 5)),
    )
    assert str(graph).count("dodeca.contiguous") == 1
    back = dd.trace(lambda x: x.reshape(6, 4).reshape(2, 3, 4), dd.spec((2, 3, 4)))
    assert '"dodeca.' not in str(back)


@quick
@given(SHAPES, st.data())
def test_pad_roll_repeat_tile(shape: tuple[int, ...], data: Draw) -> None:
    x = filled(shape)
    widths = [data.draw(st.tuples(st.integers(0, 2), st.integers(0, 2))) for _ in shape]
    if shape:
        same(lambda v: dd.pad(v, widths, 9), np.pad(x, widths, constant_values=9), x)
        axis = data.draw(st.integers(-len(shape), len(shape) - 1))
        shift = data.draw(st.integers(-5, 5))
        same(lambda v: dd.roll(v, shift, axis), np.roll(x, shift, axis), x)
        same(lambda v: dd.repeat(v, 3, axis), np.repeat(x, 3, axis), x)
    same(lambda v: dd.roll(v, 2), np.roll(x, 2), x)
    counts = data.draw(st.lists(st.integers(0, 3), min_size=1, max_size=3))
    same(lambda v: dd.tile(v, counts), np.tile(x, counts), x)


@quick
@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=5),
    st.integers(0, 2),
    st.sampled_from(["float32", "bool", "uint8"]),
)
def test_concat_stack_split(lengths: list[int], axis: int, kind: str) -> None:
    arrays = [filled((*(2, 3, 4)[:axis], n, *(2, 3, 4)[axis + 1 :]), kind) for n in lengths]
    same(lambda *v: dd.concat(v, axis), np.concatenate(arrays, axis), *arrays)
    equal = [filled((2, 3), kind) + np.array(i, kind) for i in range(len(lengths))]
    same(lambda *v: dd.stack(v, axis), np.stack(equal, axis), *equal)
    x = filled((6, 4), kind)
    parts = dd.trace(lambda v: dd.split(v, 3), x).interpret(x)
    assert isinstance(parts, tuple)
    np.testing.assert_array_equal(parts, np.split(x, 3))
    pieces = dd.trace(lambda v: dd.split(v, [1, 3], axis=1), x).interpret(x)
    for got, expected in zip(pieces, np.split(x, [1, 3], axis=1), strict=True):
        np.testing.assert_array_equal(got, expected)
    np.testing.assert_array_equal(dd.trace(lambda v: [*v], x).interpret(x), x)


def basic_index(size: int) -> st.SearchStrategy[Any]:
    bound = st.one_of(st.none(), st.integers(-size - 1, size + 1))
    slices = st.builds(
        slice, bound, bound, st.one_of(st.none(), st.sampled_from([1, 2, 3, -1, -2]))
    )
    return slices if size == 0 else st.one_of(slices, st.integers(-size, size - 1))


@quick
@given(SHAPES, st.data())
def test_basic_indexing(shape: tuple[int, ...], data: Draw) -> None:
    x = filled(shape)
    used = data.draw(st.integers(0, len(shape)))
    key: list[Any] = [data.draw(basic_index(size)) for size in shape[:used]]
    if data.draw(st.booleans()):
        key.insert(data.draw(st.integers(0, len(key))), None)
    if data.draw(st.booleans()):
        key.append(...)
    same(lambda v: v[tuple(key)], x[tuple(key)], x)


@quick
@given(st.data())
def test_advanced_indexing(data: Draw) -> None:
    shape = (3, 4, 2, 5)
    x = filled(shape)
    few = data.draw(st.lists(st.integers(0, 3), min_size=1, max_size=4, unique=True))
    grid = data.draw(st.sampled_from([(), (3,), (2, 3), (1, 3)]))
    tensors: dict[int, np.ndarray] = {}
    key: list[Any] = []
    for axis, size in enumerate(shape):
        if axis in few:
            kind = data.draw(st.sampled_from(["int64", "int32", "int8"]))
            values = data.draw(st.lists(st.integers(-size, size - 1), min_size=6, max_size=6))
            array = np.array(values).astype(kind)[: int(np.prod(grid, initial=1))].reshape(grid)
            tensors[len(key)] = array
            key.append(array)
        else:
            key.append(data.draw(basic_index(size)))
        if data.draw(st.integers(0, 5)) == 0:
            key.append(None)

    def read(v: dd.Tensor, *given: dd.Tensor) -> dd.Tensor:
        filled_in = list(key)
        for position, tensor in zip(tensors, given, strict=True):
            filled_in[position] = tensor
        return v[tuple(filled_in)]

    same(read, x[tuple(key)], x, *tensors.values())


def test_an_index_out_of_range_reads_zero() -> None:
    x, ids = filled((3, 2)) + 10, np.array([0, 3, -4, -1])
    expected = np.stack([x[0], 0 * x[0], 0 * x[0], x[2]])
    same(lambda v, i: dd.take(v, i, axis=0), expected, x, ids)
    three = [np.array([0, 5]), np.array([1, 0]), np.array([0, 0])]
    cube = filled((2, 2, 2)) + 10
    same(lambda v, a, b, c: v[a, b, c], np.array([cube[0, 1, 0], 0]), cube, *three)


@quick
@given(st.data())
def test_take_gather_embedding(data: Draw) -> None:
    x = filled((3, 4, 2))
    axis = data.draw(st.integers(-3, 2))
    size = x.shape[axis]
    ids = np.array(data.draw(st.lists(st.integers(-size, size - 1), min_size=6, max_size=6)))
    same(
        lambda v, i: dd.take(v, i, axis), np.take(x, ids.reshape(2, 3), axis), x, ids.reshape(2, 3)
    )
    shape = [1, 1, 1]
    shape[axis] = 6
    along = np.broadcast_to(
        ids.reshape(shape), [6 if n == 6 else m for n, m in zip(shape, x.shape, strict=True)]
    )
    same(
        lambda v, i: dd.gather(v, i, axis),
        np.take_along_axis(x, along, axis),
        x,
        ids.reshape(shape),
    )
    table = filled((5, 3))
    some = np.array([[0, 4], [2, 2]], np.uint8)
    same(dd.embedding, table[some], table, some)
    same(lambda i: dd.one_hot(i, 5), np.eye(5, dtype=np.float32)[some], some)


@quick
@given(SHAPES, SHAPES, st.data())
def test_broadcasting(a: tuple[int, ...], b: tuple[int, ...], data: Draw) -> None:
    x, y = filled(a), filled(b)
    try:
        shape = np.broadcast_shapes(a, b)
    except ValueError:
        with pytest.raises(dd.ShapeError, match=r"add: shapes .* do not broadcast"):
            dd.trace(dd.add, x, y)
        return
    same(dd.add, x + y, x, y)
    same(lambda c, v, w: dd.where(c, v, w), np.where(x > 0, x, y), x > 0, x, y)
    same(lambda v: dd.broadcast_to(v, shape), np.broadcast_to(x, shape), x)


REDUCTIONS = {
    "sum": (
        np.sum,
        [
            "float32",
            "float16",
            "bfloat16",
            "float64",
            "int8",
            "uint8",
            "int16",
            "int32",
            "int64",
            "bool",
        ],
    ),
    "prod": (np.prod, ["float32", "int8", "int64", "bool"]),
    "max": (np.max, ["float32", "bfloat16", "int8", "uint8", "int64", "bool"]),
    "min": (np.min, ["float32", "float16", "int8", "uint8", "int64", "bool"]),
    "mean": (np.mean, ["float32", "float16", "bfloat16", "float64", "int32", "bool"]),
    "var": (np.var, ["float32", "float16", "float64"]),
    "std": (np.std, ["float32", "float64"]),
    "any": (np.any, ["float32", "int8", "bool"]),
    "all": (np.all, ["float32", "int8", "bool"]),
}
CASES = [(name, kind) for name, (_, kinds) in REDUCTIONS.items() for kind in kinds]


@pytest.mark.parametrize(("name", "kind"), CASES)
@settings(quick, max_examples=8)
@given(st.lists(st.integers(0, 4), min_size=0, max_size=3).map(tuple), st.data())
def test_reductions(name: str, kind: str, shape: tuple[int, ...], data: Draw) -> None:
    reference = REDUCTIONS[name][0]
    element = dd.dtype(kind)
    x = (filled(shape) % 7 - 2).astype(element.numpy)
    if element.is_float and x.size and data.draw(st.booleans()):
        x.reshape(-1)[data.draw(st.integers(0, x.size - 1))] = data.draw(
            st.sampled_from([np.nan, np.inf, -np.inf])
        )
    axes = data.draw(
        st.one_of(st.none(), st.sets(st.sampled_from(range(len(shape))))) if shape else st.none()
    )
    axis = None if axes is None else tuple(axes)
    keep = data.draw(st.booleans())
    empty = 0 in [shape[i] for i in (range(len(shape)) if axis is None else axis)]
    if empty and name in ("max", "min"):
        return
    wide = x.astype(np.float64) if element.is_float else x
    with np.errstate(all="ignore"):
        expected = (
            np.asarray(reference(wide, axis=axis, keepdims=keep))
            if not empty or name not in ("mean", "var", "std")
            else np.full(np.sum(wide, axis=axis, keepdims=keep).shape, np.nan)
        )
    got = run(lambda v: getattr(dd, name)(v, axis=axis, keepdims=keep), x)
    assert got.shape == expected.shape
    kinds = {"any": "bool", "all": "bool", "max": kind, "min": kind}
    wanted = kinds.get(name, kind if element.is_float else "float32" if name == "mean" else "int64")
    assert got.dtype == dd.dtype(wanted).numpy
    eps = (
        float(np.finfo(np.float32).eps) * 4
        if kind == "float32"
        else 1e-2
        if element.bits == 16
        else 1e-6
    )
    if element.is_float or name == "mean":
        np.testing.assert_allclose(got.astype(np.float64), expected, rtol=eps, atol=eps)
    else:
        np.testing.assert_array_equal(got, expected)


@quick
@given(st.lists(st.integers(1, 4), min_size=1, max_size=3).map(tuple), st.data())
def test_positions(shape: tuple[int, ...], data: Draw) -> None:
    size = int(np.prod(shape))
    numbers = st.sampled_from([0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan])
    x = np.array(data.draw(st.lists(numbers, min_size=size, max_size=size)), np.float32).reshape(
        shape
    )
    axis = data.draw(st.one_of(st.none(), st.integers(-len(shape), len(shape) - 1)))
    for name in ("argmax", "argmin"):
        keep = data.draw(st.booleans())
        expected = np.asarray(getattr(np, name)(x, axis=axis, keepdims=keep))
        same(lambda v, f=name, k=keep: getattr(dd, f)(v, axis=axis, keepdims=k), expected, x)
    whole = np.nan_to_num(x, posinf=3, neginf=-3).astype(np.int8)
    same(lambda v: dd.argmin(v, axis=axis), np.asarray(np.argmin(whole, axis=axis)), whole)


@quick
@given(st.lists(st.integers(1, 5), min_size=1, max_size=3).map(tuple), st.data())
def test_sorting(shape: tuple[int, ...], data: Draw) -> None:
    size = int(np.prod(shape))
    numbers = st.sampled_from([0.0, 1.0, 1.0, -1.0, 2.0, np.inf, -np.inf, np.nan])
    x = np.array(data.draw(st.lists(numbers, min_size=size, max_size=size)), np.float32).reshape(
        shape
    )
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    same(lambda v: dd.sort(v, axis), np.sort(x, axis), x)
    same(lambda v: dd.argsort(v, axis), np.argsort(x, axis, stable=True), x)
    whole = np.nan_to_num(x, nan=7, posinf=3, neginf=-3).astype(np.int8)
    same(lambda v: dd.sort(v, axis), np.sort(whole, axis), whole)
    down = np.argsort(-x, axis, stable=True)
    same(lambda v: dd.argsort(v, axis, descending=True), down, x)
    k = data.draw(st.integers(0, shape[axis]))
    values, order = run(lambda v: dd.topk(v, k, axis), x)
    np.testing.assert_array_equal(order, np.take(down, np.arange(k), axis))
    np.testing.assert_array_equal(values, np.take_along_axis(x, order, axis))


@pytest.mark.parametrize("size", [0, 1, 7, 513, 700])
@pytest.mark.parametrize("kind", ["float32", "float16", "int8", "bool"])
def test_running_sums(size: int, kind: str) -> None:
    x = (filled((2, size)) % 5 - 1).astype(kind)
    wanted = kind if kind.startswith("float") else "int64"
    same(lambda v: dd.cumulative_sum(v, 1), np.cumsum(x, 1, dtype=wanted), x)
    same(lambda v: dd.cumsum(v, 0), np.cumsum(x, 0, dtype=wanted), x)
    with_zero = np.concatenate([np.zeros((2, 1), wanted), np.cumsum(x, 1, dtype=wanted)], 1)
    same(lambda v: dd.cumulative_sum(v, 1, include_initial=True), with_zero, x)


def test_running_sums_keep_infinities_where_they_are() -> None:
    x = np.array([1, np.inf, 2, -np.inf, 3], np.float32)
    with np.errstate(all="ignore"):
        same(lambda v: dd.cumulative_sum(v), np.cumsum(x), x)


def test_creation() -> None:
    def value(tensor: dd.Tensor) -> np.ndarray:
        return dd.trace(lambda: tensor).interpret()

    for arguments in [(5,), (2, 9), (9, 1, -3), (1, 1), (0, 10, 3)]:
        got = value(dd.arange(*arguments))
        np.testing.assert_array_equal(got, np.arange(*arguments))
        assert got.dtype == np.int64
    np.testing.assert_array_equal(
        value(dd.arange(0.0, 1.0, 0.1)), np.arange(0, 1, 0.1).astype(np.float32)
    )
    for n in (0, 1, 7):
        np.testing.assert_array_equal(
            value(dd.linspace(0.1, 2.3, n)), np.linspace(0.1, 2.3, n).astype(np.float32)
        )
    np.testing.assert_array_equal(value(dd.linspace(0, 1, 4, endpoint=False)), [0, 0.25, 0.5, 0.75])
    for k in (-1, 0, 2):
        np.testing.assert_array_equal(value(dd.eye(3, 4, k)), np.eye(3, 4, k))
    np.testing.assert_array_equal(value(dd.full((2, 2), 7)), np.full((2, 2), 7))
    assert value(dd.zeros((0, 3))).shape == (0, 3)
    assert value(dd.ones(3, "int8")).dtype == np.int8
    assert dd.full_like(dd.zeros(3, "int8"), 2).dtype == dd.int8
    xs, ys = dd.meshgrid(dd.arange(3), dd.arange(2))
    np.testing.assert_array_equal(
        np.stack([value(xs), value(ys)]), np.meshgrid(np.arange(3), np.arange(2))
    )


def test_prod_of_longer_axes_and_average_of_empty_rows() -> None:
    x = filled((3, 37)) % 5 + 1
    np.testing.assert_allclose(
        run(lambda v: dd.prod(v, 1), x), x.astype(np.float64).prod(1), rtol=1e-6
    )
    np.testing.assert_array_equal(run(lambda v: dd.var(v, 0, correction=3), x), np.full(37, np.inf))
