"""From a dodeca function to terms: what is the element of a value at a point?

    %0 = dodeca.contiguous(%a) (d0, d1) -> (d1, d0) element(%0, [d0, d1]) = load(a, [d1, d0])
    %1 = dodeca.sum_reduce(%0) axis 1               element(%1, [d0]) = sum(r0, load(a, [r0, d0]))

A view is absorbed by substituting its map; a reduction binds the lowest r-axis that is free at its
point, so that equal computations get equal terms (De Bruijn's levels, counted from outside).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from math import prod

from mlir import ir

from ..dialect import DTYPES, DType, ops
from ..dialect.errors import CompileError
from ..dialect.ops import TensorType
from ..dialect.verifier import place
from . import terms
from .index import Axis, Expr, from_affine, of_axis, of_term
from .placement import deep_recursion
from .terms import REDUCTIONS, Term

Point = tuple[Expr, ...]
WIDE = DTYPES["float32"]  # what 16-bit floats are computed in
REDUCTION_OF = {primitive: op for op, primitive in REDUCTIONS.items()}


def output_axes(shape: Sequence[int]) -> tuple[Axis, ...]:
    """The axes d0, d1, ... of a buffer, numbered by position."""
    return tuple(Axis(f"d{i}", size) for i, size in enumerate(shape))


def static_shape(value: ir.Value) -> tuple[int, ...]:
    """The shape of a value; CompileError where a size is dynamic."""
    kind = TensorType.of(value)
    if None in kind.shape:
        raise CompileError(
            f"{kind} has a dynamic size; kernels are compiled for fixed sizes: give sizes, or let "
            "dodeca.compile with a Dim make one executable for each size it meets"
        )
    return tuple(size for size in kind.shape if size is not None)


@dataclass
class Comprehension:
    """Gives the element of any value of a function at any point, as a term.

    `buffer` names the values that are read from memory (inputs, say) and gives None for those that
    are computed. `watch`, if given, is told each (value, point, term) that is built.
    """

    buffer: Callable[[ir.Value], str | None]
    watch: Callable[[ir.Value, Point, Term], None] | None = None
    excess: bool = False
    _view_of: Callable = field(default_factory=lambda: cache(ops.read_view))
    known: dict[tuple[ir.Value, Point], Term] = field(default_factory=dict)

    def whole(self, value: ir.Value) -> Term:
        """The element at the value's own axes d0, d1, ..."""
        return self.element(value, tuple(of_axis(a) for a in output_axes(static_shape(value))))

    def element(self, value: ir.Value, point: Point) -> Term:
        """The element of `value` at `point`, one index expression for each dimension."""
        with deep_recursion():
            return self._element(value, point)

    def _element(self, value: ir.Value, point: Point) -> Term:
        key = (value, point)
        if key not in self.known:
            built = self.known[key] = self._build(value, point)
            if self.watch:
                self.watch(value, point, built)
        return self.known[key]

    def _build(self, value: ir.Value, point: Point) -> Term:
        kind = TensorType.of(value)
        name = self.buffer(value)
        if name is not None:
            return terms.load(name, point, static_shape(value), kind.dtype)
        operation = value.owner.operation  # no block: arguments are buffers
        short = ops.operation_name(operation)
        if short is None:
            where = f"{operation.name} at {place(operation.location)}"
            raise CompileError(f"cannot compile {where}: not an operation of dodeca")
        if short == "contiguous":
            return self._view(operation, kind, point)
        if short == "constant":
            return _constant(operation, kind, point)
        if short == "iota":
            return terms.index(point[ops.read_axis(operation)], kind.dtype)
        if short in REDUCTION_OF:
            return self._reduce(REDUCTION_OF[short], operation, point)
        # the last operand first, as in a view: the search meets equalities in this order
        args = [self._element(x, point) for x in reversed(operation.operands)][::-1]
        if short == "bitcast":
            return terms.bitcast(args[0], kind.dtype)
        if short == "cast":  # from float64 by way of float32, as is all that is rounded
            narrow = self.excess and kind.dtype.is_float and kind.dtype.bits == 16
            exact = self.exact(args[0])
            return terms.cast(terms.cast(exact, WIDE) if narrow else exact, kind.dtype)
        return self._rounded(kind.dtype, lambda x: terms.make(short, x, None, kind.dtype), *args)

    def exact(self, x: Term) -> Term:
        """A 16-bit float before it was rounded, or as a float32."""
        if not self.excess or not x.dtype.is_float or x.dtype.bits != 16:
            return x
        return x.args[0] if rounded(x) else terms.cast(x, WIDE)

    def _rounded(self, dtype: DType, make: Callable[[list[Term]], Term], *args: Term) -> Term:
        """What an operation makes of its operands, of a dtype."""
        return terms.cast(make([self.exact(x) for x in args]), dtype)

    def _reduce(self, op: str, operation: ir.Operation, point: Point) -> Term:
        operand = operation.operands[0]
        position = ops.read_axis(operation)
        taken = {axis.name for expr in point for axis in expr.axes}
        number = next(n for n in range(len(taken) + 1) if f"r{n}" not in taken)
        axis = Axis(f"r{number}", static_shape(operand)[position])
        inner = (*point[:position], of_axis(axis), *point[position:])
        x = self._element(operand, inner)
        return self._rounded(x.dtype, lambda args: terms.reduction(op, axis, *args), x)

    def _view(self, operation: ir.Operation, kind: TensorType, point: Point) -> Term:
        view, roles = self._view_of(operation)
        indices = zip(roles.indices, view.index_maps, strict=True)
        symbols = [of_term(self._element(x, from_affine(m, point, []))) for x, m in indices]
        chain: list[tuple[Term, ir.Value, Point]] = []
        for i, source in enumerate(roles.sources):
            shape = static_shape(source)
            place = from_affine(view.maps[i], point, symbols)
            limits = [c for e, n in zip(place, shape, strict=True) for c in (e, e * -1 + (n - 1))]
            if view.domains:
                limits += from_affine(view.domains[i], point, symbols)
            conditions = map(terms.nonneg, (e for e in limits if e.range[0] < 0))
            condition = prod(conditions, start=terms.constant(True, DTYPES["bool"]))
            if condition.op == "const" and not condition.value:
                continue
            chain.append((condition, source, place))
            if condition.op == "const":
                break
        result = terms.constant(view.fill, kind.dtype)
        for condition, source, place in reversed(chain):
            pair = self._element(source, place), result
            choose = partial(terms.select, condition)
            result = self._rounded(kind.dtype, lambda args, f=choose: f(*args), *pair)
        return result


def rounded(x: Term) -> bool:
    """Whether it is a float32, rounded to 16 bits."""
    return x.op == "cast" and x.dtype.is_float and x.args[0].dtype == WIDE


def _constant(operation: ir.Operation, kind: TensorType, point: Point) -> Term:
    elements = ir.DenseElementsAttr(operation.attributes["value"])
    if elements.is_splat:
        return terms.constant(ops.read_scalar(elements.get_splat_value()), kind.dtype)
    values = ops.read_array(elements)
    position = Expr(0)
    for expr, size in zip(point, values.shape, strict=True):
        position = position * size + expr
    return terms.table(values, position, kind.dtype)
