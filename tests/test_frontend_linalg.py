"""Products, convolutions, normalisations: against numpy in float64."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import dodeca as dd
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

quick = settings(max_examples=25, deadline=None, derandomize=True)
RNG = np.random.default_rng(11)


def run(function: Callable[..., Any], *arrays: Any) -> Any:
    given_arrays = [np.asarray(a) for a in arrays]
    return dd.trace(function, *given_arrays).interpret(*given_arrays)


def normal(*shape: int, kind: str = "float32") -> np.ndarray:
    return RNG.standard_normal(shape).astype(dd.dtype(kind).numpy)


def whole(*shape: int, kind: str = "int64") -> np.ndarray:
    return RNG.integers(-5, 6, shape).astype(kind)


@quick
@given(
    st.sampled_from([(), (2,), (3, 1), (3, 2)]),
    st.sampled_from([(), (2,), (3, 2), (1, 2)]),
    st.tuples(st.integers(0, 3), st.integers(0, 4), st.integers(0, 3)),
    st.booleans(),
    st.booleans(),
)
def test_matmul(a: Any, b: Any, sizes: tuple[int, int, int], row: bool, column: bool) -> None:
    m, k, n = sizes
    x = whole(*a, m, k) if not row else whole(k)
    y = whole(*b, k, n) if not column else whole(k)
    expected = np.asarray(x @ y)
    got = run(lambda u, v: u @ v, x, y)
    assert got.shape == expected.shape
    np.testing.assert_array_equal(got, expected)


def test_matmul_is_two_views_a_product_and_a_sum() -> None:
    graph = dd.trace(dd.matmul, dd.spec((8, 2, 3)), dd.spec((3, 4)))
    names = [line.split('"')[1] for line in str(graph).splitlines() if '"dodeca.' in line]
    assert names == ["dodeca.contiguous", "dodeca.contiguous", "dodeca.mul", "dodeca.sum_reduce"]
    assert "axis = 3" in str(graph)


@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
def test_narrow_products_are_rounded_once(kind: str) -> None:
    x, y = normal(3, 64, kind=kind), normal(64, 2, kind=kind)
    wide = x.astype(np.float64) @ y.astype(np.float64)
    step = float(dd.dtype(kind).numpy.type(1)) * 2.0 ** (-10 if kind == "float16" else -7)
    np.testing.assert_allclose(run(dd.matmul, x, y).astype(np.float64), wide, rtol=step, atol=1e-5)


def test_matmul_of_bools_and_small_integers() -> None:
    x, y = RNG.random((3, 4)) > 0.5, RNG.random((4, 2)) > 0.5
    np.testing.assert_array_equal(run(dd.matmul, x, y), x @ y)
    a, b = whole(3, 40, kind="int8"), whole(40, 2, kind="int8")
    np.testing.assert_array_equal(run(dd.matmul, a, b), a @ b)


EINSUMS = [
    ("ij,jk->ik", [(2, 3), (3, 4)]),
    ("ij,jk", [(2, 3), (3, 4)]),
    ("ji,kj", [(2, 3), (3, 2)]),
    ("bhqd,bhkd->bhqk", [(2, 2, 3, 4), (2, 2, 5, 4)]),
    ("ii", [(3, 3)]),
    ("ii->i", [(3, 3)]),
    ("iij->ji", [(3, 3, 2)]),
    ("ij->", [(2, 3)]),
    ("ij->ji", [(2, 3)]),
    ("...ij,...jk->...ik", [(2, 1, 2, 3), (4, 3, 2)]),
    ("...i,i...->...", [(2, 3), (3, 2)]),
    ("i...->...", [(2, 3, 4)]),
    ("...", [(2, 3)]),
    ("i,j,k->ijk", [(2,), (3,), (4,)]),
    ("ij,jk,kl->il", [(2, 3), (3, 4), (4, 2)]),
    ("ij,k->", [(2, 3), (4,)]),
    ("ij,jk->k", [(2, 3), (3, 4)]),
    ("a,a,a->a", [(3,), (3,), (3,)]),
    ("ab,ab->ab", [(1, 3), (2, 3)]),
    ("ii,jj->ij", [(2, 2), (3, 3)]),
]


@pytest.mark.parametrize(("subscripts", "shapes"), EINSUMS)
def test_einsum(subscripts: str, shapes: list[tuple[int, ...]]) -> None:
    arrays = [whole(*shape) for shape in shapes]
    expected = np.einsum(subscripts, *arrays)
    got = run(lambda *v: dd.einsum(subscripts, *v), *arrays)
    assert got.shape == expected.shape
    np.testing.assert_array_equal(got, expected)


def test_tensordot_outer_vecdot() -> None:
    x, y = whole(2, 3, 4), whole(3, 4, 5)
    np.testing.assert_array_equal(run(dd.tensordot, x, y), np.tensordot(x, y))
    swapped = ([2, 1], [1, 0])
    np.testing.assert_array_equal(
        run(lambda u, v: dd.tensordot(u, v, swapped), x, y), np.tensordot(x, y, swapped)
    )
    np.testing.assert_array_equal(
        run(lambda u, v: dd.tensordot(u, v, 0), x[0], y[0]), np.tensordot(x[0], y[0], 0)
    )
    np.testing.assert_array_equal(run(dd.outer, x[0], y[0]), np.outer(x[0], y[0]))
    np.testing.assert_array_equal(run(dd.vecdot, x, x[0]), np.vecdot(x, x[0]))


# --- convolution --------------------------------------------------------------------------------


def windows(
    x: np.ndarray, size: Any, stride: Any, padding: Any, dilation: Any, fill: float
) -> np.ndarray:
    """(n, c, y, x, i, j) by slicing a padded copy."""
    pads = [(0, 0), (0, 0), (padding[0],) * 2, (padding[1],) * 2]
    padded = np.pad(x, pads, constant_values=fill)
    spans = [dilation[i] * (size[i] - 1) + 1 for i in range(2)]
    view = np.lib.stride_tricks.sliding_window_view(padded, spans, axis=(2, 3))
    return view[:, :, :: stride[0], :: stride[1], :: dilation[0], :: dilation[1]]


@quick
@given(
    st.tuples(st.integers(1, 3), st.integers(1, 3)),
    st.tuples(st.integers(1, 2), st.integers(1, 3)),
    st.tuples(st.integers(0, 2), st.integers(0, 1)),
    st.tuples(st.integers(1, 2), st.integers(1, 2)),
    st.sampled_from([1, 2, 4]),
)
def test_conv2d(size: Any, stride: Any, padding: Any, dilation: Any, groups: int) -> None:
    x, w, b = normal(2, 4, 7, 6), normal(8, 4 // groups, *size), normal(8)
    read = windows(x.astype(np.float64), size, stride, padding, dilation, 0)
    read = read.reshape(2, groups, 4 // groups, *read.shape[2:])
    kernel = w.reshape(groups, 8 // groups, 4 // groups, *size).astype(np.float64)
    expected = np.einsum("ngcyxij,gocij->ngoyx", read, kernel)
    expected = expected.reshape(2, 8, *expected.shape[3:]) + b[:, None, None]
    got = run(lambda u, v, o: dd.conv2d(u, v, o, stride, padding, dilation, groups), x, w, b)
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)


@quick
@given(
    st.tuples(st.integers(1, 3), st.integers(1, 3)),
    st.tuples(st.integers(1, 2), st.integers(1, 3)),
    st.tuples(st.integers(0, 1), st.integers(0, 1)),
)
def test_pooling(size: Any, stride: Any, padding: Any) -> None:
    x = normal(2, 3, 7, 6)
    low = windows(x, size, stride, padding, (1, 1), -np.inf).max((-1, -2))
    np.testing.assert_array_equal(run(lambda v: dd.max_pool2d(v, size, stride, padding), x), low)
    mean = windows(x, size, stride, padding, (1, 1), 0).mean((-1, -2))
    got = run(lambda v: dd.avg_pool2d(v, size, stride, padding), x)
    np.testing.assert_allclose(got, mean, rtol=1e-5, atol=1e-6)
    ones = windows(np.ones_like(x), size, stride, padding, (1, 1), 0).sum((-1, -2))
    with np.errstate(all="ignore"):
        inside = windows(x, size, stride, padding, (1, 1), 0).sum((-1, -2)) / ones
    got = run(lambda v: dd.avg_pool2d(v, size, stride, padding, count_include_pad=False), x)
    np.testing.assert_allclose(got, inside, rtol=1e-5, atol=1e-6)


# --- activations and norms ----------------------------------------------------------------------


def erf(x: np.ndarray) -> np.ndarray:
    return np.vectorize(math.erf)(x)


def softmax(x: np.ndarray, axis: int) -> np.ndarray:
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


ACTIVATIONS: dict[str, tuple[Callable[..., Any], Callable[[np.ndarray], np.ndarray]]] = {
    "gelu": (dd.gelu, lambda x: x * 0.5 * (1 + erf(x / math.sqrt(2)))),
    "gelu tanh": (
        lambda x: dd.gelu(x, approximate="tanh"),
        lambda x: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    ),
    "silu": (dd.silu, lambda x: x / (1 + np.exp(-x))),
    "softplus": (dd.softplus, lambda x: np.logaddexp(x, 0)),
    "leaky_relu": (lambda x: dd.leaky_relu(x, 0.1), lambda x: np.where(x < 0, 0.1 * x, x)),
    "softmax": (lambda x: dd.softmax(x), lambda x: softmax(x, -1)),
    "softmax 0": (lambda x: dd.softmax(x, 0), lambda x: softmax(x, 0)),
    "log_softmax": (lambda x: dd.log_softmax(x), lambda x: np.log(softmax(x, -1))),
    "logsumexp": (lambda x: dd.logsumexp(x, 1), lambda x: np.log(np.exp(x).sum(1))),
}


@pytest.mark.parametrize("kind", ["float32", "float16", "bfloat16", "float64"])
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations(name: str, kind: str) -> None:
    function, reference = ACTIVATIONS[name]
    x = (normal(5, 40, kind="float64") * 3).astype(dd.dtype(kind).numpy)
    got = run(function, x)
    assert got.dtype == x.dtype
    rtol = {"float32": 3e-6, "float64": 1e-13, "float16": 1.1e-3, "bfloat16": 8e-3}[kind]
    expected = reference(x.astype(np.float64))
    np.testing.assert_allclose(got.astype(np.float64), expected, rtol=rtol, atol=rtol / 3)


@pytest.mark.parametrize("axis", [-1, (1, 2), 0])
def test_norms(axis: Any) -> None:
    x = normal(3, 4, 5) * 3 + 1
    axes = (axis,) if isinstance(axis, int) else axis
    shape = tuple(x.shape[a] for a in axes)
    w, b = normal(*shape), normal(*shape)
    fitted = [
        v.reshape([n if i in [a % 3 for a in axes] else 1 for i, n in enumerate(x.shape)])
        for v in (w, b)
    ]
    wide = x.astype(np.float64)
    centred = wide - wide.mean(axes, keepdims=True)
    plain = centred / np.sqrt((centred**2).mean(axes, keepdims=True) + 1e-5)
    got = run(lambda u, v, o: dd.layer_norm(u, v, o, axis=axis), x, w, b)
    np.testing.assert_allclose(got, plain * fitted[0] + fitted[1], rtol=1e-5, atol=1e-5)
    root = wide / np.sqrt((wide**2).mean(axes, keepdims=True) + 1e-6)
    got = run(lambda u, v: dd.rms_norm(u, v, axis=axis), x, w)
    np.testing.assert_allclose(got, root * fitted[0], rtol=1e-5, atol=1e-5)


# --- promotion ----------------------------------------------------------------------------------

PROMOTIONS = [
    ("int32", "float32", "float32"),
    ("int64", "float16", "float16"),
    ("float16", "bfloat16", "float32"),
    ("float32", "float64", "float64"),
    ("int8", "uint8", "int16"),
    ("int16", "uint8", "int16"),
    ("int16", "int32", "int32"),
    ("uint8", "int64", "int64"),
    ("bool", "int8", "int8"),
    ("bool", "bfloat16", "bfloat16"),
]


@pytest.mark.parametrize(("a", "b", "expected"), PROMOTIONS)
def test_dtypes_meet(a: str, b: str, expected: str) -> None:
    x, y = dd.ones(3, a), dd.ones(3, b)
    assert (x + y).dtype.name == (y + x).dtype.name == expected
    assert dd.result_type(a, b).name == expected


SCALARS: list[tuple[str, Any, str]] = [
    ("int8", 1, "int8"),
    ("int8", 1.0, "float32"),
    ("float16", 1, "float16"),
    ("float16", 2.5, "float16"),
    ("bool", True, "bool"),
    ("bool", 1, "int64"),
    ("bfloat16", np.float64(2), "bfloat16"),
    ("float32", 1 / np.sqrt(64), "float32"),
]


@pytest.mark.parametrize(("kind", "scalar", "expected"), SCALARS)
def test_scalars_are_weak(kind: str, scalar: Any, expected: str) -> None:
    assert (dd.ones(3, kind) + scalar).dtype.name == expected
    assert (scalar + dd.ones(3, kind)).dtype.name == expected


def test_operators_with_arrays_on_the_left() -> None:
    x = np.ones((2, 20), np.float32)
    t = dd.ones((2, 20))
    for made in (x + t, x - t, x * t, x / t, x @ t.mT, x // t, x % t, x**t):
        assert isinstance(made, dd.Tensor)
    assert isinstance(x < t, dd.Tensor) and isinstance(x == t, dd.Tensor)
