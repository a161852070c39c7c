"""`power`: x ** y for every pair of dtypes."""

from __future__ import annotations

from math import inf
from typing import Any

import numpy as np

from .arithmetic import binary, sqrt, unary
from .comparison import equal, isinf, where
from .dialect.errors import DtypeError, Error
from .division import fmod
from .promotion import as_tensor, floating, is_weak, together
from .tensor import Tensor, require

_EXACT = 4  # powers up to this one are products in the dtype itself
_LARGEST = 64  # and up to this one products in float64


def power(x: Any, y: Any) -> Tensor:
    """x ** y, with C's pow at the edges: x ** 0 and 1 ** y are 1 even for NaN; (-2) ** 3 is -8,
    (-2) ** 0.5 NaN, 0 ** -1 inf.

    A Python number as y is special: whole ones are repeated products, 0.5 and -0.5 are square roots
    (-inf ** 0.5 is NaN, as with numpy's operator). Other floats narrower than float64 are computed
    in float64; for float64 the result is right to about |y * log2(x)| ulp. Integers to non-negative
    integers are exact and wrap; DtypeError for a negative number as y, while a negative element of
    a tensor y counts as 0.
    """
    if is_weak(y):
        whole = isinstance(y, int | np.integer)
        base = as_tensor("power", x) if whole else floating("power", x)
        if base.dtype.kind in ("int", "uint"):
            return _integer_constant_power(base, int(y))
        if base.dtype.is_float and (
            (float(y).is_integer() and abs(y) <= _LARGEST) or abs(y) == 0.5
        ):
            return _constant_power(base, float(y))
    a, b = together("power", x, y)
    require("power", a, "float", "int", "uint")
    if not a.dtype.is_float:
        return _integer_power(a, b)
    if a.dtype.name == "float64":
        return _general_power(a, b)
    return _general_power(a.astype("float64"), b.astype("float64")).astype(a.dtype)


def _constant_power(x: Tensor, exponent: float) -> Tensor:
    if abs(exponent) == 0.5:
        root = sqrt(x)
        return root if exponent > 0 else unary("recip", root)
    times = int(exponent)
    if 0 <= times <= _EXACT:
        return _repeated(x, times)
    if times == -1:
        return unary("recip", x)
    wide = _repeated(x.astype("float64"), abs(times))
    return (wide if times > 0 else unary("recip", wide)).astype(x.dtype)


def _integer_constant_power(x: Tensor, exponent: int) -> Tensor:
    if exponent < 0:
        raise DtypeError(f"power: an integer to the power {exponent} is no integer; use floats")
    return _repeated(x, exponent)


def _repeated(x: Tensor, times: int) -> Tensor:
    """x to a whole power by squaring."""
    result: Tensor | None = None
    square = x
    while times:
        if times & 1:
            result = square if result is None else binary("mul", result, square)
        times >>= 1
        if times:
            square = binary("mul", square, square)
    return together("power", x, 1)[1] if result is None else result


def _integer_power(a: Tensor, b: Tensor) -> Tensor:
    """a ** b by squaring, a bit of b at a time; remainders by powers of two give the bits."""
    result, square = together("power", a, 1)[1], a
    bits = a.dtype.bits - (a.dtype.kind == "int")
    for bit in range(bits):
        low = b if bit + 1 == bits else fmod(b, 2 ** (bit + 1))
        result = where(low < 2**bit, result, result * square)
        square = square * square
    return where(b < 0, 1, result)


def _general_power(x: Tensor, y: Tensor) -> Tensor:
    """pow in float64: |x| ** y = exp2(y * log2|x|), then the sign and the edges."""
    if x.dtype.name != "float64":
        raise Error(f"power: expected float64, got {x.dtype}")
    size = where(x < 0, -x, x)
    magnitude = unary("exp2", y * unary("log2", size))
    below = (x < 0) | (unary("recip", x) < 0)  # -0.0 counts, by its reciprocal
    odd = equal(where(y < 0, -y, y) % 2.0, 1.0)
    signed = where(below & odd, -magnitude, magnitude)
    fraction = fmod(y, 1.0)
    has_fraction = (fraction < 0) | (fraction > 0)
    real = where((x < 0) & (-inf < x) & has_fraction, float("nan"), signed)
    is_one = equal(y, 0.0) | equal(x, 1.0) | (equal(size, 1.0) & isinf(y))
    return where(is_one, 1.0, real)
