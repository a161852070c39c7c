"""The tile values of a step: each part of its term as a vector, and the loops around them.

In: a step (`stage`) and its buffers as memrefs. Out: `scf`, `arith`, `vector` and `memref` at the
insertion point. A part of a term is emitted once, at the level where it belongs (`placement`).

    sum(r0, a[d0, r0] * b[r0, d1])     scf.for r0 iter_args(vector<4x16xf32>):
    tiles of 4 by 16, along d1           vector.load b, 4 elements of a spread, multiply, add
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from functools import cache, partial
from itertools import product
from typing import Any

import numpy as np
from mlir import ir
from mlir.dialects import arith, memref, scf, vector

from ..dialect import DTYPES, DType
from ..dialect.errors import CompileError
from . import expand, terms
from .index import Axis, Expr, Quotient
from .loops import Around, joint, spread
from .placement import Level, carries_on, reduction_tile, tile_step, top_level
from .stage import OUTPUT, Step, kept_in
from .terms import REDUCTIONS, Term

Offsets = dict[Axis, int]  # a place in a tile, as distances from its origin
Dims = tuple[Axis, ...]  # of a tile value
Coordinates = Callable[[Offsets], list[ir.Value]]  # of an element of a buffer


def index_value(value: int) -> ir.Value:
    return arith.constant(ir.IndexType.get(), value)


def _shifted(x: ir.Value, offset: int) -> ir.Value:
    return arith.addi(x, index_value(offset)) if offset else x


def evaluate(
    expr: Expr, leaf: Callable[[Any], ir.Value], number: Callable[[int], ir.Value]
) -> ir.Value:
    """The value of an index expression, from the values of its axes and data, and of numbers."""
    total = number(expr.constant) if expr.constant or not expr.parts else None
    for atom, c in expr.parts:
        if isinstance(atom, Quotient):
            inner = evaluate(atom.expr, leaf, number)
            piece = _floor_divide(inner, number(atom.divisor), atom.expr)
        else:
            piece = leaf(atom)
        scaled = piece if c == 1 else arith.muli(piece, number(c))
        total = scaled if total is None else arith.addi(total, scaled)
    assert total is not None
    return total


def _floor_divide(x: ir.Value, by: ir.Value, expr: Expr) -> ir.Value:
    """`x // by` for the value of an expression; towards minus infinity where it may be negative."""
    if expr.range[0] >= 0:
        return arith.divui(x, by)
    quotient = arith.divsi(x, by)
    below = arith.cmpi(arith.CmpIPredicate.slt, x, arith.muli(quotient, by))
    one = arith.divui(by, by)
    return arith.select(below, arith.subi(quotient, one), quotient)


class Emitter:
    """Emits the loops of one step at the current insertion point, and each part of its term once at
    the level where it belongs, before the loops that do not matter to it."""

    def __init__(self, step: Step, arguments: dict[str, ir.Value], contract: bool):
        self.schedule, self.axes = step.schedule, step.axes
        self.step = step
        self.arguments = arguments
        self.contract = contract

    def run(self, starts: dict[Axis, ir.Value]) -> None:
        """The serial loops, and the store in the innermost; other axes that have a start are bound
        outside."""
        outer = tuple(a for a in starts if a not in self.axes)
        level = top_level(self.schedule, self.axes, outer)
        level.data["origin"] = {}
        for axis in tuple(level.tiles):
            self._bind(level, axis, starts[axis])
        self._serial(level, 0, starts)

    def _bind(self, level: Level, axis: Axis, start: ir.Value) -> None:
        """Note where the tile of a level begins along its own axis, or one of the outermost."""
        level.data["origin"] = {**level.data["origin"], axis: start}

    def _enter(self, level: Level, axis: Axis, start: ir.Value) -> None:
        """`_bind` for a level inside another."""
        level.data["origin"] = level.parent.data["origin"] if level.parent else {}
        self._bind(level, axis, start)

    def _serial(self, level: Level, depth: int, starts: dict[Axis, ir.Value]) -> None:
        """The serial loops from `depth` on; in the innermost, the value and its store."""
        if depth == len(self.schedule.order):
            for load in self.step.ahead:
                self._bring(load, level)
            found = terms.outcomes(self.step.term, len(self.axes))
            for (result, _), name in zip(found, self.step.buffers, strict=True):
                self._store(result, name, level)
            return
        axis = next(a for a in self.axes if a.name == self.schedule.order[depth])
        block, tile = self.schedule.block(axis), self.schedule.tile(axis)
        whole = block - block % tile
        spans = [(0, block, tile)]
        if self.step.once and whole < block:  # the rest is a tile of its own
            spans = [(0, whole, tile), (whole, block, block - whole)]
        for begin, end, step in spans:
            loop = scf.ForOp(index_value(begin), index_value(end), index_value(step))
            inner = level.inner(axis, step, tile_step(self.schedule, axis) if step == tile else 1)
            inner.data["loop"] = loop
            with ir.InsertionPoint(loop.body):
                start = loop.induction_variable
                if (end - begin) % step:  # the last tile is moved back to end at the edge
                    start = arith.minui(start, index_value(end - step))
                self._enter(inner, axis, arith.addi(starts[axis], start))
                self._serial(inner, depth + 1, starts)
                scf.YieldOp([])

    def value(self, term: Term, level: Level) -> ir.Value:
        """The value of a term, for what stands in `level`."""
        home = level.home(term.axes)
        if term not in home.memo:
            loop, between = None, level
            while between is not home and between.parent is not None:
                loop = between.data.get("loop", loop)
                between = between.parent
            with ir.InsertionPoint(loop) if loop is not None else nullcontext():
                home.memo[term] = self._make(term, home)
        return home.memo[term]

    def _make(self, term: Term, level: Level) -> ir.Value:
        if term.op in REDUCTIONS:
            return self._reduce(term, level)
        for child in term.children:  # all before the term, in this order
            self.value(child, level)
        if term.op == "load":
            return self._load(term, level)
        if term.op == "const":
            return expand.constant(term.value, term.dtype.name, ())
        dims = level.shape(term.axes)
        if term.op in ("index", "nonneg"):
            kind = "int32" if _short(term.attr) else "int64"
            value = self._integer(term.attr, kind, dims, level)
            if term.op == "index":
                return expand.cast(value, kind, term.dtype.name)
            return arith.cmpi(arith.CmpIPredicate.sge, value, _number(0, kind, dims, level))
        if term.op == "table":
            return self._table(term, dims, level)
        values = [self._tile(a, dims, level) for a in term.args]
        kind = term.args[-1].dtype.name  # of a select, what it chooses
        if term.op in ("cast", "bitcast"):
            convert = expand.cast if term.op == "cast" else expand.bitcast
            return convert(values[0], kind, term.dtype.name)
        name = "max" if term.op == "larger" else term.op
        return self._apply(name, values, kind)

    def _apply(self, name: str, values: list[ir.Value], kind: str) -> ir.Value:
        """An operation on tile values of a dtype."""
        return expand.emit(name, values, kind, contract=self.contract)

    def _tile(self, term: Term, dims: Dims, level: Level, kind: str | None = None) -> ir.Value:
        """The value of a term with these dimensions, cast to another type if one is named."""
        value = self.value(term, level)
        if kind is not None:
            value = expand.cast(value, term.dtype.name, kind)
        return spread_out(value, level.shape(term.axes), dims, level)

    # --- loads and stores ---------------------------------------------------------------------

    def _load(self, term: Term, level: Level) -> ir.Value:
        name, index, shape = term.attr
        source, dims = self.arguments[name], level.shape(term.axes)
        alone = term in spread(self.step.term, self.schedule.vector)
        along = None if alone else level.row(term)
        place = self._place(index, shape, level)
        if along is not None:
            tile = _load_lines(source, place, along, dims, level)
        else:
            tile = _gather(lambda o: memref.load(source, place(o)), dims, level)
        if term.dtype.kind == "bool":  # a byte in memory
            tile = expand.cast(tile, "int8", "bool")
        return tile

    def _store(self, term: Term, name: str, level: Level) -> None:
        output, dims = self.arguments[name], level.shape(frozenset(self.axes))
        value, place = self._stored(term, output, dims, level)
        along = level.line(self.step.index, dims)
        for offsets in offsets_of(dims[:-1], level):
            row = part(value, offsets)
            if along is None:
                for last in offsets_of(dims[-1:], level):
                    memref.store(part(row, last), output, place({**offsets, **last}))
            elif along == dims[-1]:
                vector.store(row, output, place(offsets))
            elif not offsets[along]:
                rows = [part(value, {**offsets, along: n}) for n in range(level.tiles[along])]
                for n, line in enumerate(_columns(rows)):
                    vector.store(line, output, place({**offsets, dims[-1]: n}))

    def _stored(
        self, term: Term, output: ir.Value, dims: Dims, level: Level
    ) -> tuple[ir.Value, Coordinates]:
        """What is stored, as it is in memory, and where."""
        value = self._tile(term, dims, level, "int8" if term.dtype.kind == "bool" else None)
        for read in (read for expr in self.step.index for read in expr.data):
            self.value(read, level)
        return value, self._place(self.step.index, ir.MemRefType(output.type).shape, level)

    def _bring(self, load: Term, level: Level) -> None:
        """Ask for the lines of a load, without waiting for them."""
        (name, index, shape), dims = load.attr, level.shape(load.axes)
        place, line = self._place(index, shape, level), 64 // load.dtype.bytes
        for offsets in offsets_of(dims, level):
            if not dims or offsets[dims[-1]] % line == 0:
                memref.prefetch(self.arguments[name], place(offsets), name[:3] == OUTPUT, 3, True)

    # --- index expressions as values ----------------------------------------------------------

    def _integer(self, expr: Expr, kind: str, dims: Dims, level: Level) -> ir.Value:
        """The values of an index expression in a tile, as integers of a dtype."""

        def leaf(atom: Any) -> ir.Value:
            if isinstance(atom, Axis):
                return _positions(atom, kind, dims, level)
            return self._tile(atom.term, dims, level, kind)

        return evaluate(expr, leaf, lambda n: _number(n, kind, dims, level))

    def _place(self, index: tuple[Expr, ...], shape: Sequence[int], level: Level) -> Coordinates:
        """The coordinates of an element of a buffer, for any place in a tile."""
        found = [self._coordinate(e, n, level) for e, n in zip(index, shape, strict=True)]
        return lambda offsets: [coordinate(offsets) for coordinate in found]

    def _coordinate(self, expr: Expr, size: int, level: Level) -> Callable[[Offsets], ir.Value]:
        """A coordinate at offsets from the tile's origin, kept inside the buffer."""
        low, high = expr.range
        base = None
        if all(isinstance(atom, Axis) and atom not in level.ragged for atom, _ in expr.parts):
            base = self._position(Expr(0, expr.parts), {}, level)  # neighbours at fixed distances

        def coordinate(offsets: Offsets) -> ir.Value:
            if base is None:
                value = self._position(expr, offsets, level)
            else:
                axes = [(a, c) for a, c in expr.parts if isinstance(a, Axis)]
                off = sum(c * level.spot(a, offsets.get(a, 0)) for a, c in axes)
                value = _shifted(base, expr.constant + off)
            if low < 0:
                value = arith.maxsi(value, index_value(0))
            if high >= size:
                value = arith.minsi(value, index_value(size - 1))
            return value

        return coordinate

    def _position(self, expr: Expr, offsets: Offsets, level: Level) -> ir.Value:
        """The value of an index expression at one place in a tile."""

        def leaf(atom: Any) -> ir.Value:
            if isinstance(atom, Axis):
                return self._along(atom, offsets.get(atom, 0), level)
            dims = level.shape(atom.term.axes)
            piece = part(self.value(atom.term, level), {a: offsets.get(a, 0) for a in dims})
            wide = expand.cast(piece, atom.term.dtype.name, "int64")
            return arith.index_cast(ir.IndexType.get(), wide)

        return evaluate(expr, leaf, index_value)

    def _along(self, axis: Axis, n: int, level: Level) -> ir.Value:
        """The n-th position of a tile along an axis, kept inside if it may reach past the end."""
        place = _shifted(level.data["origin"][axis], level.spot(axis, n))
        return arith.minui(place, index_value(axis.size - 1)) if axis in level.ragged else place

    def _table(self, term: Term, dims: Dims, level: Level) -> ir.Value:
        """A small constant array, held in a vector that is read at a computed place."""
        texts, expr = term.attr
        numbers = (terms.parse_constant(text, term.dtype) for text in texts)
        line = _vector([expand.constant(n, term.dtype.name, ()) for n in numbers])
        place = self._coordinate(expr, len(texts), level)

        def element(offsets: Offsets) -> ir.Value:
            return vector.extract(line, [place(offsets)], [ir.ShapedType.get_dynamic_size()])

        return _gather(element, dims, level)

    # --- reductions ---------------------------------------------------------------------------

    def _reduce(self, term: Term, level: Level) -> ir.Value:
        """One loop for all reductions that share it: it accumulates tiles; then comes the rest of
        the axis, then the tile's own axis."""
        group, totals = joint(self.step.term).get(term, (term,)), list[ir.Value]()
        for start, turns, inner in self._turns(term, level):
            more = self._accumulate(group, inner, start, turns)
            pairs = zip(group, totals, more, strict=True) if totals else ()
            totals = [self._combine(t, [x, y]) for t, x, y in pairs] or more
        for t, total in zip(group, totals, strict=True):
            level.memo[t] = expand.cast(total, kept_in(t).name, t.dtype.name)
        return level.memo[term]

    def _turns(self, fold: Term, level: Level) -> Iterator[tuple[int, int, Level]]:
        """The tiles of a reduction's axis, then the rest of it: from where, how many turns, and the
        level inside their loop."""
        axis, step = fold.attr, reduction_tile(fold, level, self.schedule)
        whole, rest = axis.size // step, axis.size % step
        yield 0, whole, level.inner(axis, step, step)
        if rest:
            yield whole * step, 1, level.inner(axis, rest, step)

    def _carries_on(self, fold: Term, inner: Level) -> bool:
        """Whether the reduction inside another, in whose loop `inner` is, adds to its values."""
        return carries_on(fold, self.step.term, inner, self.schedule)

    def _summand(self, fold: Term, dims: Dims, level: Level) -> ir.Value:
        """What a turn adds to a reduction's values."""
        return self._tile(fold.args[0], dims, level, kept_in(fold).name)

    def _combine(self, term: Term, values: list[ir.Value]) -> ir.Value:
        name = "add" if term.op == "sum" else "max"
        return expand.emit(name, values, kept_in(term).name, contract=self.contract)

    def _accumulate(
        self, group: Around, inner: Level, start: int, turns: int, first: Sequence[ir.Value] = ()
    ) -> list[ir.Value]:
        """`turns` tiles of the axis from `start`, reduced to values without the axis; `first` is
        what they are added to, if not nothing."""
        axis = group[0].attr
        pairs = inner.pairs(group[0], self.schedule)
        dims = inner.shape(group[0].axes if pairs else group[0].args[0].axes | {axis})

        def turn(accumulators: Sequence[ir.Value]) -> list[ir.Value]:
            found = []
            for term, accumulator in zip(group, accumulators, strict=True):
                body = term.args[0]
                if self._carries_on(term, inner):
                    deeper = inner.inner(body.attr, 1, 1)
                    found += self._accumulate((body,), deeper, 0, body.attr.size, [accumulator])
                    continue
                if pairs:
                    value = self._products_of_pairs(term, dims, inner)
                else:
                    value = self._summand(term, dims, inner)
                found.append(self._combine(term, [accumulator, value]))
            return found

        sizes, tile = tuple(inner.tiles[a] for a in dims), 1 << len(inner.bits.get(axis, ()))
        tile = max(tile, inner.tiles[axis])  # places in all
        first = first or [
            expand.constant(terms.identity(term.op, term.dtype), kept_in(term).name, sizes)
            for term in group
        ]
        if turns == 1:
            self._enter(inner, axis, index_value(start))
            totals = turn(first)
        else:
            end = start + turns * tile
            loop = scf.ForOp(index_value(start), index_value(end), index_value(tile), first)
            inner.data["loop"] = loop
            with ir.InsertionPoint(loop.body):
                self._enter(inner, axis, loop.induction_variable)
                scf.YieldOp(turn(list(loop.inner_iter_args)))
            totals = list(loop.results)
        if pairs or tile == 1:
            return totals
        return [self._folded(t, x, dims, inner) for t, x in zip(group, totals, strict=True)]

    def _products_of_pairs(self, fold: Term, dims: Dims, level: Level) -> ir.Value:
        """x[j] * y[j] + x[j + 1] * y[j + 1] for a sum over j, from products of neighbours in one
        vector: LLVM knows the instructions for that."""
        size, axis = level.tiles[dims[-1]], fold.attr

        def line(x: Term, offsets: Offsets) -> ir.Value:
            value, have = self.value(x, level), level.shape(x.axes)
            at = {a: offsets[a] for a in have if a in offsets}
            if have[-1] == axis:
                pair = ir.IntegerType.get_signless(2 * x.dtype.bits)
                two = vector.bitcast(ir.VectorType.get([1], pair), part(value, at))
                every = vector.broadcast(ir.VectorType.get([size], pair), two)
                kind = ir.VectorType.get([2 * size], ir.VectorType(value.type).element_type)
                found = vector.bitcast(kind, every)
            else:
                first, second = (part(value, {**at, axis: n}) for n in (0, 1))
                order = [i // 2 + i % 2 * size for i in range(2 * size)]
                found = vector.shuffle(first, second, order)
            return expand.cast(found, x.dtype.name, "int32")

        def row(offsets: Offsets) -> ir.Value:
            x, y = (line(operand.args[0], offsets) for operand in fold.args[0].args)
            product = arith.muli(x, y)
            ends = (vector.shuffle(product, product, list(range(n, 2 * size, 2))) for n in (0, 1))
            return arith.addi(*ends)

        return _rows(row, dims, level)

    def _folded(self, term: Term, value: ir.Value, dims: Dims, inner: Level) -> ir.Value:
        """Reduce the last dimension, in an order that the target chooses."""
        if not dims or dims[-1] != term.attr:
            raise CompileError(f"a reduced axis must be the last of its tile: {term}")
        kind = ir.VectorType(value.type)
        how = vector.CombiningKind.ADD if term.op == "sum" else _largest(kept_in(term))

        def folded(line: ir.Value) -> ir.Value:
            free = arith.FastMathFlags.reassoc
            return vector.reduction(kind.element_type, how, line, fastmath=free)

        *rows, _ = kind.shape
        if not rows:
            return folded(value)
        lines = (vector.extract(value, [], list(at)) for at in product(*map(range, rows)))
        whole = ir.VectorType.get(rows, kind.element_type)
        return vector.from_elements(whole, [folded(line) for line in lines])


# --- tile values --------------------------------------------------------------------------------


def spread_out(value: ir.Value, have: Dims, want: Dims, level: Level) -> ir.Value:
    """A tile value with the dimensions `have`, repeated along those that it lacks."""
    if have == want:
        return value
    element = value.type.element_type if isinstance(value.type, ir.VectorType) else value.type
    whole = ir.VectorType.get([level.tiles[a] for a in want], element)
    if have:
        first = want.index(have[0])
        sizes = [level.tiles[a] if a in have else 1 for a in want[first:]]
        if len(sizes) != len(have):
            value = vector.shape_cast(ir.VectorType.get(sizes, element), value)
    return vector.broadcast(whole, value)


def offsets_of(dims: Dims, level: Level) -> Iterator[Offsets]:
    """Every place in a tile, as distances from its origin."""
    for position in product(*(range(level.tiles[a]) for a in dims)):
        yield dict(zip(dims, position, strict=True))


def part(value: ir.Value, offsets: Offsets) -> ir.Value:
    """What a tile has at these places of its first dimensions."""
    return vector.extract(value, [], list(offsets.values())) if offsets else value


def _gather(element: Callable[[Offsets], ir.Value], dims: Dims, level: Level) -> ir.Value:
    """A tile from its elements, one by one."""
    if not dims:
        return element({})
    return _rows(
        lambda o: _vector([element({**o, **n}) for n in offsets_of(dims[-1:], level)]), dims, level
    )


def _rows(row: Callable[[Offsets], ir.Value], dims: Dims, level: Level) -> ir.Value:
    """A tile from its rows along the last dimension."""
    rows = [(offsets, row(offsets)) for offsets in offsets_of(dims[:-1], level)]
    value = spread_out(rows[0][1], dims[-1:], dims, level)  # each row is then written over
    for offsets, made in rows if len(dims) > 1 else ():
        value = vector.insert(made, value, [], list(offsets.values()))
    return value


def _load_lines(
    source: ir.Value, place: Coordinates, along: Axis, dims: Dims, level: Level
) -> ir.Value:
    """A tile from neighbours in a buffer: they are its rows, or lie along another dimension."""
    kind = ir.VectorType.get([level.tiles[along]], ir.MemRefType(source.type).element_type)

    def line(offsets: Offsets) -> ir.Value:
        return vector.load(kind, source, place(offsets))

    @cache
    def square(*origin: int) -> list[ir.Value]:
        block = dict(zip(dims[:-1], origin, strict=True))
        return _turned([line({**block, **n}) for n in offsets_of(dims[-1:], level)])

    def row(offsets: Offsets) -> ir.Value:
        return square(*{**offsets, along: 0}.values())[offsets[along]]

    return _rows(line if along == dims[-1] else row, dims, level)


def _short(expr: Expr) -> bool:
    """Whether 32 bits hold the value of an index expression; sums on the way to it may wrap."""
    inner = (a.expr for a, _ in expr.parts if isinstance(a, Quotient))
    return expr.range[0] >= -(1 << 31) and expr.range[1] < 1 << 31 and all(map(_short, inner))


def _number(value: int, kind: str, dims: Dims, level: Level) -> ir.Value:
    """An integer of a dtype everywhere in a tile."""
    return spread_out(expand.constant(value, kind, ()), (), dims, level)


def _positions(axis: Axis, kind: str, dims: Dims, level: Level) -> ir.Value:
    """The positions along an axis that a tile covers, as integers of a dtype."""
    element = ir.Type.parse(DTYPES[kind].mlir)
    start = arith.index_cast(element, level.data["origin"][axis])
    start = spread_out(start, (), dims, level)
    if axis not in dims:
        return start
    steps = np.array([level.spot(axis, n) for n in range(level.tiles[axis])], DTYPES[kind].numpy)
    line = ir.VectorType.get(steps.shape, element)
    places = arith.constant(line, ir.DenseElementsAttr.get(memoryview(steps.data), type=line))
    return arith.addi(start, spread_out(places, (axis,), dims, level))


def _vector(elements: list[ir.Value]) -> ir.Value:
    return vector.from_elements(ir.VectorType.get([len(elements)], elements[0].type), elements)


def _largest(dtype: DType) -> vector.CombiningKind:
    """The maximum of values of this dtype; NaN, if one of them is."""
    kinds = vector.CombiningKind
    return {"float": kinds.MAXIMUMF, "int": kinds.MAXSI}.get(dtype.kind, kinds.MAXUI)


def _columns(rows: list[ir.Value]) -> Iterator[ir.Value]:
    """The columns of rows that are as long as they are many, or a multiple."""
    row = ir.VectorType(rows[0].type)
    kind, size = ir.VectorType.get([len(rows)], row.element_type), [len(rows)]
    for start in range(0, row.shape[0], len(rows)):
        cut = partial(vector.extract_strided_slice, kind, offsets=[start], sizes=size, strides=[1])
        yield from _turned([cut(line) for line in rows])


def _turned(rows: list[ir.Value]) -> list[ir.Value]:
    """The columns of as many rows as each is long: in each step pairs of rows are interleaved."""
    size, half = len(rows), len(rows) // 2
    order = [i // 2 + i % 2 * size for i in range(2 * size)]
    for _ in range(size.bit_length() - 1):
        pairs = list(zip(rows[:half], rows[half:], strict=True))
        rows = [vector.shuffle(a, b, m) for a, b in pairs for m in (order[:size], order[size:])]
    return rows
