"""SSA values with Python operators, and the few other ops that an arithmetic body is written with.

In: scalars or n-D `vector<...>` of floats or signless integers. Out: arith, math, vector and scf
ops at the current insertion point:

    x = Lanes(value)
    tail = where(x < 1.0, horner(x, [1.0, 0.5, 0.25]), -x).value
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
from mlir import ir
from mlir.dialects import arith, scf, vector
from mlir.dialects import math as mlir_math

_Op = Callable[..., ir.Value]
_F, _I = arith.CmpFPredicate, arith.CmpIPredicate


def _operator(floats: _Op | None, integers: _Op | None) -> Callable[[Lanes, Lanes | float], Lanes]:
    """A method of Lanes that applies one of these ops to itself and another; None: not defined."""

    def apply(self: Lanes, other: Lanes | float) -> Lanes:
        op = floats if self.is_float else integers
        assert op is not None, f"an operator is not defined on {self.element}"
        return Lanes(op(self.value, self.like(other).value))

    return apply


class Lanes:
    """An SSA value with Python operators, so that an expansion reads like its formula.

    A plain number beside it becomes a constant of its type. Comparisons are signed but for `below`,
    and false on NaN but for `ne`; `>>` is logical.
    """

    def __init__(self, value: ir.Value) -> None:
        kind = value.type
        self.value = value
        self.shape = tuple(kind.shape) if isinstance(kind, ir.VectorType) else ()
        kind = kind.element_type if isinstance(kind, ir.VectorType) else kind
        self.element = str(kind)
        self.is_float = isinstance(kind, ir.FloatType)
        self.width = kind.width if isinstance(kind, ir.FloatType | ir.IntegerType) else 0

    @property
    def format(self) -> np.finfo:
        """What numpy says of a float's format."""
        return np.finfo(f"f{self.width // 8}")

    __add__ = _operator(arith.addf, arith.addi)
    __sub__ = _operator(arith.subf, arith.subi)
    __mul__ = _operator(arith.mulf, arith.muli)
    __truediv__ = _operator(arith.divf, None)
    __and__ = _operator(None, arith.andi)
    __or__ = _operator(None, arith.ori)
    __xor__ = _operator(None, arith.xori)
    __lshift__ = _operator(None, arith.shli)
    __rshift__ = _operator(None, arith.shrui)
    shift_signed = _operator(None, arith.shrsi)
    __lt__ = _operator(partial(arith.cmpf, _F.OLT), partial(arith.cmpi, _I.slt))
    __le__ = _operator(partial(arith.cmpf, _F.OLE), partial(arith.cmpi, _I.sle))
    __gt__ = _operator(partial(arith.cmpf, _F.OGT), partial(arith.cmpi, _I.sgt))
    __ge__ = _operator(partial(arith.cmpf, _F.OGE), partial(arith.cmpi, _I.sge))
    eq = _operator(partial(arith.cmpf, _F.OEQ), partial(arith.cmpi, _I.eq))
    ne = _operator(partial(arith.cmpf, _F.UNE), partial(arith.cmpi, _I.ne))
    below = _operator(None, partial(arith.cmpi, _I.ult))

    def __neg__(self) -> Lanes:
        return Lanes(arith.negf(self.value))

    def like(self, number: Lanes | float) -> Lanes:
        return number if isinstance(number, Lanes) else splat(number, self.element, self.shape)

    def converted(self, op: _Op, element: str) -> Lanes:
        """By one of arith's conversions, to lanes of this element."""
        return Lanes(op(mlir_type(element, self.shape), self.value))

    def reinterpret(self, element: str) -> Lanes:
        return self if element == self.element else self.converted(arith.bitcast, element)

    def bits(self) -> Lanes:
        return self.reinterpret(f"i{self.width}")

    def as_float(self) -> Lanes:
        return self.reinterpret(f"f{self.width}")

    def magnitude(self) -> Lanes:
        """|x| of a float."""
        return (self.bits() & ((1 << (self.width - 1)) - 1)).as_float()

    def with_sign_of(self, other: Lanes) -> Lanes:
        """A float >= 0 with the sign of another."""
        return (self.bits() | (other.bits() & (1 << (self.width - 1)))).as_float()

    def resize(self, width: int, signed: bool = False) -> Lanes:
        """With more or fewer bits; an integer's new ones repeat its sign if signed."""
        if width == self.width:
            return self
        if self.is_float:
            return self.converted(arith.truncf if width < self.width else arith.extf, f"f{width}")
        op = arith.trunci if width < self.width else arith.extsi if signed else arith.extui
        return self.converted(op, f"i{width}")


def where(condition: Lanes, yes: Lanes | float, no: Lanes | float) -> Lanes:
    """Lanewise select; at most one of the branches is a plain number."""
    lanes = yes if isinstance(yes, Lanes) else no
    assert isinstance(lanes, Lanes)
    return Lanes(arith.select(condition.value, lanes.like(yes).value, lanes.like(no).value))


def fma(a: Lanes, b: Lanes | float, c: Lanes | float) -> Lanes:
    """a * b + c, rounded once."""
    return Lanes(mlir_math.fma(a.value, a.like(b).value, a.like(c).value))


def horner(x: Lanes, coefficients: Sequence[float]) -> Lanes:
    """The polynomial with these coefficients, lowest power first, by fused multiply-adds."""
    result = x.like(coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        result = fma(result, x, coefficient)
    return result


def mlir_type(element: str, shape: Sequence[int]) -> ir.Type:
    """A vector, or a scalar if the shape is empty."""
    scalar = ir.Type.parse(element)
    return ir.VectorType.get(shape, scalar) if shape else scalar


def splat(number: float, element: str, shape: Sequence[int]) -> Lanes:
    """The number in every lane; an integer wraps."""
    scalar, kind = ir.Type.parse(element), mlir_type(element, shape)
    if isinstance(scalar, ir.IntegerType):
        half = 1 << (scalar.width - 1)
        value = ir.IntegerAttr.get(scalar, (int(number) + half) % (2 * half) - half)
    else:
        value = ir.FloatAttr.get(scalar, float(number))
    every = ir.DenseElementsAttr.get_splat(kind, value) if shape else value
    return Lanes(arith.constant(kind, every))


def known_number(value: ir.Value) -> float | None:
    """The number that every lane of a float value is known to be."""
    owner = value.owner
    name = None if isinstance(owner, ir.Block) else owner.operation.name
    if name in ("vector.broadcast", "vector.shape_cast"):
        return known_number(owner.operands[0])
    attribute = owner.attributes["value"] if name == "arith.constant" else None
    if isinstance(attribute, ir.DenseElementsAttr) and attribute.is_splat:
        attribute = attribute.get_splat_value()
    return attribute.value if isinstance(attribute, ir.FloatAttr) else None


def reshape(value: ir.Value, shape: Sequence[int]) -> ir.Value:
    """The same vector in another shape."""
    kind = mlir_type(Lanes(value).element, shape)
    return value if kind == value.type else vector.shape_cast(kind, value)


def any_lane(condition: Lanes) -> ir.Value:
    """Whether the condition holds in one lane at least."""
    if not condition.shape:
        return condition.value
    flat = reshape(condition.value, [math.prod(condition.shape)])
    return vector.reduction(mlir_type("i1", ()), vector.CombiningKind.OR, flat)


def branch(
    condition: ir.Value, then: Callable[[], Sequence[ir.Value]], otherwise: Sequence[ir.Value]
) -> list[ir.Value]:
    """What `then` emits if the condition holds, else these values."""
    choice = scf.IfOp(condition, [value.type for value in otherwise], has_else=True)
    for region, values in zip(choice.regions, (then, lambda: otherwise), strict=True):
        with ir.InsertionPoint(region.blocks[0]):
            scf.YieldOp(values())
    return list(choice.results)
