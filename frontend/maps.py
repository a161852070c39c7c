"""Views as nodes: `view` builds a `contiguous` from affine expressions.

It composes on the way: a source that is itself a plain view (one source, read only inside, no index
operands) is read through, so that a chain of transposes, reshapes, slices and broadcasts is one
node. The expressions are MLIR's, which are unique objects, so that equal maps are one key.

    >>> d = dims(2)
    >>> view([x], [[d[1], d[0]]], (3, 2))          # the transpose of a 2 x 3 tensor
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from . import bindings as bindings  # before what needs MLIR: it says what is missing

# isort: split

import numpy as np
from mlir import ir

from .dialect.dtypes import DType
from .dialect.ops import context
from .dialect.views import Interval, View, binary_parts, bounds
from .shapes import Dim, Shape
from .tensor import Tensor, is_scalar, node

Expr = ir.AffineExpr


def dims(rank: int) -> list[Expr]:
    """The output indices d0, d1, ..."""
    return [ir.AffineExpr.get_dim(i, context()) for i in range(rank)]


def symbol(position: int) -> Expr:
    """The value of an index operand; after those, the extent of a dynamic output dimension."""
    return ir.AffineExpr.get_symbol(position, context())


def literal(value: int) -> Expr:
    return ir.AffineExpr.get_constant(value, context())


def floordiv(x: Expr, by: int) -> Expr:
    return ir.AffineExpr.get_floor_div(x, literal(by))


def mod(x: Expr, by: int) -> Expr:
    return ir.AffineExpr.get_mod(x, literal(by))


def view(
    sources: Sequence[Tensor],
    maps: Sequence[Sequence[Expr]],
    shape: Shape,
    *,
    fill: bool | int | float = 0,
    domains: Sequence[Sequence[Expr]] = (),
    indices: Sequence[Tensor] = (),
    index_maps: Sequence[Sequence[Expr]] = (),
    kind: DType | None = None,
) -> Tensor:
    """The tensor of this shape that a view gives; see `dialect.views` for what the parts mean."""
    read = [_through(x, exprs, shape) for x, exprs in zip(sources, maps, strict=True)]
    asked = [_through(x, exprs, shape) for x, exprs in zip(indices, index_maps, strict=True)]
    element = kind or sources[0].dtype
    if len(read) == 1 and not domains and not indices:
        source, exprs = read[0]
        if _is_identity(exprs, shape, source.shape):
            return source
        if is_scalar(source) and not exprs and not any(isinstance(size, Dim) for size in shape):
            return node("constant", (), source.attribute, shape, element)
    symbols = len(indices) + sum(isinstance(size, Dim) for size in shape)
    attribute = View(
        maps=tuple(_map(len(shape), symbols, exprs) for _, exprs in read),
        fill=_scalar(fill, element),
        domains=tuple(_map(len(shape), symbols, exprs) for exprs in domains),
        index_maps=tuple(_map(len(shape), 0, exprs) for _, exprs in asked),
    )
    operands = tuple(x for x, _ in [*read, *asked])
    return node("contiguous", operands, attribute, shape, element)


def _map(rank: int, symbols: int, exprs: Sequence[Expr]) -> ir.AffineMap:
    return ir.AffineMap.get(rank, symbols, list(exprs), context())


def _scalar(value: Any, element: DType) -> bool | int | float:
    """A fill as the value that the dtype holds, so that equal fills are one key."""
    exact = np.asarray(value).astype(element.numpy)
    return float(exact) if element.is_float else exact.item()


def _through(x: Tensor, exprs: Sequence[Expr], shape: Shape) -> tuple[Tensor, list[Expr]]:
    """What reading x at `exprs` comes down to: a tensor further up, and where to read that."""
    ranges = _ranges(shape)
    places = [simplify(e, ranges) for e in exprs]
    while _inside(places, shape, x.shape):
        if is_scalar(x) and x.shape:
            return node("constant", (), x.attribute, (), x.dtype), []
        if not _is_plain(x):
            break
        outer = _map(len(shape), 0, places)
        inner = x.attribute.maps[0].results
        places = [simplify(e.compose(outer), ranges) for e in inner]
        x = x.operands[0]
    return x, places


def _is_plain(x: Tensor) -> bool:
    """A view of one source that reads nothing but the inside of that source."""
    if x.op != "contiguous" or len(x.operands) != 1:
        return False
    attribute: View = x.attribute
    if attribute.domains or any(_has_symbol(e) for e in attribute.maps[0].results):
        return False
    return _inside(attribute.maps[0].results, x.shape, x.operands[0].shape)


def _has_symbol(expr: Expr) -> bool:
    parts = binary_parts(expr)
    if parts is None:
        return isinstance(expr, ir.AffineSymbolExpr)
    return _has_symbol(parts[1]) or _has_symbol(parts[2])


def _inside(exprs: Sequence[Expr], shape: Shape, source: Shape) -> bool:
    """Whether the expressions stay inside `source` wherever they are evaluated."""
    ranges = _ranges(shape)
    for expr, size in zip(exprs, source, strict=True):
        if isinstance(size, Dim):
            if not isinstance(expr, ir.AffineDimExpr) or shape[expr.position] != size:
                return False
            continue
        if _has_symbol(expr):
            return False
        low, high = bounds(expr, ranges)
        if low < 0 or high >= size:
            return False
    return True


def _ranges(shape: Shape) -> list[Interval]:
    return [(0, (size.high if isinstance(size, Dim) else size) - 1) for size in shape]


def _is_identity(exprs: Sequence[Expr], shape: Shape, source: Shape) -> bool:
    if shape != source:
        return False
    for i, (expr, size) in enumerate(zip(exprs, shape, strict=True)):
        same = isinstance(expr, ir.AffineDimExpr) and expr.position == i
        only = size == 1 and isinstance(expr, ir.AffineConstantExpr) and expr.value == 0
        if not (same or only):
            return False
    return True


def simplify(expr: Expr, ranges: Sequence[Interval]) -> Expr:
    """The expression with what the ranges of the dims decide: quotients, remainders, size 1.

    MLIR has already taken the multiples of the divisor out of a sum, so that what is left is a
    quotient or a remainder whose operand never leaves one period.
    """
    expr = expr.maybe_downcast()  # operators and compose give classes that may not fit the value
    parts = binary_parts(expr)
    if parts is None:
        one = isinstance(expr, ir.AffineDimExpr) and ranges[expr.position] == (0, 0)
        return literal(0) if one else expr
    sign, lhs, rhs = parts[0], simplify(parts[1], ranges), simplify(parts[2], ranges)
    if sign in ("floordiv", "mod") and isinstance(rhs, ir.AffineConstantExpr):
        by = rhs.value
        low, high = bounds(lhs, ranges)
        if float("-inf") < low <= high < float("inf") and low // by == high // by:
            period = int(low // by)
            return (
                literal(period)
                if sign == "floordiv"
                else (lhs + literal(-period * by)).maybe_downcast()
            )
    rebuilt = {
        "+": lambda: lhs + rhs,
        "*": lambda: lhs * rhs,
        "floordiv": lambda: ir.AffineExpr.get_floor_div(lhs, rhs),
        "ceildiv": lambda: ir.AffineExpr.get_ceil_div(lhs, rhs),
        "mod": lambda: ir.AffineExpr.get_mod(lhs, rhs),
    }
    return rebuilt[sign]().maybe_downcast()
