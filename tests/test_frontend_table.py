"""Every elementwise function, dtype by dtype, against numpy on adversarial values.

A record is a function, its reference, the kinds of dtype it takes and its error bound in ulp; None
means that every bit counts, the sign of zero included. References run in a wider dtype than the one
under test, so that they are right where the function is.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import dodeca as dd
import ml_dtypes
import numpy as np
import pytest

FLOATS = ("float32", "float16", "bfloat16", "float64")
INTS = ("int8", "uint8", "int32", "int64")


def numpy_dtype(name: str) -> np.dtype:
    return dd.dtype(name).numpy


@dataclass(frozen=True)
class Record:
    name: str
    reference: Callable[..., Any]
    arity: int = 1
    dtypes: tuple[str, ...] = FLOATS
    ulp: float | None = None
    limit: float = math.inf  # tested for |x| up to here


def _erf(x: np.ndarray) -> np.ndarray:
    return np.vectorize(math.erf)(x.astype(np.float64)).astype(x.dtype)


def _sign(x: np.ndarray) -> np.ndarray:
    return np.where(x == 0, np.zeros_like(x), np.sign(x))


RECORDS = [
    Record("negative", np.negative, dtypes=FLOATS + INTS),
    Record("positive", np.positive, dtypes=FLOATS + INTS),
    Record("abs", np.abs, dtypes=FLOATS + INTS),
    Record("sign", _sign, dtypes=FLOATS + INTS),
    Record("square", np.square, dtypes=FLOATS + INTS, ulp=0.5),
    Record("sqrt", np.sqrt, ulp=0.5),
    Record("rsqrt", lambda x: 1 / np.sqrt(x), ulp=1.5),
    Record("reciprocal", np.reciprocal, ulp=0.5),
    Record("floor", np.floor),
    Record("ceil", np.ceil),
    Record("trunc", np.trunc),
    Record("round", np.round),
    Record("floor", np.floor, dtypes=INTS),
    Record("round", np.round, dtypes=INTS),
    Record("isnan", np.isnan, dtypes=FLOATS),
    Record("isinf", np.isinf, dtypes=FLOATS),
    Record("isfinite", np.isfinite, dtypes=FLOATS),
    Record("isnan", np.isnan, dtypes=INTS),
    Record("isfinite", np.isfinite, dtypes=INTS),
    Record("logical_not", np.logical_not, dtypes=FLOATS + INTS),
    Record("exp", np.exp, ulp=3),
    Record("exp2", np.exp2, ulp=1.5),
    Record("expm1", np.expm1, ulp=4),
    Record("log", np.log, ulp=2),
    Record("log2", np.log2, ulp=1.5),
    Record("log10", np.log10, ulp=2),
    Record("log1p", np.log1p, ulp=3),
    Record("sin", np.sin, ulp=1.5, limit=1e6),
    Record("cos", np.cos, ulp=1.5, dtypes=("float32", "float16", "bfloat16")),
    Record("tan", np.tan, ulp=2, dtypes=("float32", "float16", "bfloat16"), limit=1e6),
    Record("tanh", np.tanh, ulp=4),
    Record("sinh", np.sinh, ulp=4),
    Record("cosh", np.cosh, ulp=4),
    Record("erf", _erf, ulp=4),
    Record("sigmoid", lambda x: 1 / (1 + np.exp(-x)), ulp=12, limit=16),
    Record("silu", lambda x: x / (1 + np.exp(-x)), ulp=12, limit=16),
    Record("softplus", lambda x: np.log1p(np.exp(x)), ulp=12, limit=16),
    Record("relu", lambda x: np.where(x < 0, np.zeros_like(x), x), dtypes=FLOATS + INTS),
    Record("add", np.add, 2, FLOATS + INTS, ulp=0.5),
    Record("subtract", np.subtract, 2, FLOATS + INTS, ulp=0.5),
    Record("multiply", np.multiply, 2, FLOATS + INTS, ulp=0.5),
    Record("divide", np.divide, 2, ("float32", "float16", "bfloat16"), ulp=0.5),
    Record("divide", np.divide, 2, ("float64",), ulp=0.7),  # subnormal results round twice
    Record("fmod", np.fmod, 2, FLOATS),
    Record("remainder", np.remainder, 2, FLOATS, ulp=0.5),
    Record("floor_divide", np.floor_divide, 2, FLOATS, ulp=1),
    Record("equal", np.equal, 2, FLOATS + INTS),
    Record("not_equal", np.not_equal, 2, FLOATS + INTS),
    Record("less", np.less, 2, FLOATS + INTS),
    Record("less_equal", np.less_equal, 2, FLOATS + INTS),
    Record("greater", np.greater, 2, FLOATS + INTS),
    Record("greater_equal", np.greater_equal, 2, FLOATS + INTS),
    Record("maximum", np.maximum, 2, FLOATS + INTS, ulp=0),
    Record("minimum", np.minimum, 2, FLOATS + INTS, ulp=0),
    Record("logical_and", np.logical_and, 2, FLOATS + INTS),
    Record("logical_or", np.logical_or, 2, FLOATS + INTS),
    Record("logical_xor", np.logical_xor, 2, FLOATS + INTS),
    Record("power", np.power, 2, ("float32", "float16", "bfloat16"), ulp=1),
]
CASES = [
    pytest.param(record, kind, id=f"{record.name}-{kind}")
    for record in RECORDS
    for kind in record.dtypes
]


def values(kind: str, count: int = 300) -> np.ndarray:
    """Adversarial values of a dtype, then random ones of every magnitude."""
    rng = np.random.default_rng(7)
    element = numpy_dtype(kind)
    if kind in INTS:
        info = np.iinfo(element)
        edges = [info.min, info.min + 1, info.max, info.max - 1, 0, 1, 2, 3, 7, 100]
        if info.min < 0:
            edges += [-1, -2, -3, -7, -100]
        if kind == "int64":
            edges += [2**24 + 1, 2**53 + 1, -(2**53) - 1, 10**18 + 7]
        near = rng.integers(max(info.min, -20), 20, count // 2)
        far = rng.integers(info.min, info.max, count // 2)
        return np.concatenate([edges, near, far]).astype(element)
    info = ml_dtypes.finfo(element)
    edges = [
        0.0,
        -0.0,
        1,
        -1,
        0.5,
        -0.5,
        1.5,
        -1.5,
        2.5,
        -2.5,
        3.5,
        21,
        7,
        3,
        10,
        1e-8,
        -1e-8,
        1e-12,
    ]
    edges += [
        np.inf,
        -np.inf,
        np.nan,
        0.3,
        -0.3,
        0.7,
        100.7,
        -100.7,
        1e7,
        1e30,
        2.0**23 + 1,
        123456.5,
    ]
    edges += [float(info.max), float(-info.max), float(info.tiny), float(info.smallest_subnormal)]
    edges += [
        float(-info.smallest_subnormal),
        88.0,
        -87.0,
        89.0,
        -104.0,
        9.9,
        -9.9,
        3.76,
        0.55,
        1e-3,
    ]
    plain = rng.uniform(-8, 8, count // 2)
    widest = min(math.log10(float(info.max)), 300)
    wild = 10 ** rng.uniform(-widest, widest, count // 2) * rng.choice([-1, 1], count // 2)
    with np.errstate(all="ignore"):
        return np.concatenate([edges, plain, wild]).astype(element)


def wider(kind: str) -> Any:
    """What the reference runs in."""
    if kind in INTS:
        return numpy_dtype(kind)
    return np.longdouble if kind == "float64" else np.float64


def ulp_error(got: np.ndarray, expected: np.ndarray, kind: str) -> np.ndarray:
    """How far `got` is from an expectation of a wider dtype, in units of the dtype's last place."""
    info = ml_dtypes.finfo(numpy_dtype(kind))
    wide = np.longdouble
    exact, found = expected.astype(wide), got.astype(wide)
    size = np.abs(exact)
    usable = np.isfinite(size) & (size > 0)
    exponent = np.floor(np.log2(np.where(usable, size, 1)))
    unit = np.maximum(wide(2) ** (exponent - info.nmant), wide(info.smallest_subnormal))
    with np.errstate(all="ignore"):
        error = np.abs(found - exact) / unit
    rounded = exact.astype(numpy_dtype(kind)).astype(wide)
    same = (found == rounded) | (np.isnan(found) & np.isnan(exact))
    return np.where(same, 0, np.where(np.isnan(error), np.inf, error)).astype(np.float64)


def check(record: Record, kind: str, arrays: list[np.ndarray]) -> None:
    function = getattr(dd, record.name)
    graph = dd.trace(function, *[dd.spec(a.shape, kind) for a in arrays])
    got = graph.interpret(*arrays)
    with np.errstate(all="ignore"):
        expected = np.asarray(record.reference(*[a.astype(wider(kind)) for a in arrays]))
        if expected.dtype == np.bool_:
            np.testing.assert_array_equal(got, expected)
            return
        assert got.dtype == numpy_dtype(kind)
        if kind in INTS:
            np.testing.assert_array_equal(got, expected.astype(got.dtype))
            return
        error = ulp_error(got, expected, kind)
        if record.ulp is None:
            sign = np.signbit(got) == np.signbit(expected.astype(got.dtype))
            error = np.where(sign | np.isnan(expected), error, np.inf)
    worst = int(np.argmax(error))
    allowed = 0.0 if record.ulp is None else record.ulp + 0.501 * (kind in ("float16", "bfloat16"))
    shown = [a.reshape(-1)[worst] for a in arrays]
    found = (got.reshape(-1)[worst], expected.reshape(-1)[worst])
    assert error.reshape(-1)[worst] <= allowed, f"{shown}: {found}, {error.max()} ulp"


@pytest.mark.parametrize(("record", "kind"), CASES)
def test_against_numpy(record: Record, kind: str) -> None:
    x = values(kind)
    with np.errstate(all="ignore"):
        x = x[~(np.abs(x.astype(np.float64)) > record.limit)]
    if record.arity == 1:
        check(record, kind, [x])
        return
    few = values(kind, 60)
    pairs = np.meshgrid(few, few)
    check(record, kind, [np.ascontiguousarray(p) for p in pairs])
