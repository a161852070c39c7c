"""`dodeca-tile`: from a kernel and its schedule to a tile program in upstream MLIR.

In: a function in the dodeca dialect (its schedule an attribute, else the cost model's best). Out: a
function over memrefs in `scf`, `arith`, `math`, `vector` and `memref`. Every part of the kernel's
term is one tile value: a vector whose dimensions are the part's axes that have a tile of more than
1, a scalar if there is none.

    func.func @k(%a0: memref<64x32xf32>, %a1: memref<64xf32>, %begin: index, %end: index) {
      scf.for %program = %begin to %end step %c1 { ... }         the grid of a CPU
      memref's last axis is the vector's: vector.load, arith, scf.for over reductions, vector.store

On a GPU the function is a `gpu.func` and a program is a thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

import numpy as np
from mlir import ir
from mlir.dialects import arith, gpu, memref, scf, vector

from ..dialect import TensorType
from ..dialect.errors import CompileError
from ..dialect.verifier import walk
from . import cost, expand, terms
from .comprehend import Comprehension, output_axes, static_shape
from .fuse import SCHEDULE, read_schedule
from .index import Axis, Datum, Expr, Quotient, of_axis
from .loops import Around, joint
from .placement import Level, carries_on, deep_recursion, reduction_tile, tile_step, top_level
from .schedule import Schedule
from .stage import OUTPUT, Phase, Staged, Step, kept_in, stage
from .targets import Target
from .terms import REDUCTIONS, Term

GRID = "dodeca.grid"  # on a tile function: how many programs there are
Offsets = dict[Axis, int]  # a place in a tile, as distances from its origin


@dataclass(frozen=True)
class KernelTerm:
    """A kernel read from its function: what it stores, where, and from which buffers."""

    name: str
    term: Term
    axes: tuple[Axis, ...]
    inputs: tuple[TensorType, ...]
    outputs: tuple[TensorType, ...]


def read_kernel(function: ir.Operation) -> KernelTerm:
    """The term of a kernel function; the axes of its results are the first ones of its axes."""
    block = function.regions[0].blocks[0]
    results = list(block.operations[len(block.operations) - 1].operands)
    name = ir.StringAttr(function.attributes["sym_name"]).value
    names = {v: f"a{i}" for i, v in enumerate(block.arguments)}
    comprehension = Comprehension(names.get)
    shapes = [static_shape(v) for v in results]
    wholes = [comprehension.whole(v) for v in results]
    term = terms.results(list(zip(wholes, map(len, shapes), strict=True)))
    longest = max(shapes, key=len)
    if any(shape != longest[: len(shape)] for shape in shapes):
        raise CompileError(
            f"kernel {name} has results of shapes {shapes}; their first sizes must be the same"
        )
    inputs, outputs = (tuple(map(TensorType.of, vs)) for vs in (block.arguments, results))
    return KernelTerm(name, term, output_axes(longest), inputs, outputs)


def kernel_schedule(
    function: ir.Operation, kernel: KernelTerm, target: Target, strict: bool
) -> Schedule:
    """The schedule in the function's attribute, or the cost model's best."""
    if SCHEDULE in function.attributes:
        return read_schedule(function.attributes[SCHEDULE], kernel.axes)
    return cost.cheapest(terms.rolled(kernel.term), kernel.axes, target, strict)[1]


def tile(function: ir.Operation, target: Target, precision: str) -> ir.Module:
    """The tile program of one kernel function, in a module of its own."""
    with function.context, function.location:
        kernel = read_kernel(function)
        schedule = kernel_schedule(function, kernel, target, precision == "strict")
        module, block, arguments = _shell(kernel, schedule, target)
        program = _Program(kernel, schedule, arguments, target, contract=precision == "fast")
        with ir.InsertionPoint(block.operations[len(block.operations) - 1]), deep_recursion():
            program.run(block)
    return module


def memory_type(kind: TensorType) -> str:
    """The memref of a buffer; a bool takes a byte, and integers have no sign in memory."""
    element = {"bool": "i8", "uint8": "i8"}.get(kind.dtype.name, kind.dtype.mlir)
    return "memref<" + "".join(f"{size}x" for size in kind.shape) + element + ">"


def _shell(
    kernel: KernelTerm, schedule: Schedule, target: Target
) -> tuple[ir.Module, ir.Block, dict[str, ir.Value]]:
    """An empty function with the kernel's arguments."""
    buffers = {f"a{i}": kind for i, kind in enumerate(kernel.inputs)}
    buffers |= {f"{OUTPUT}{i}": kind for i, kind in enumerate(kernel.outputs)}
    attributes = "" if target.is_gpu else " {llvm.noalias}"
    given = [f"%{name}: {memory_type(kind)}{attributes}" for name, kind in buffers.items()]
    grid = f"{GRID} = {schedule.programs(kernel.axes)} : i64"
    if target.is_gpu:
        text = (
            f"module attributes {{gpu.container_module}} {{ gpu.module @kernels {{ gpu.func "
            f"@{kernel.name}({', '.join(given)}) kernel attributes {{{grid}, known_block_size = "
            f"array<i32: {target.block}, 1, 1>}} {{ gpu.return }} }} }}"
        )
    else:
        inside = ", ".join([*given, "%begin: index", "%end: index"])
        text = f"func.func @{kernel.name}({inside}) attributes {{{grid}}} {{ func.return }}"
    module = ir.Module.parse(text)
    function = next(op for op in walk(module.operation) if GRID in op.attributes)
    block = function.regions[0].blocks[0]
    return module, block, dict(zip(buffers, block.arguments, strict=False))


# --- emission -----------------------------------------------------------------------------------


def _index(value: int) -> ir.Value:
    return arith.constant(ir.IndexType.get(), value)


def _add(x: ir.Value, offset: int) -> ir.Value:
    return arith.addi(x, _index(offset)) if offset else x


def _expression(expr: Expr, origin: dict[Axis, ir.Value]) -> ir.Value:
    """The value of an expression without quotients or data."""
    total = _index(expr.constant)
    for axis, c in expr.parts:
        assert isinstance(axis, Axis)
        total = arith.addi(total, arith.muli(origin[axis], _index(c)))
    return total


def _floor_divide(x: ir.Value, by: ir.Value, expr: Expr) -> ir.Value:
    """`x // by` for the value of an expression; towards minus infinity where it may be negative."""
    if expr.range[0] >= 0:
        return arith.divui(x, by)
    quotient = arith.divsi(x, by)
    below = arith.cmpi(arith.CmpIPredicate.slt, x, arith.muli(quotient, by))
    one = arith.divui(by, by)
    return arith.select(below, arith.subi(quotient, one), quotient)


@dataclass
class _Program:
    """The grid, and what a program does: it stores the kernel's term, or runs a stage's steps."""

    kernel: KernelTerm
    schedule: Schedule
    arguments: dict[str, ir.Value]
    target: Target
    contract: bool

    def run(self, block: ir.Block) -> None:
        """Emit the function's body."""
        if self.target.is_gpu:
            program = _gpu_program(self.target.block)
            limit = _index(self.schedule.programs(self.kernel.axes))
            inside = scf.IfOp(arith.cmpi(arith.CmpIPredicate.ult, program, limit))
            with ir.InsertionPoint(inside.then_block):
                self._store(program)
                scf.YieldOp([])
            return
        begin, end = list(block.arguments)[-2:]
        body = partial(self._steps, self._staged()) if self.schedule.fold else self._store
        loop = scf.ForOp(begin, end, _index(1))
        with ir.InsertionPoint(loop.body):
            body(loop.induction_variable)
            scf.YieldOp([])

    def _store(self, program: ir.Value) -> None:
        axes = self.kernel.axes
        names = tuple(f"{OUTPUT}{i}" for i in range(len(self.kernel.outputs)))
        step = Step(names, tuple(map(of_axis, axes)), axes, self.kernel.term, self.schedule)
        _Emitter(step, self.arguments, self.contract).run((), self._starts(program))

    def _starts(self, program: ir.Value) -> dict[Axis, ir.Value]:
        """Where this program's block starts along each axis; the last one ends at the edge."""
        starts: dict[Axis, ir.Value] = {}
        for axis in reversed(self.kernel.axes):
            block = self.schedule.block(axis)
            count = -(-axis.size // block)
            if count == 1:
                starts[axis] = _index(0)
                continue
            number = arith.remui(program, _index(count))
            program = arith.divui(program, _index(count))
            start = arith.muli(number, _index(block)) if block > 1 else number
            if axis.size % block:
                start = arith.minui(start, _index(axis.size - block))
            starts[axis] = start
        return starts

    def _staged(self) -> Staged:
        """The steps, with their local buffers allocated."""
        term = terms.rolled(self.kernel.term)
        choose = partial(cost.step_schedule, target=self.target)
        staged = stage(term, self.kernel.axes, self.schedule, choose)
        for name, (shape, dtype) in staged.buffers.items():
            kind = ir.MemRefType(ir.Type.parse(memory_type(TensorType(shape, dtype))))
            self.arguments[name] = memref.alloca(kind, [], [], alignment=64)
        return staged

    def _steps(self, staged: Staged, program: ir.Value) -> None:
        starts = {a.name: start for a, start in self._starts(program).items()}
        outer = {a: starts[a.name] for a in staged.outer}
        for phase in staged.phases:
            if phase.axis is None:
                self._phase(phase, outer)
                continue
            low, high = _index(phase.start), _index(phase.stop)
            if phase.low is not None:  # blocks begin at multiples of the step
                first = arith.maxsi(_expression(phase.low, outer), low)
                by = _index(phase.step)
                low = arith.muli(arith.divui(first, by), by)
            if phase.high is not None:
                high = arith.minsi(_expression(phase.high, outer), high)
            loop = scf.ForOp(low, high, _index(phase.step))
            with ir.InsertionPoint(loop.body):
                self._phase(phase, {**outer, phase.axis: loop.induction_variable})
                scf.YieldOp([])

    def _phase(self, phase: Phase, outer: dict[Axis, ir.Value]) -> None:
        for step in phase.steps:
            starts = {a: _index(0) for a in step.axes}
            _Emitter(step, self.arguments, self.contract).run(tuple(outer), {**outer, **starts})


class _Emitter:
    """Emits the loops of one step at the current insertion point, and each part of its term once at
    the level where it belongs, before the loops that do not matter to it."""

    def __init__(self, step: Step, arguments: dict[str, ir.Value], contract: bool):
        self.schedule, self.axes = step.schedule, step.axes
        self.step = step
        self.arguments = arguments
        self.contract = contract

    def run(self, outer: tuple[Axis, ...], starts: dict[Axis, ir.Value]) -> None:
        """The serial loops, and the store in the innermost; `outer` axes are bound outside."""
        level = top_level(self.schedule, self.axes, outer)
        first = {a: start for a, start in starts.items() if a in level.tiles}
        level.data["origin"] = first
        self._serial(level, 0, starts)

    def _serial(self, level: Level, depth: int, starts: dict[Axis, ir.Value]) -> None:
        """The serial loops from `depth` on; in the innermost, the value and its store."""
        if depth == len(self.schedule.order):
            found = terms.outcomes(self.step.term, len(self.axes))
            for (result, _), name in zip(found, self.step.buffers, strict=True):
                self._store(result, self.arguments[name], level)
            return
        axis = next(a for a in self.axes if a.name == self.schedule.order[depth])
        block, tile = self.schedule.block(axis), self.schedule.tile(axis)
        whole = block - block % tile
        spans = [(0, block, tile)]
        if self.step.once and whole < block:  # the rest is a tile of its own
            spans = [(0, whole, tile), (whole, block, block - whole)]
        for begin, end, step in spans:
            loop = scf.ForOp(_index(begin), _index(end), _index(step))
            inner = level.inner(axis, step, tile_step(self.schedule, axis) if step == tile else 1)
            inner.data["loop"] = loop
            with ir.InsertionPoint(loop.body):
                start = loop.induction_variable
                if (end - begin) % step:  # the last tile is moved back to end at the edge
                    start = arith.minui(start, _index(end - step))
                start = arith.addi(starts[axis], start)
                inner.data["origin"] = {**level.data["origin"], axis: start}
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

    def _make(self, term: Term, home: Level) -> ir.Value:
        if term.op in REDUCTIONS:
            return self.reduce(term, home)
        return self.node(term, {c: self.value(c, home) for c in term.children}, home)

    # --- nodes --------------------------------------------------------------------------------

    def node(self, term: Term, args: dict[Term, Any], level: Level) -> ir.Value:
        if term.op == "load":
            return self._load(term, args, level)
        if term.op == "const":
            return expand.constant(term.value, term.dtype.name, ())
        if term.op in ("index", "nonneg"):
            return self._expression(term, args, level)
        if term.op == "table":
            return self._table(term, args, level)
        dims = level.shape(term.axes)
        values = [self._spread(args[a], level.shape(a.axes), dims, level) for a in term.args]
        kind = term.args[-1].dtype.name  # of a select, what it chooses
        if term.op in ("cast", "bitcast"):
            convert = expand.cast if term.op == "cast" else expand.bitcast
            return convert(values[0], kind, term.dtype.name)
        name = "max" if term.op == "larger" else term.op
        return expand.emit(name, values, kind, contract=self.contract)

    def _spread(
        self, value: ir.Value, have: tuple[Axis, ...], want: tuple[Axis, ...], level: Level
    ) -> ir.Value:
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

    # --- loads and stores ---------------------------------------------------------------------

    def _load(self, term: Term, args: dict[Term, Any], level: Level) -> ir.Value:
        name, index, shape = term.attr
        source = self.arguments[name]
        dims = level.shape(term.axes)
        place = _Place(index, shape, args, level)
        along = level.row(term)
        if along is not None:
            element, length = ir.MemRefType(source.type).element_type, level.tiles[along]
            kind, last = ir.VectorType.get([length], element), dims[-1]
            turned: dict[tuple, list[ir.Value]] = {}

            def row(o: Offsets) -> ir.Value:
                if along == last:
                    return vector.load(kind, source, place.at(o))
                block = {**o, along: 0}
                if (key := tuple(block.items())) not in turned:
                    places = (place.at({**block, last: n}) for n in range(length))
                    turned[key] = _turned([vector.load(kind, source, at) for at in places])
                return turned[key][o[along]]

            tile = self._rows(row, dims, level)
        else:
            tile = self._gather(lambda o: memref.load(source, place.at(o)), dims, level)
        if term.dtype.kind == "bool":  # a byte in memory
            tile = expand.cast(tile, "int8", "bool")
        return tile

    def _offsets(self, dims: tuple[Axis, ...], level: Level) -> Iterator[Offsets]:
        """Every place in a tile, as distances from its origin."""
        for position in product(*(range(level.tiles[a]) for a in dims)):
            yield dict(zip(dims, position, strict=True))

    def _gather(
        self, element: Callable[[Offsets], ir.Value], dims: tuple[Axis, ...], level: Level
    ) -> ir.Value:
        """A tile from its elements, one by one."""
        if not dims:
            return element({})
        last = dims[-1]

        def row(offsets: Offsets) -> ir.Value:
            return _vector([element({**offsets, last: n}) for n in range(level.tiles[last])])

        return self._rows(row, dims, level)

    def _rows(
        self, row: Callable[[Offsets], ir.Value], dims: tuple[Axis, ...], level: Level
    ) -> ir.Value:
        """A tile from its rows along the last dimension."""
        places = list(self._offsets(dims[:-1], level))
        rows = [row(offsets) for offsets in places]
        if len(dims) == 1:
            return rows[0]
        value = self._spread(rows[0], dims[-1:], dims, level)  # each row is then written over
        for made, offsets in zip(rows, places, strict=True):
            value = vector.insert(made, value, [], list(offsets.values()))
        return value

    def _store(self, term: Term, output: ir.Value, level: Level) -> None:
        value, index = self.value(term, level), self.step.index
        if term.dtype.kind == "bool":
            value = expand.cast(value, "bool", "int8")
        dims = level.shape(frozenset(self.axes))
        value = self._spread(value, level.shape(term.axes), dims, level)
        shape = tuple(ir.MemRefType(output.type).shape)
        data = {t: self.value(t, level) for expr in index for t in expr.data}
        place = _Place(index, shape, data, level)
        if not dims:
            memref.store(value, output, place.at({}))
            return
        last = dims[-1]
        for offsets in self._offsets(dims[:-1], level):
            row = vector.extract(value, [], list(offsets.values())) if offsets else value
            if level.contiguous(index, last):
                vector.store(row, output, place.at(offsets))
                continue
            for n in range(level.tiles[last]):
                element = vector.extract(row, [], [n])
                memref.store(element, output, place.at({**offsets, last: n}))

    # --- index expressions as values ----------------------------------------------------------

    def _expression(self, term: Term, args: dict[Term, Any], level: Level) -> ir.Value:
        """`index` and `nonneg`: integer arithmetic on 64-bit tiles."""
        dims = level.shape(term.axes)
        value = self._integer(term.attr, args, dims, level)
        if term.op == "nonneg":
            zero = self._spread(expand.constant(0, "int64", ()), (), dims, level)
            return arith.cmpi(arith.CmpIPredicate.sge, value, zero)
        return expand.cast(value, "int64", term.dtype.name)

    def _integer(
        self, expr: Expr, args: dict[Term, Any], dims: tuple[Axis, ...], level: Level
    ) -> ir.Value:
        total = self._spread(expand.constant(expr.constant, "int64", ()), (), dims, level)
        for atom, c in expr.parts:
            if isinstance(atom, Axis):
                piece = self._axis_values(atom, dims, level)
            elif isinstance(atom, Quotient):
                inner = self._integer(atom.expr, args, dims, level)
                by = self._spread(expand.constant(atom.divisor, "int64", ()), (), dims, level)
                piece = _floor_divide(inner, by, atom.expr)
            else:
                datum = expand.cast(args[atom.term], atom.term.dtype.name, "int64")
                piece = self._spread(datum, level.shape(atom.term.axes), dims, level)
            factor = self._spread(expand.constant(c, "int64", ()), (), dims, level)
            total = arith.addi(total, piece if c == 1 else arith.muli(piece, factor))
        return total

    def _axis_values(self, axis: Axis, dims: tuple[Axis, ...], level: Level) -> ir.Value:
        """The positions along an axis that a tile covers."""
        element = ir.IntegerType.get_signless(64)
        start = arith.index_cast(element, level.data["origin"][axis])
        start = self._spread(start, (), dims, level)
        if axis not in dims:
            return start
        kind = ir.VectorType.get([level.tiles[axis]], element)
        steps = np.arange(level.tiles[axis], dtype=np.int64)
        attribute = ir.DenseElementsAttr.get(memoryview(steps.data), type=kind)
        line = arith.constant(kind, attribute)
        return arith.addi(start, self._spread(line, (axis,), dims, level))

    def _table(self, term: Term, args: dict[Term, Any], level: Level) -> ir.Value:
        """A small constant array, held in a vector that is read at a computed place."""
        texts, expr = term.attr
        numbers = (terms.parse_constant(text, term.dtype) for text in texts)
        line = _vector([expand.constant(n, term.dtype.name, ()) for n in numbers])
        dims = level.shape(term.axes)
        place = _Place((expr,), (len(texts),), args, level)

        def element(offsets: Offsets) -> ir.Value:
            return vector.extract(line, place.at(offsets), [ir.ShapedType.get_dynamic_size()])

        return self._gather(element, dims, level)

    # --- reductions ---------------------------------------------------------------------------

    def reduce(self, term: Term, level: Level) -> ir.Value:
        """One loop for all reductions that share it: it accumulates tiles; then comes the rest of
        the axis, then the tile's own axis."""
        axis, group = term.attr, joint(self.step.term).get(term, (term,))
        step = reduction_tile(term, level, self.schedule)
        whole, rest = axis.size // step, axis.size % step
        totals = self._accumulate(group, level.inner(axis, step, step), 0, whole)
        if rest:
            more = self._accumulate(group, level.inner(axis, rest, step), whole * step, 1)
            totals = [self._combine(t, [x, y]) for t, x, y in zip(group, totals, more, strict=True)]
        for t, total in zip(group, totals, strict=True):
            level.memo[t] = expand.cast(total, kept_in(t).name, t.dtype.name)
        return level.memo[term]

    def _combine(self, term: Term, values: list[ir.Value]) -> ir.Value:
        name = "add" if term.op == "sum" else "max"
        return expand.emit(name, values, kept_in(term).name, contract=self.contract)

    def _accumulate(
        self,
        group: Around,
        inner: Level,
        start: int,
        turns: int,
        first: Sequence[ir.Value] = (),
    ) -> list[ir.Value]:
        """`turns` tiles of the axis from `start`, reduced to values without the axis; `first` is
        what they are added to, if not nothing."""
        axis, outside = group[0].attr, inner.parent
        assert outside is not None
        have = inner.shape(group[0].args[0].axes)
        dims = inner.shape(group[0].args[0].axes | {axis})

        def turn(accumulators: Sequence[ir.Value]) -> list[ir.Value]:
            found = []
            for term, accumulator in zip(group, accumulators, strict=True):
                body = term.args[0]
                if carries_on(term, self.step.term, inner, self.schedule):
                    deeper = inner.inner(body.attr, 1, 1)
                    found += self._accumulate((body,), deeper, 0, body.attr.size, [accumulator])
                    continue
                value = self.value(body, inner)
                value = expand.cast(value, term.dtype.name, kept_in(term).name)
                value = self._spread(value, have, dims, inner)
                found.append(self._combine(term, [accumulator, value]))
            return found

        tile, sizes = inner.tiles[axis], tuple(inner.tiles[a] for a in dims)
        first = first or [
            expand.constant(terms.identity(term.op, term.dtype), kept_in(term).name, sizes)
            for term in group
        ]
        if turns == 1:
            inner.data["origin"] = {**outside.data["origin"], axis: _index(start)}
            totals = turn(first)
        else:
            end = start + turns * tile
            loop = scf.ForOp(_index(start), _index(end), _index(tile), first)
            inner.data["loop"] = loop
            inner.data["origin"] = {**outside.data["origin"], axis: loop.induction_variable}
            with ir.InsertionPoint(loop.body):
                scf.YieldOp(turn(list(loop.inner_iter_args)))
            totals = list(loop.results)
        if tile > 1:
            totals = [self._fold_last(t, x, dims) for t, x in zip(group, totals, strict=True)]
        return totals

    def _fold_last(self, term: Term, value: ir.Value, dims: tuple[Axis, ...]) -> ir.Value:
        """Reduce the last dimension by halves; of an odd length the last element waits aside."""
        if not dims or dims[-1] != term.attr:
            raise CompileError(f"a reduced axis must be the last of its tile: {term}")
        sizes = list(ir.VectorType(value.type).shape)
        aside: list[ir.Value] = []
        while sizes[-1] > 1:
            if sizes[-1] % 2:
                aside.append(_slice(value, sizes, sizes[-1] - 1, 1))
            half = sizes[-1] // 2
            halves = [_slice(value, sizes, 0, half), _slice(value, sizes, half, half)]
            value, sizes = self._combine(term, halves), [*sizes[:-1], half]
        for last in aside:
            value = self._combine(term, [value, last])
        if len(sizes) == 1:
            return vector.extract(value, [], [0])
        element = ir.VectorType(value.type).element_type
        return vector.shape_cast(ir.VectorType.get(sizes[:-1], element), value)


def _vector(elements: list[ir.Value]) -> ir.Value:
    return vector.from_elements(ir.VectorType.get([len(elements)], elements[0].type), elements)


def _slice(value: ir.Value, sizes: list[int], start: int, size: int) -> ir.Value:
    """`size` elements of the last dimension."""
    element = ir.VectorType(value.type).element_type
    result = ir.VectorType.get([*sizes[:-1], size], element)
    ones = [1] * len(sizes)
    offsets = [0] * (len(sizes) - 1) + [start]
    return vector.extract_strided_slice(result, value, offsets, [*sizes[:-1], size], ones)


def _turned(rows: list[ir.Value]) -> list[ir.Value]:
    """The columns of as many rows as each is long: in each step pairs of rows are interleaved."""
    size, half = len(rows), len(rows) // 2
    order = [i // 2 + i % 2 * size for i in range(2 * size)]
    for _ in range(size.bit_length() - 1):
        pairs = list(zip(rows[:half], rows[half:], strict=True))
        rows = [vector.shuffle(a, b, m) for a, b in pairs for m in (order[:size], order[size:])]
    return rows


def _gpu_program(block: int) -> ir.Value:
    """The number of this thread in the whole launch; the size of a block is fixed."""
    x = gpu.Dimension.x
    return arith.addi(arith.muli(gpu.block_id(x), _index(block)), gpu.thread_id(x))


@dataclass
class _Place:
    """The coordinates of an element of a buffer, for any place in a tile."""

    index: tuple[Expr, ...]
    shape: tuple[int, ...]
    args: dict[Term, Any]
    level: Level

    def __post_init__(self) -> None:
        self.bases = [self._base(e) for e in self.index]

    def _base(self, expr: Expr) -> ir.Value | None:
        """The coordinate at the tile's origin, if neighbours lie at fixed distances from it."""
        if all(isinstance(atom, Axis) for atom, _ in expr.parts):
            return self._value(Expr(0, expr.parts), {})
        return None

    def at(self, offsets: Offsets) -> list[ir.Value]:
        """Coordinates at these offsets from the tile's origin, kept inside the buffer."""
        return [
            self._inside(e, n, base, offsets)
            for e, n, base in zip(self.index, self.shape, self.bases, strict=True)
        ]

    def _inside(self, expr: Expr, size: int, base: ir.Value | None, offsets: Offsets) -> ir.Value:
        if base is None:
            value = self._value(expr, offsets)
        else:
            moved = sum(
                c * offsets.get(atom, 0) for atom, c in expr.parts if isinstance(atom, Axis)
            )
            value = _add(base, expr.constant + moved)
        low, high = expr.range
        if low < 0:
            value = arith.maxsi(value, _index(0))
        if high >= size:
            value = arith.minsi(value, _index(size - 1))
        return value

    def _value(self, expr: Expr, offsets: Offsets) -> ir.Value:
        total: ir.Value | None = None
        for atom, c in expr.parts:
            if isinstance(atom, Axis):
                piece = _add(self.level.data["origin"][atom], offsets.get(atom, 0))
            elif isinstance(atom, Quotient):
                inner = self._value(atom.expr, offsets)
                piece = _floor_divide(inner, _index(atom.divisor), atom.expr)
            else:
                piece = self._datum(atom, offsets)
            scaled = piece if c == 1 else arith.muli(piece, _index(c))
            total = scaled if total is None else arith.addi(total, scaled)
        return _index(expr.constant) if total is None else _add(total, expr.constant)

    def _datum(self, atom: Datum, offsets: Offsets) -> ir.Value:
        """One element of the tile of an index that is data."""
        value = self.args[atom.term]
        dims = self.level.shape(atom.term.axes)
        if dims:
            value = vector.extract(value, [], [offsets.get(a, 0) for a in dims])
        wide = expand.cast(value, atom.term.dtype.name, "int64")
        return arith.index_cast(ir.IndexType.get(), wide)
