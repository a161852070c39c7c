"""From a dodeca function to terms: what is the element of a value at a point?

    %0 = dodeca.contiguous(%a) (d0, d1) -> (d1, d0) element(%0, [d0, d1]) = load(a, [d1, d0])
    %1 = dodeca.sum_reduce(%0) axis 1               element(%1, [d0]) = sum(r0, load(a, [r0, d0]))

A view is absorbed by substituting its map; a reduction binds the lowest r-axis that is free at its
point, so that equal computations get equal terms (De Bruijn's levels, counted from outside).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property, partial
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
    _memo: dict[tuple[ir.Value, Point], Term] = field(default_factory=dict)

    def whole(self, value: ir.Value) -> Term:
        """The element at the value's own axes d0, d1, ..."""
        return self.element(value, tuple(of_axis(a) for a in output_axes(static_shape(value))))

    def element(self, value: ir.Value, point: Point) -> Term:
        """The element of `value` at `point`, one index expression for each dimension."""
        with deep_recursion():
            return self._element(value, point)

    def _element(self, value: ir.Value, point: Point) -> Term:
        key = (value, point)
        if key not in self._memo:
            built = self._memo[key] = self._build(value, point)
            if self.watch:
                self.watch(value, point, built)
        return self._memo[key]

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
        make = partial(terms.make, short, attr=None, dtype=kind.dtype)
        return self._rounded(kind.dtype, make if short != "cast" else lambda x: x[0], *args)

    def inside(self, value: ir.Value, at: Point, term: Term) -> bool:
        """Whether a value has a place wherever its term at a point is read.

        Views read at places outside their source, and choose something else there. Two of them may
        read the same term where the one is inside its source and the other is not.
        """
        sides = [e for e in _limits(at, static_shape(value)) if e.range[0] < 0]
        given = (_limits(p, static_shape(v)) for v, p in self._places[term]) if sides else ()
        return all(e in other for other in given for e in sides)

    @cached_property
    def _places(self) -> dict[Term, list[tuple[ir.Value, Point]]]:
        """The values that a term is, and where; of all that are known when it is asked for."""
        found: dict[Term, list[tuple[ir.Value, Point]]] = {}
        for key, term in self._memo.items():
            found.setdefault(term, []).append(key)
        return found

    def exact(self, x: Term) -> Term:
        """A 16-bit float before it was rounded, or as a float32."""
        if not self._narrow(x.dtype):
            return x
        if x.op == "select":
            return terms.select(x.args[0], *map(self.exact, x.args[1:]))
        return x.args[0] if rounded(x) else terms.cast(x, WIDE)

    def _narrow(self, dtype: DType) -> bool:
        return self.excess and dtype.is_float and dtype.bits == 16

    def _rounded(self, dtype: DType, make: Callable[[list[Term]], Term], *args: Term) -> Term:
        """What an operation makes of its operands, of a dtype: float64 by way of float32."""
        made = make([self.exact(x) for x in args])
        return terms.cast(terms.cast(made, WIDE) if self._narrow(dtype) else made, dtype)

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
            sides = _limits(place, shape)
            if view.domains:
                sides += from_affine(view.domains[i], point, symbols)
            conditions = map(terms.nonneg, (e for e in sides if e.range[0] < 0))
            condition = prod(conditions, start=terms.constant(True, DTYPES["bool"]))
            if condition.op == "const" and not condition.value:
                continue
            chain.append((condition, source, place))
            if condition.op == "const":
                break
        result = terms.constant(view.fill, kind.dtype)
        for condition, source, place in reversed(chain):
            result = terms.select(condition, self._element(source, place), result)
        return result


def _limits(at: Point, shape: Sequence[int]) -> list[Expr]:
    """What is 0 or more where a point lies inside a shape."""
    return [side for e, n in zip(at, shape, strict=True) for side in (e, e * -1 + (n - 1))]


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
