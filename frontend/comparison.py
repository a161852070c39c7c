"""Comparisons, selection, and what is made of them: exact on NaN, infinities and signed zeros.

`less_than` is false on NaN. Since x < y, y < x and x == y are all false where an operand is NaN, an
equality needs a test of order besides the two comparisons. Where neither x < y nor y < x, the
product x * y is a square (or infinite) and so above -1, unless an operand is NaN; one product
and one comparison are the whole test.

    x == y   not (x < y or y < x) and -1 < x * y
    x <= y   x < y, or not y < x and -1 < x * y
"""

from __future__ import annotations

from math import inf
from typing import Any

import numpy as np

from .arithmetic import binary
from .dialect.errors import DtypeError
from .maps import Expr, literal, symbol, view
from .movement import broadcast_places
from .promotion import as_tensor, promote, together
from .shapes import broadcast_shapes
from .tensor import Tensor, is_scalar, require


def _less(x: Tensor, y: Tensor) -> Tensor:
    return binary("less_than", x, y)


def _not(x: Tensor) -> Tensor:
    return _less(x, _filled(x, True))


def _filled(x: Tensor, value: Any) -> Tensor:
    """A constant in the shape and dtype of x."""
    return together("constant", x, value)[1]


def _or(x: Tensor, y: Tensor) -> Tensor:
    return binary("add", x, y)


def _and(x: Tensor, y: Tensor) -> Tensor:
    return binary("mul", x, y)


def _ordered_square(x: Tensor, y: Tensor) -> Tensor:
    """-1 < x * y: see the module's text."""
    product = binary("mul", x, y)
    return _less(_filled(product, -1), product)


def less(x: Any, y: Any) -> Tensor:
    """x < y."""
    return _less(*together("less", x, y))


def greater(x: Any, y: Any) -> Tensor:
    """x > y."""
    a, b = together("greater", x, y)
    return _less(b, a)


def less_equal(x: Any, y: Any) -> Tensor:
    """x <= y; false where an operand is NaN."""
    return _less_equal(*together("less_equal", x, y))


def greater_equal(x: Any, y: Any) -> Tensor:
    """x >= y; false where an operand is NaN."""
    a, b = together("greater_equal", x, y)
    return _less_equal(b, a)


def _less_equal(a: Tensor, b: Tensor) -> Tensor:
    if not a.dtype.is_float:
        return _not(_less(b, a))
    return _or(_less(a, b), _less(_less(b, a), _ordered_square(a, b)))


def equal(x: Any, y: Any) -> Tensor:
    """x == y; false where an operand is NaN; 0.0 == -0.0."""
    a, b = together("equal", x, y)
    different = _or(_less(a, b), _less(b, a))
    return _less(different, _ordered_square(a, b)) if a.dtype.is_float else _not(different)


def not_equal(x: Any, y: Any) -> Tensor:
    """x != y; true where an operand is NaN."""
    a, b = together("not_equal", x, y)
    return _not(equal(a, b)) if a.dtype.is_float else _or(_less(a, b), _less(b, a))


def isfinite(x: Any) -> Tensor:
    """Whether x is neither infinite nor NaN."""
    tensor = as_tensor("isfinite", x)
    if not tensor.dtype.is_float:
        return _filled(tensor.astype("bool"), True)
    return _and(less(tensor, inf), less(-inf, tensor))


def isinf(x: Any) -> Tensor:
    """Whether x is inf or -inf."""
    tensor = as_tensor("isinf", x)
    if not tensor.dtype.is_float:
        return _filled(tensor.astype("bool"), False)
    below, above = less(tensor, inf), less(-inf, tensor)
    return _or(_less(below, above), _less(above, below))  # one but not both; NaN has neither


def isnan(x: Any) -> Tensor:
    """Whether x is NaN: neither below inf nor above -inf."""
    tensor = as_tensor("isnan", x)
    if not tensor.dtype.is_float:
        return _filled(tensor.astype("bool"), False)
    return _not(_is_number(tensor))


def _is_number(x: Tensor) -> Tensor:
    return _or(less(x, inf), less(-inf, x))


def _bools(name: str, *values: Any) -> list[Tensor]:
    given = [as_tensor(name, v).astype("bool") for v in values]
    return together(name, *given)


def logical_and(x: Any, y: Any) -> Tensor:
    """Whether both are true; a number is true where it is not 0."""
    return _and(*_bools("logical_and", x, y))


def logical_or(x: Any, y: Any) -> Tensor:
    """Whether one is true; a number is true where it is not 0."""
    return _or(*_bools("logical_or", x, y))


def logical_xor(x: Any, y: Any) -> Tensor:
    """Whether just one is true; a number is true where it is not 0."""
    a, b = _bools("logical_xor", x, y)
    return _or(_less(a, b), _less(b, a))


def logical_not(x: Any) -> Tensor:
    """Whether x is false; a number is true where it is not 0."""
    return _not(*_bools("logical_not", x))


def _only_bools(name: str, *values: Any) -> list[Tensor]:
    tensors = together(name, *values)
    if tensors[0].dtype.kind != "bool":
        raise DtypeError(f"{name}: takes bools, not {tensors[0].dtype}; the bits are out of reach")
    return tensors


def bitwise_and(x: Any, y: Any) -> Tensor:
    """x & y of bools; DtypeError for other dtypes."""
    return logical_and(*_only_bools("bitwise_and", x, y))


def bitwise_or(x: Any, y: Any) -> Tensor:
    """x | y of bools; DtypeError for other dtypes."""
    return logical_or(*_only_bools("bitwise_or", x, y))


def bitwise_xor(x: Any, y: Any) -> Tensor:
    """x ^ y of bools; DtypeError for other dtypes."""
    return logical_xor(*_only_bools("bitwise_xor", x, y))


def invert(x: Any) -> Tensor:
    """~x of bools, and of signed integers (-1 - x); DtypeError for other dtypes."""
    tensor = as_tensor("invert", x)
    require("invert", tensor, "bool", "int")
    return _not(tensor) if tensor.dtype.kind == "bool" else -1 - tensor


def where(condition: Any, x: Any, y: Any) -> Tensor:
    """x where the condition holds, else y, all three broadcast: one view, no arithmetic.

    A y (or x) that is the same number all over is the view's fill instead of a source.
    """
    chosen = as_tensor("where", condition).astype("bool")
    a, b = promote("where", x, y)
    shape = broadcast_shapes("where", chosen.shape, a.shape, b.shape)
    s, index_map = symbol(0), broadcast_places(chosen.shape, shape)
    when: dict[bool, list[Expr]] = {True: [s - 1], False: [literal(0) - s]}
    constant = next((v for v in (b, a) if is_scalar(v)), None)
    sources, domains = [a, b], [when[True], []]
    if constant is not None:
        other = a if constant is b else b
        sources, domains = [other], [when[other is a]]
    return view(
        sources,
        [broadcast_places(v.shape, shape) for v in sources],
        shape,
        fill=0 if constant is None else constant.attribute[()],
        domains=domains,
        indices=[chosen],
        index_maps=[index_map],
    )


def _is_plain_number(x: Tensor) -> bool:
    return is_scalar(x) and not np.isnan(x.attribute)


def maximum(x: Any, y: Any) -> Tensor:
    """The larger of the two; NaN where an operand is NaN; of 0.0 and -0.0 either."""
    a, b = together("maximum", x, y)
    if _is_plain_number(a):
        a, b = b, a
    picked = where(_less(a, b), b, a)  # a where one is NaN
    if not a.dtype.is_float or _is_plain_number(b):
        return picked
    return where(_is_number(b), picked, b)


def minimum(x: Any, y: Any) -> Tensor:
    """The smaller of the two; NaN where an operand is NaN; of 0.0 and -0.0 either."""
    a, b = together("minimum", x, y)
    if _is_plain_number(a):
        a, b = b, a
    picked = where(_less(b, a), b, a)
    if not a.dtype.is_float or _is_plain_number(b):
        return picked
    return where(_is_number(b), picked, b)


def clip(x: Any, min: Any = None, max: Any = None) -> Tensor:
    """x between two bounds, either of which may be None; NaN stays NaN."""
    tensor = as_tensor("clip", x)
    if min is not None:
        tensor = maximum(tensor, min)
    return tensor if max is None else minimum(tensor, max)


def abs(x: Any) -> Tensor:
    """|x|; of -0.0 it is 0.0, of the least integer that integer. DtypeError for bools."""
    tensor = as_tensor("abs", x)
    require("abs", tensor, "float", "int", "uint")
    if tensor.dtype.kind == "uint":
        return tensor
    return where(tensor < 0, -tensor, tensor + 0.0 if tensor.dtype.is_float else tensor)


def sign(x: Any) -> Tensor:
    """-1, 0 or 1 by the sign of x; NaN of NaN. DtypeError for bools."""
    tensor = as_tensor("sign", x)
    require("sign", tensor, "float", "int", "uint")
    if tensor.dtype.is_float:
        return where(tensor < 0, -1.0, where(tensor > 0, 1.0, tensor + 0.0))
    above = (tensor > 0).astype(tensor.dtype)
    return above if tensor.dtype.kind == "uint" else where(tensor < 0, -1, above)
