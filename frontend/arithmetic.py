"""Arithmetic that one or two primitives give: sums, products, roots.

Every function takes tensors, arrays and scalars, broadcasts by numpy's rule and promotes as
`promotion` says; a float result of integers is float32. Integers wrap.
"""

from __future__ import annotations

from typing import Any

from .dialect.dtypes import DTYPES
from .promotion import as_tensor, floating, in_float32, together
from .tensor import Tensor, node, require


def unary(primitive: str, x: Tensor) -> Tensor:
    """A primitive of one tensor of floats."""
    return node(primitive, (x,), None, x.shape, x.dtype)


def binary(primitive: str, x: Tensor, y: Tensor) -> Tensor:
    """A primitive of two tensors of one shape and dtype."""
    kind = DTYPES["bool"] if primitive == "less_than" else x.dtype
    return node(primitive, (x, y), None, x.shape, kind)


def add(x: Any, y: Any) -> Tensor:
    """x + y; for bools: or."""
    return binary("add", *together("add", x, y))


def multiply(x: Any, y: Any) -> Tensor:
    """x * y; for bools: and."""
    return binary("mul", *together("multiply", x, y))


def subtract(x: Any, y: Any) -> Tensor:
    """x - y, as x + y * -1, which is the same number in IEEE arithmetic. DtypeError for bools."""
    a, b = together("subtract", x, y)
    require("subtract", a, "float", "int", "uint")
    return binary("add", a, negative(b))


def negative(x: Any) -> Tensor:
    """-x; DtypeError for bools."""
    tensor = as_tensor("negative", x)
    require("negative", tensor, "float", "int", "uint")
    return tensor * (255 if tensor.dtype.kind == "uint" else -1)


def positive(x: Any) -> Tensor:
    """+x, that is x; DtypeError for bools."""
    tensor = as_tensor("positive", x)
    require("positive", tensor, "float", "int", "uint")
    return tensor


def square(x: Any) -> Tensor:
    """x * x."""
    return multiply(x, x)


def sqrt(x: Any) -> Tensor:
    """The square root, correctly rounded; NaN below 0."""
    return unary("sqrt", floating("sqrt", x))


@in_float32
def rsqrt(x: Tensor) -> Tensor:
    """1 / sqrt(x), rounded twice."""
    return unary("recip", unary("sqrt", x))


def reciprocal(x: Any) -> Tensor:
    """1 / x, correctly rounded; of integers as float32."""
    return unary("recip", floating("reciprocal", x))
