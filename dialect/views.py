"""Views: what `contiguous` reads.

A view says for every output index d = (d0, ...) where its value comes from. It has sources, each
with an affine map from d to source coordinates and optionally a domain (an affine map too: a place
belongs to the domain where every result is >= 0); integer
index operands, each with a map of its own, whose values are the symbols s0, s1, ... of the maps and
domains (after them come the extents of dynamic output dimensions); and a fill value. The element at
d is that of the first source whose domain holds d and whose coordinates lie inside it, else the
fill. So nothing is ever read outside a source.

    transpose         one source, (d0, d1) -> (d1, d0)
    pad by 1          one source, (d0) -> (d0 - 1), fill 0
    concat            two sources, (d0) -> (d0) and (d0) -> (d0 - 4)
    select            two sources, domain of the first (d0)[s0] -> (s0 - 1), s0 a bool operand
    gather rows       one source, (d0, d1)[s0] -> (s0, d1)
"""

from __future__ import annotations

import operator
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mlir import ir

MAX_SOURCES = 2  # IRDL has no variadic operand of mixed types, so each source is a slot of its own
MAX_INDICES = 2

Interval = tuple[float, float]
UNBOUNDED: Interval = (-float("inf"), float("inf"))


@dataclass(frozen=True)
class View:
    """The attributes of a `contiguous`. `domains` is empty when no source has one."""

    maps: tuple[ir.AffineMap, ...]
    fill: bool | int | float = 0
    domains: tuple[ir.AffineMap, ...] = ()
    index_maps: tuple[ir.AffineMap, ...] = ()


def binary_parts(expr: ir.AffineExpr) -> tuple[str, ir.AffineExpr, ir.AffineExpr] | None:
    """The operator and operands of a binary affine expression, None for a leaf."""
    if not isinstance(expr, ir.AffineBinaryExpr):
        return None
    sign = next(sign for sign, (kind, _) in _OPERATORS.items() if isinstance(expr, kind))
    return sign, expr.lhs, expr.rhs


_OPERATORS: dict[str, tuple[type, Callable[[Any, Any], Any]]] = {
    "+": (ir.AffineAddExpr, operator.add),
    "*": (ir.AffineMulExpr, operator.mul),
    "floordiv": (ir.AffineFloorDivExpr, operator.floordiv),
    "ceildiv": (ir.AffineCeilDivExpr, lambda x, y: (x * -1) // y * -1),
    "mod": (ir.AffineModExpr, operator.mod),
}


def fold(
    expr: ir.AffineExpr,
    dims: Sequence[Any],
    symbols: Sequence[Any] | Mapping[int, Any],
    literal: Callable[[int], Any] = int,
    combine: Callable[[str, Any, Any], Any] = lambda sign, x, y: _OPERATORS[sign][1](x, y),
) -> Any:
    """What an affine expression comes to where its dimensions and symbols have these values.

    `literal` gives the value of a number, `combine` that of an operator on two values: unless they
    are given, by Python's operators.
    """
    if isinstance(expr, ir.AffineConstantExpr):
        return literal(expr.value)
    if isinstance(expr, ir.AffineDimExpr):
        return dims[expr.position]
    if isinstance(expr, ir.AffineSymbolExpr):
        return symbols[expr.position]
    parts = binary_parts(expr)
    assert parts is not None  # there is no other kind of expression
    sign, *sides = parts
    return combine(sign, *(fold(side, dims, symbols, literal, combine) for side in sides))


def bounds(expr: ir.AffineExpr, dims: Sequence[Interval]) -> Interval:
    """An interval that holds every value of `expr`, whatever its symbols are.

    It is found by interval arithmetic, so it may be wide.
    """
    symbols = defaultdict(lambda: UNBOUNDED)
    return fold(expr, dims, symbols, lambda value: (value, value), _combine)


def _combine(sign: str, x: Interval, y: Interval) -> Interval:
    (a, b), (c, d) = x, y
    if sign == "+":
        return (a + c, b + d)
    if sign == "*":
        corners = [_times(x, y) for x in (a, b) for y in (c, d)]
        return (min(corners), max(corners))
    if c != d or c <= 0:
        return UNBOUNDED
    if sign == "mod":
        return (a, b) if a >= 0 and b < c else (0, c - 1)
    if sign == "floordiv":
        return (_floor(a, c), _floor(b, c))
    return (-_floor(-a, c), -_floor(-b, c))


def _times(x: float, y: float) -> float:
    return 0 if x == 0 or y == 0 else x * y


def _floor(x: float, y: float) -> float:
    return x if x in (-float("inf"), float("inf")) else x // y
