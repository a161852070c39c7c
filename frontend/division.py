"""Division and rounding: quotients, remainders, whole parts, exact where the operation is.

The primitives have `recip` and a `mod` with C's sign (the dividend's). Float quotients narrower
than float64 go through float64, whose product a * recip(b) is off by at most 2**-52 of itself; the
quotient of two 24-bit numbers is never that close to the middle between two others, so that
rounding it gives the correctly rounded one (in the normal range). Whole parts take `mod` by 1,
which is exact.
"""

from __future__ import annotations

from math import frexp, inf
from typing import Any

from .arithmetic import binary, unary
from .comparison import isfinite, where
from .creation import scalar
from .promotion import as_tensor, in_float32, together
from .tensor import Tensor, is_scalar, require

_SPLITTER = float(2**27 + 1)  # Veltkamp's, for the 53 bits of a float64


def _mod(x: Tensor, y: Tensor | float) -> Tensor:
    return binary("mod", *together("mod", x, y))


def _recip(x: Tensor) -> Tensor:
    return unary("recip", x)


# --- quotients ----------------------------------------------------------------------------------


def divide(x: Any, y: Any) -> Tensor:
    """x / y, correctly rounded in the normal range; of integers as float32.

    float64 is correctly rounded but for some 2**-50 of all cases, where it is the neighbour.
    """
    a, b = together("divide", x, y)
    if a.dtype.is_float and _is_power_of_two(b):
        return a * (1 / b.attribute.item())
    if a.dtype.name == "float64":
        return _divide_float64(a, b)
    quotient = _product_float64(a.astype("float64"), b.astype("float64"))
    return quotient.astype(a.dtype if a.dtype.is_float else "float32")


def _is_power_of_two(x: Tensor) -> bool:
    """Whether x is a constant whose reciprocal is exact in every float dtype."""
    if not is_scalar(x):
        return False
    fraction, exponent = frexp(x.attribute.item())
    return abs(fraction) == 0.5 and -8 < exponent < 8


def _product_float64(a: Tensor, b: Tensor) -> Tensor:
    """a * recip(b): compilers know this between two casts as one narrow division."""
    return a * _recip(b)


def _divide_float64(a: Tensor, b: Tensor) -> Tensor:
    """a / b in float64: q = a * recip(b), corrected once by its exact residual.

    The residual a - q * b comes from Dekker's product (1971). Both operands are first scaled by
    powers of two into [2**-474, 2**450], where no part of it over- or underflows; the quotient is
    scaled back in steps, alternating so that only the last step can round.
    """
    down, up, one = 2.0**-300, 2.0**300, scalar("divide", 1.0, a.dtype)
    size_a, size_b = where(a < 0, -a, a), where(b < 0, -b, b)
    small_a, large_a = size_a < 2.0**-450, size_a > 2.0**450
    small_b, large_b = size_b < 2.0**-450, size_b > 2.0**450
    to_a = where(small_a, up, where(large_a, down, one))
    back_a = where(small_a, down, where(large_a, up, one))
    to_b = where(small_b, up, where(large_b, down, one))
    x, y = a * to_a * to_a, b * to_b * to_b
    inverse = _recip(y)
    q = x * inverse
    better = q + _residual(x, q, y) * inverse
    nonzero = (better < 0) | (better > 0)
    quotient = where(isfinite(better) & nonzero, better, q)  # q is right where it is 0, inf or NaN
    return quotient * to_b * back_a * to_b * back_a


def _residual(a: Tensor, q: Tensor, b: Tensor) -> Tensor:
    """a - q * b without rounding, for q close to a / b (Dekker's product, Veltkamp's split)."""
    product = q * b
    (q_high, q_low), (b_high, b_low) = _halves(q), _halves(b)
    error = q_high * b_high - product + q_high * b_low + q_low * b_high + q_low * b_low
    return a - product - error


def _halves(x: Tensor) -> tuple[Tensor, Tensor]:
    """x as the sum of two float64 of 26 bits each."""
    scaled = x * _SPLITTER
    high = scaled - (scaled - x)
    return high, x - high


# --- remainders and floored quotients -----------------------------------------------------------


def fmod(x: Any, y: Any) -> Tensor:
    """The remainder with the sign of x, exact; NaN of floats by 0, 0 of integers by 0."""
    a, b = together("fmod", x, y)
    require("fmod", a, "float", "int", "uint")
    return binary("mod", a, b)


def remainder(x: Any, y: Any) -> Tensor:
    """The remainder with the sign of y, like Python's and numpy's %; integers by 0 give 0."""
    a, b = together("remainder", x, y)
    require("remainder", a, "float", "int", "uint")
    rest = binary("mod", a, b)
    if a.dtype.kind == "uint":
        return rest
    if a.dtype.kind == "int":
        return where(_signs_differ(rest, b), rest + b, rest)
    if _is_positive(b):
        return where(rest < 0, rest + b, rest + 0.0)
    below = b < 0  # seen from a positive divisor, so that a zero gets the divisor's sign
    seen, size = where(below, -rest, rest), where(below, -b, b)
    moved = where(seen < 0, seen + size, seen + 0.0)
    return where(below, -moved, moved)


def _is_positive(x: Tensor) -> bool:
    return is_scalar(x) and bool(x.attribute > 0)


def _signs_differ(rest: Tensor, divisor: Tensor) -> Tensor:
    """Whether one is below 0 and the other above it."""
    if _is_positive(divisor):
        return rest < 0
    return ((rest < 0) & (divisor > 0)) | ((rest > 0) & (divisor < 0))


def floor_divide(x: Any, y: Any) -> Tensor:
    """floor(x / y), exact for integers of every width; integers by 0 give 0."""
    a, b = together("floor_divide", x, y)
    require("floor_divide", a, "float", "int", "uint")
    return _floor_divide_floats(a, b) if a.dtype.is_float else _floor_divide_integers(a, b)


def _floor_divide_integers(a: Tensor, b: Tensor) -> Tensor:
    """a // b: float64 estimates the truncated quotient, integers find what it missed.

    a - mod(a, b) is a multiple of b. The estimate of its quotient is wrong by less than 2**12; what
    remains is again a multiple of b, whose quotient is so small that its estimate is exact.
    Integers wrap, so that the least integer by -1 gives itself.
    """
    rest = binary("mod", a, b)
    multiple, divisor = (a - rest).astype("int64"), b.astype("int64")
    inverse = _recip(divisor.astype("float64"))
    estimate = _nearest(multiple.astype("float64") * inverse)
    missed = _nearest((multiple - estimate * divisor).astype("float64") * inverse)
    quotient = (estimate + missed).astype(a.dtype)
    if a.dtype.kind == "int":
        quotient = where(_signs_differ(rest, b), quotient - 1, quotient)
    if is_scalar(b) and b.attribute != 0:
        return quotient
    return where((b < 0) | (b > 0), quotient, 0)


def _nearest(x: Tensor) -> Tensor:
    """The nearest int64, halves away from 0."""
    return where(x < 0, x - 0.5, x + 0.5).astype("int64")


def _floor_divide_floats(a: Tensor, b: Tensor) -> Tensor:
    """numpy's: (a - fmod(a, b)) / b is nearly whole, less 1 where the remainder has the other sign.

    Narrow floats are divided in float64. A zero has the sign of a / b; by 0 it is a / b itself.
    """
    quotient = _divide_float64 if a.dtype.name == "float64" else _product_float64
    rest = binary("mod", a, b)
    x, y, r = (v.astype("float64") for v in (a, b, rest))
    whole = round(quotient(x - r, y))
    floored = where(_signs_differ(r, y), whole - 1.0, whole)
    rough = quotient(x, y)
    signed = where((floored < 0) | (floored > 0) | ~isfinite(rough), floored, rough * 0.0)
    return where((y < 0) | (y > 0), signed, rough).astype(a.dtype)


# --- whole parts --------------------------------------------------------------------------------


def trunc(x: Any) -> Tensor:
    """x without its fraction; a zero keeps the sign of x."""
    return _truncated(x) if _has_fraction("trunc", x) else as_tensor("trunc", x)


@in_float32
def _truncated(x: Tensor) -> Tensor:
    return _trunc(x, _mod(x, 1.0))


def _trunc(x: Tensor, fraction: Tensor) -> Tensor:
    size = x * x  # below 1 exactly where |x| is, and infinite only where x is whole
    inside = where(size < inf, x - fraction, x)
    return where(size < 1.0, x * 0.0, inside)


def floor(x: Any) -> Tensor:
    """The largest whole number that is not above x."""
    return _floor(x) if _has_fraction("floor", x) else as_tensor("floor", x)


@in_float32
def _floor(x: Tensor) -> Tensor:
    fraction = _mod(x, 1.0)
    whole = _trunc(x, fraction)
    return where(fraction < 0, whole - 1.0, whole)


def ceil(x: Any) -> Tensor:
    """The smallest whole number that is not below x."""
    return _ceil(x) if _has_fraction("ceil", x) else as_tensor("ceil", x)


@in_float32
def _ceil(x: Tensor) -> Tensor:
    fraction = _mod(x, 1.0)
    whole = _trunc(x, fraction)
    return where(fraction > 0, whole + 1.0, whole)


def round(x: Any) -> Tensor:
    """The nearest whole number, halves to the even one; a zero keeps the sign of x."""
    return _round(x) if _has_fraction("round", x) else as_tensor("round", x)


@in_float32
def _round(x: Tensor) -> Tensor:
    """|x| is an even number plus rest in [0, 2), and the rest rounds to 0, 1 or 2."""
    size = where(x < 0, -x, x)
    rest = _mod(size, 2.0)
    steps = (rest > 0.5).astype(x.dtype) + (~(rest < 1.5)).astype(x.dtype)
    whole = (size - rest) + steps
    near = where(x < 0, -whole, whole)
    return where(size < inf, where(~(size > 0.5), x * 0.0, near), x)


def _has_fraction(name: str, x: Any) -> bool:
    return as_tensor(name, x).dtype.is_float
