"""From a term back to a dodeca function: a tensor for each part, over the axes that it depends on.

    sum(r0, a0[d0, r0] * a1[r0, d1])   contiguous of a0 and of a1 to (d0, d1, r0), mul, sum_reduce

This is how extracted kernels become MLIR that prints, verifies, runs in the interpreter, and can be
read again by `comprehend`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mlir import ir

from .dialect import ops
from .dialect.errors import CompileError
from .dialect.views import View
from .passes import terms
from .passes.index import Atom, Axis, Datum, Expr, Quotient, axis_order, of_term
from .passes.terms import REDUCTIONS, Term, postorder

Place = tuple[Expr, ...]  # where a tensor is read: an expression for each of its dimensions


class Decomposer:
    """Builds the tensors of terms at the current insertion point and location."""

    def __init__(self, buffers: Mapping[str, ir.Value]):
        self.buffers = buffers
        self.made: dict[Term, ir.Value] = {}

    def tensor(self, root: Term, axes: Sequence[Axis]) -> ir.Value:
        """The tensor of a term over exactly these axes."""
        for term in postorder([root]):
            self.made[term] = self._make(term)
        return self._spread(root, tuple(axes))

    def _make(self, term: Term) -> ir.Value:
        axes = axis_order(term.axes)
        if term.op == "load":
            name, index, _ = term.attr
            return self._view(axes, (self.buffers[name], index))
        if term.op == "const":
            return ops.constant(term.value, term.dtype, ())
        if term.op == "index":
            return self._index(term.attr, axes, term)
        if term.op == "nonneg":  # a source of one element, read outside its domain as False
            return self._view(axes, (ops.constant(True, "bool", ()), ()), domains=[(term.attr,)])
        if term.op == "table":
            values = [terms.parse_constant(text, term.dtype) for text in term.attr[0]]
            line = ops.constant(values, term.dtype, (len(values),))
            return self._view(axes, (line, (term.attr[1],)))
        if term.op == "select":
            condition, *branches = term.args
            read = [(self.made[b], _own_place(b)) for b in branches]
            return self._view(axes, *read, domains=[(of_term(condition) + -1,), ()])
        if term.op in REDUCTIONS:
            around = axis_order(term.args[0].axes | {term.attr})
            body = self._spread(term.args[0], around)
            return ops.reduce(REDUCTIONS[term.op], body, around.index(term.attr))
        args = [self._spread(a, axes) for a in term.args]
        if term.op in ("cast", "bitcast"):
            return (ops.cast if term.op == "cast" else ops.bitcast)(args[0], term.dtype)
        if term.op == "div":
            dividend, divisor = (ops.cast(a, "float64") for a in args)
            quotient = ops.elementwise("mul", dividend, ops.elementwise("recip", divisor))
            return ops.cast(quotient, term.dtype)
        return ops.elementwise(term.op, *args)

    def _spread(self, term: Term, axes: tuple[Axis, ...]) -> ir.Value:
        """The term's tensor with dimensions for all of `axes`."""
        if axis_order(term.axes) == axes:
            return self.made[term]
        return self._view(axes, (self.made[term], _own_place(term)))

    def _view(
        self, axes: tuple[Axis, ...], *read: tuple[ir.Value, Place], domains: Sequence[Place] = ()
    ) -> ir.Value:
        """Sources at places, over `axes`, each where all of its domain is 0 or more."""
        sources, places = zip(*read, strict=True)
        exprs = [e for place in (*places, *domains) for e in place]
        data = list(dict.fromkeys(t for e in exprs for t in e.data))
        atoms: dict[Atom, ir.AffineExpr] = {a: ir.AffineExpr.get_dim(n) for n, a in enumerate(axes)}
        atoms |= {Datum(t): ir.AffineExpr.get_symbol(n) for n, t in enumerate(data)}

        def affine(place: Place, symbol_count: int) -> ir.AffineMap:
            return ir.AffineMap.get(len(axes), symbol_count, [_affine(e, atoms) for e in place])

        view = View(
            maps=tuple(affine(place, len(data)) for place in places),
            domains=tuple(affine(domain, len(data)) for domain in domains),
            index_maps=tuple(affine(_own_place(t), 0) for t in data),
        )
        shape, indices = [a.size for a in axes], [self.made[t] for t in data]
        return ops.contiguous(sources, view, shape, indices=indices)

    def _index(self, expr: Expr, axes: tuple[Axis, ...], term: Term) -> ir.Value:
        """An index expression's value: a view of the line 0, 1, 2, ..."""
        if expr.data:
            raise CompileError(f"an index computed from data and used as a number: {term}")
        low, high = expr.range
        line = ops.iota((high - low + 1,), 0, term.dtype)
        value = self._view(axes, (line, (expr + -low,)))
        if not low:
            return value
        return ops.elementwise("add", value, ops.constant(low, term.dtype, [a.size for a in axes]))


def _own_place(term: Term) -> Place:
    """Where the term's own tensor is read: one dimension for each of its axes."""
    return tuple(Expr(0, ((a, 1),)) for a in axis_order(term.axes))


def _affine(expr: Expr, atoms: Mapping[Atom, ir.AffineExpr]) -> ir.AffineExpr:
    total = ir.AffineExpr.get_constant(expr.constant)
    for atom, c in expr.parts:
        if isinstance(atom, Quotient):
            piece = ir.AffineExpr.get_floor_div(_affine(atom.expr, atoms), atom.divisor)
        else:
            piece = atoms[atom]
        total = total + piece * c
    return total
