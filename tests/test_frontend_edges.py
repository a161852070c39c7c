"""What earlier systems on few primitives got wrong, each as a row: an expression and its value."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dodeca as dd
import numpy as np
import pytest

inf, nan = np.inf, np.nan
F = np.float32


def run(function: Callable[..., Any], *arrays: Any) -> Any:
    given = [np.asarray(a) for a in arrays]
    return dd.trace(function, *given).interpret(*given)


def floats(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


def bits(value: np.ndarray) -> np.ndarray:
    """Values with the sign of zero made visible: comparing these compares every bit but NaN's."""
    return np.stack([value, np.where(np.isnan(value), False, np.signbit(value))])


ROWS: list[tuple[str, Callable[..., Any], list[np.ndarray], Any]] = [
    ("relu(-inf)", dd.relu, [floats(-inf, inf, nan, -1, 2)], floats(0, inf, nan, 0, 2)),
    (
        "clip(inf)",
        lambda x: dd.clip(x, -1.0, 1.0),
        [floats(inf, -inf, nan, 0.5)],
        floats(1, -1, nan, 0.5),
    ),
    (
        "where with an infinite branch",
        lambda c, x: dd.where(c, x, -inf),
        [np.array([True, False]), floats(3, 4)],
        floats(3, -inf),
    ),
    (
        "where with two infinite branches",
        lambda c, x, y: dd.where(c, x, y),
        [np.array([True, False]), floats(3, nan), floats(-inf, inf)],
        floats(3, inf),
    ),
    (
        "NaN == NaN",
        lambda x, y: x == y,
        [floats(nan, inf, -inf, 0, inf, 1), floats(nan, inf, -inf, -0.0, -inf, 2)],
        np.array([False, True, True, True, False, False]),
    ),
    (
        "NaN <= 1",
        lambda x: x <= 1.0,
        [floats(nan, 1, 2, -inf)],
        np.array([False, True, False, True]),
    ),
    ("NaN >= 1", lambda x: x >= 1.0, [floats(nan, 1, 0)], np.array([False, True, False])),
    ("NaN != NaN", lambda x: x != x, [floats(nan, 1)], np.array([True, False])),
    (
        "pow(-2, 3)",
        dd.power,
        [floats(-2, -2, -2, 0, 0, 0, nan, 1, -0.0), floats(3, 2, 0.5, 0, -1, 2, 0, nan, -3)],
        floats(-8, 4, nan, 1, inf, 0, 1, 1, -inf),
    ),
    ("pow(-2, 3) with a constant", lambda x: x**3, [floats(-2, 0, 3)], floats(-8, 0, 27)),
    ("pow(x, 0)", lambda x: x**0, [floats(nan, 0, inf)], floats(1, 1, 1)),
    ("pow(0, -1)", lambda x: x**-1, [floats(0, -0.0, 2)], floats(inf, -inf, 0.5)),
    ("pow(x, 0.5)", lambda x: x**0.5, [floats(4, 0, 2)], np.sqrt(floats(4, 0, 2))),
    ("tanh(1e-8)", dd.tanh, [floats(1e-8, inf, -inf, 500, -0.0)], floats(1e-8, 1, -1, 1, -0.0)),
    (
        "cos(1e7)",
        dd.cos,
        [floats(1e7, 1e30, 0)],
        np.cos(floats(1e7, 1e30, 0).astype(np.float64)).astype(F),
    ),
    ("sign(1e-12)", dd.sign, [floats(1e-12, -1e-30, 0, nan)], floats(1, -1, 0, nan)),
    (
        "21 / 7",
        dd.divide,
        [floats(21, 1, 6, 0, 1, -1), floats(7, 3, 0.1, 0, 0, inf)],
        floats(3, F(1) / F(3), F(6) / F(0.1), nan, inf, -0.0),
    ),
    ("argmax ties", dd.argmax, [floats(1, 3, 3, 2)], np.int64(1)),
    ("argmax of NaN", dd.argmax, [floats(1, nan, 3, nan)], np.int64(1)),
    ("argmin of NaN", dd.argmin, [floats(1, nan, -3, nan)], np.int64(1)),
    ("argmax of -inf", dd.argmax, [floats(-inf, -inf)], np.int64(0)),
    ("argmin ties", dd.argmin, [floats(2, 1, 1)], np.int64(1)),
    ("argsort of equal keys", dd.argsort, [floats(1, 0, 1, 0)], np.array([1, 3, 0, 2])),
    ("argsort with NaN", dd.argsort, [floats(nan, 2, nan, -inf)], np.array([3, 1, 0, 2])),
    ("abs(-0.0)", dd.abs, [floats(-0.0, -inf, nan)], floats(0.0, inf, nan)),
    ("0 - 0", dd.subtract, [floats(0, -0.0), floats(0, 0)], floats(0, -0.0)),
    ("sum of bools", lambda x: dd.sum(x), [np.ones(300, bool)], np.int64(300)),
    ("mean of bools", lambda x: dd.mean(x), [np.array([True, False])], F(0.5)),
    (
        "bool masks",
        lambda m, n: (m & ~n) | (m ^ n),
        [np.array([True, True, False]), np.array([True, False, False])],
        np.array([False, True, False]),
    ),
    (
        "int / int",
        dd.divide,
        [np.array([7, 1, -1, 0]), np.array([2, 3, 0, 0])],
        floats(3.5, 1 / 3, -inf, nan),
    ),
    ("int8 / int8", dd.divide, [np.array([7], np.int8), np.array([2], np.int8)], floats(3.5)),
    ("-1 // 2", lambda x: x // 2, [np.array([-1, 1, -4, -5])], np.array([-1, 0, -2, -3])),
    ("x // 0", dd.floor_divide, [np.array([5, -5]), np.array([0, 0])], np.array([0, 0])),
    ("round half to even", dd.round, [floats(0.5, 1.5, 2.5, -0.5)], floats(0, 2, 2, -0.0)),
    ("exp(-inf)", dd.exp, [floats(-inf, inf, nan, 0, 3e9, -3e9)], floats(0, inf, nan, 1, inf, 0)),
    ("log1p(-1)", dd.log1p, [floats(-1, inf, 1e-20, -2)], floats(-inf, inf, 1e-20, nan)),
    ("expm1(1e-20)", dd.expm1, [floats(1e-20, -inf, inf, -0.0)], floats(1e-20, -1, inf, -0.0)),
    ("erf(inf)", dd.erf, [floats(inf, -inf, 5, -5, nan)], floats(1, -1, 1, -1, nan)),
    ("sigmoid(-1000)", dd.sigmoid, [floats(-1000, 1000, -inf, inf)], floats(0, 1, 0, 1)),
    (
        "logsumexp of -inf",
        lambda x: dd.logsumexp(x),
        [floats(-inf, -inf)],
        F(-inf),
    ),
    ("mean over nothing", lambda x: dd.mean(x), [np.zeros(0, F)], F(nan)),
    ("sum over nothing", lambda x: dd.sum(x), [np.zeros(0, F)], F(0)),
    ("prod over nothing", lambda x: dd.prod(x), [np.zeros(0, F)], F(1)),
    ("any over nothing", lambda x: dd.any(x), [np.zeros(0, bool)], np.False_),
    ("all over nothing", lambda x: dd.all(x), [np.zeros(0, bool)], np.True_),
    (
        "min of the least integer",
        lambda x: dd.min(x),
        [np.array([-(2**63), 5])],
        np.int64(-(2**63)),
    ),
    ("min of uint8", lambda x: dd.min(x), [np.array([200, 3, 255], np.uint8)], np.uint8(3)),
]


@pytest.mark.parametrize(
    ("function", "arrays", "expected"), [r[1:] for r in ROWS], ids=[r[0] for r in ROWS]
)
def test_edge(function: Callable[..., Any], arrays: list[np.ndarray], expected: Any) -> None:
    got = run(function, *arrays)
    wanted = np.asarray(expected)
    assert got.dtype == wanted.dtype and got.shape == wanted.shape
    if wanted.dtype.kind == "f":
        np.testing.assert_array_equal(bits(got), bits(wanted))
    else:
        np.testing.assert_array_equal(got, wanted)


def test_int64_indices_above_2_24() -> None:
    table = np.zeros(2**24 + 8, np.int8)
    table[2**24 + 1], table[2**24 + 3] = 7, 9
    ids = np.array([2**24 + 1, 2**24 + 3, -7])
    graph = dd.trace(dd.take, dd.spec(table.shape, "int8"), dd.spec(ids.shape, "int64"))
    np.testing.assert_array_equal(graph.interpret(table, ids), [7, 9, 7])
    high = np.array([2**24, 2**24 + 1, 2**53 + 1, 2**53])
    assert run(dd.argmax, high) == 2
    np.testing.assert_array_equal(run(dd.sort, high), np.sort(high))


def test_max_over_an_empty_axis_is_an_error() -> None:
    for name in ("max", "min", "argmax", "argmin"):
        with pytest.raises(dd.ShapeError, match=rf"{name}: axis 1 of shape \(2, 0\) is empty"):
            dd.trace(lambda x, f=name: getattr(dd, f)(x, axis=1), dd.spec((2, 0)))
    assert run(lambda x: dd.max(x, axis=1), np.zeros((0, 3), F)).shape == (0,)


def test_float16_layer_norm_of_large_values() -> None:
    rng = np.random.default_rng(1)
    x = (rng.standard_normal((4, 64)) * 400).astype(np.float16)
    wide = x.astype(np.float64)
    centred = wide - wide.mean(-1, keepdims=True)
    expected = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(run(dd.layer_norm, x), expected, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("kind", ["int8", "uint8", "int16", "int32", "int64"])
@pytest.mark.parametrize("name", ["floor_divide", "remainder", "fmod"])
def test_integer_division_is_exact(name: str, kind: str) -> None:
    rng = np.random.default_rng(3)
    info = np.iinfo(kind)
    edges = [info.min, info.min + 1, info.max, info.max - 1, 0, 1, 2, 3, 7]
    edges += [-1, -2, -7] if info.min else []
    edges += [2**53 + 1, 10**18 + 7, 3037000500] if kind == "int64" else []
    few = np.concatenate([edges, rng.integers(info.min, info.max, 40)]).astype(kind)
    x, y = (np.ascontiguousarray(p) for p in np.meshgrid(few, few))
    with np.errstate(all="ignore"):
        expected = getattr(np, name)(x, y)
    expected = np.where(y == 0, 0, expected).astype(kind)
    np.testing.assert_array_equal(run(getattr(dd, name), x, y), expected)
    by_seven = run(lambda v: getattr(dd, name)(v, 7), few)
    np.testing.assert_array_equal(by_seven, getattr(np, name)(few, np.array(7, kind)))


@pytest.mark.parametrize("kind", ["int8", "uint8", "int16", "int32", "int64"])
def test_integer_powers_wrap(kind: str) -> None:
    x = np.array([0, 1, 2, 3, 7, 10, 100, np.iinfo(kind).max, np.iinfo(kind).min], kind)
    y = np.arange(9).astype(kind) * 3
    expected = np.array([[pow(int(a), int(b)) for b in y] for a in x], object)
    width = np.iinfo(kind).bits
    wrapped = np.array([[v % 2**width for v in row] for row in expected], object)
    wrapped = wrapped.astype(np.uint64).astype(kind)
    grid = [np.ascontiguousarray(g) for g in np.meshgrid(x, y, indexing="ij")]
    np.testing.assert_array_equal(run(dd.power, *grid), wrapped)
    np.testing.assert_array_equal(run(lambda v: v**3, x), x * x * x)
    with pytest.raises(dd.DtypeError, match="power"):
        dd.trace(lambda v: v**-1, dd.spec((2,), kind))


def test_casts_saturate_and_wrap() -> None:
    x = floats(nan, inf, -inf, 300, -300, 1.9, -1.9)
    np.testing.assert_array_equal(
        run(lambda v: v.astype("int8"), x), [0, 127, -128, 127, -128, 1, -1]
    )
    wide = np.array([300, -1, 256], np.int64)
    np.testing.assert_array_equal(run(lambda v: v.astype("uint8"), wide), [44, 255, 0])
    np.testing.assert_array_equal(
        run(lambda v: v.astype("bool"), floats(0, -0.0, nan, 2)), [0, 0, 1, 1]
    )


def test_bitcast() -> None:
    x = floats(1.0, -0.0)
    np.testing.assert_array_equal(run(lambda v: dd.bitcast(v, "int32"), x), x.view(np.int32))


def test_cosine_of_float64() -> None:
    x = np.concatenate([np.linspace(-20, 20, 500), [1e7, 1e15]])
    np.testing.assert_allclose(run(dd.cos, x), np.cos(x), rtol=0, atol=4e-16)


def test_power_of_float64() -> None:
    x, y = np.meshgrid([0.3, 1.0, 2.5, 1e10], [0.1, 3.7, -2.2, 20.0])
    np.testing.assert_allclose(run(dd.power, x, y), x**y, rtol=1e-13)


def test_exponentials_of_softmax_stay_finite() -> None:
    x = floats(1000, 1001, -1000)
    got = run(lambda v: dd.softmax(v), x)
    np.testing.assert_allclose(got, [1 / (1 + np.e), np.e / (1 + np.e), 0], rtol=1e-6)
    low = run(lambda v: dd.log_softmax(v), x)
    np.testing.assert_allclose(low, np.array([-1, 0, -2001]) - np.log1p(np.exp(-1)), rtol=1e-6)
