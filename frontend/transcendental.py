"""Exponentials, logarithms and circular and hyperbolic functions, from exp2, log2 and sin.

Bounds are in units in the last place (ulp) of the result and assume primitives that are right to
1 ulp. 16-bit floats are computed in float32 and rounded once; integers become float32.
"""

from __future__ import annotations

import math
from typing import Any

from .approximations import APPROXIMATIONS, Approximation
from .arithmetic import unary
from .comparison import where
from .promotion import floating, in_float32
from .tensor import Tensor

LOG2_E = 1 / math.log(2)
_LOG2_E_REST = 2.0355273740931033e-17  # log2(e) less the float above
# log2(e) = high + low, with so few bits in `high` that whole exponents times it are exact
_HIGH_BITS = {"float32": 15, "float64": 41}


def exp2(x: Any) -> Tensor:
    """2 to the power x."""
    return unary("exp2", floating("exp2", x))


def log2(x: Any) -> Tensor:
    """The logarithm to base 2; NaN below 0, -inf at 0."""
    return unary("log2", floating("log2", x))


def sin(x: Any) -> Tensor:
    """The sine of x radians."""
    return unary("sin", floating("sin", x))


@in_float32
def exp(x: Tensor) -> Tensor:
    """e to the power x, to 3 ulp.

    exp2(x * log2(e)) would carry the rounding of the product, |x| / 2 ulp, into the result. With x
    = n + r, n whole, exp(x) = exp2(n * high) * exp2(r * log2(e) + n * low), where n * high is
    exact. n saturates at infinities and is 0 for NaN, and low > 0, so that both factors go the same
    way.
    """
    return _exp(x, 0.0)


def _exp(x: Tensor, offset: float) -> Tensor:
    """exp(x) * 2**offset, without the overflow of exp(x) alone."""
    scale = 2.0 ** _HIGH_BITS[x.dtype.name]
    high = math.floor(LOG2_E * scale) / scale
    whole = x.astype("int32" if x.dtype.bits == 32 else "int64").astype(x.dtype)
    coarse = whole * high + offset if offset else whole * high
    return exp2(coarse) * exp2((x - whole) * LOG2_E + whole * (LOG2_E - high + _LOG2_E_REST))


def exp_fast(x: Tensor) -> Tensor:
    """exp2(x * log2(e)): off by |x| / 2 ulp, which a softmax, whose x is near 0 where it matters,
    does not notice."""
    return exp2(x * LOG2_E)


@in_float32
def log(x: Tensor) -> Tensor:
    """The natural logarithm, to 2 ulp; NaN below 0, -inf at 0."""
    return log2(x) * math.log(2)


@in_float32
def log10(x: Tensor) -> Tensor:
    """The logarithm to base 10, to 2 ulp; NaN below 0, -inf at 0."""
    return log2(x) * math.log10(2)


@in_float32
def log1p(x: Tensor) -> Tensor:
    """log(1 + x), to 3 ulp also for small x.

    With u = 1 + x rounded, log(u) + (x - (u - 1)) / u makes up for the rounding (Kahan's idea, in
    the form that Higham, Accuracy and Stability of Numerical Algorithms, 1.14.1, discusses).
    """
    u = x + 1.0
    rough = log(u)
    lost = x - (u - 1.0)
    return where((u > 0) & (u < math.inf), rough + lost * unary("recip", u), rough)


@in_float32
def expm1(x: Tensor) -> Tensor:
    """exp(x) - 1, to 4 ulp also for small x: a polynomial up to |x| = 1/2."""
    row = APPROXIMATIONS["expm1", x.dtype.name]
    near = x * (x * _polynomial(row, x) + 1.0)
    return where(x * x < row.reach**2, near, exp(x) - 1.0)


@in_float32
def sinh(x: Tensor) -> Tensor:
    """The hyperbolic sine, to 4 ulp: a polynomial up to |x| = 1."""
    row = APPROXIMATIONS["sinh", x.dtype.name]
    v = x * x
    near = x * (v * _polynomial(row, v) + 1.0)
    half = _exp(where(x < 0, -x, x), -1.0)
    far = half - unary("recip", half) * 0.25
    return where(v < row.reach**2, near, where(x < 0, -far, far))


@in_float32
def cosh(x: Tensor) -> Tensor:
    """The hyperbolic cosine, to 4 ulp."""
    half = _exp(where(x < 0, -x, x), -1.0)
    return half + unary("recip", half) * 0.25


@in_float32
def tanh(x: Tensor) -> Tensor:
    """The hyperbolic tangent, to 4 ulp: a polynomial near 0, else 1 - 2 / (exp(2x) + 1)."""
    row = APPROXIMATIONS["tanh", x.dtype.name]
    v = x * x
    near = x * (v * _polynomial(row, v) + 1.0)
    far = unary("recip", exp2(x * (2 * LOG2_E)) + 1.0) * -2.0 + 1.0
    return where(v < row.reach**2, near, far)


@in_float32
def erf(x: Tensor) -> Tensor:
    """The error function, to 4 ulp: one polynomial, held to [-1, 1] where it has reached them."""
    row = APPROXIMATIONS["erf", x.dtype.name]
    limit = row.reach**2
    v = x * x
    u = where(limit < v, limit, v) * (2 / limit) - 1.0
    value = x * _polynomial(row, u)
    bounded = where(value < -1.0, -1.0, value)
    return where(bounded > 1.0, 1.0, bounded)


@in_float32
def cos(x: Tensor) -> Tensor:
    """The cosine of x radians, as 1 - 2 sin(x/2)**2 in float64: halving is exact, so that large x
    stay right. To 1 ulp for float32; for float64 to 3e-16, not relative to a cosine close to 0."""
    return _cos(x.astype("float64")).astype(x.dtype)


def _cos(x: Tensor) -> Tensor:
    half = sin(x * 0.5)
    return half * half * -2.0 + 1.0


@in_float32
def tan(x: Tensor) -> Tensor:
    """The tangent of x radians: sin(x) / cos(x) in float64."""
    wide = x.astype("float64")
    return (sin(wide) * unary("recip", _cos(wide))).astype(x.dtype)


def _polynomial(row: Approximation, x: Tensor) -> Tensor:
    """Horner's scheme."""
    value: Tensor | float = row.coefficients[-1]
    for coefficient in reversed(row.coefficients[:-1]):
        value = x * value + coefficient
    assert isinstance(value, Tensor)
    return value
