"""Tile values of a program that a block of threads runs on a GPU.

In: a step and a layout (`linear`) for each axis. Out: the code of one thread: of each tile value it
has the elements that its layout gives it, in a vector. The loops, and where each part stands, are
those of a CPU (`emitter`); what differs is where a thread's places lie, what it loads and stores at
once, and that sums go on from thread to thread.

    sum(r0, x[d0, r0])   r0 in (R, R, 0, 1, 2, 3, 4): loads of 16 bytes, sums of what a thread has,
                         five exchanges between the lanes of a warp
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import reduce
from itertools import product
from math import prod

from mlir import ir
from mlir.dialects import arith, gpu, llvm, memref, scf, vector

from ...dialect.errors import CompileError
from .. import expand, terms
from ..emitter import Dims, Emitter, Offsets, index_value, offsets_of, part, spread_out
from ..index import Axis, Expr
from ..lanes import Lanes, reshape
from ..loops import goes_on
from ..placement import Level, contiguous_along
from ..stage import Step, kept_in
from ..targets import Target
from ..terms import Term
from .linear import REGISTER, Bits, run, spots, thread_mask

WIDEST = 16  # bytes of one access
INSTRUCTIONS = {  # of the hardware, within 2 ulp; numbers below the normal ones are 0 to it
    ("cuda", "exp2", "float32"): "llvm.nvvm.ex2.approx.ftz.f",
    ("hip", "exp2", "float32"): "llvm.amdgcn.exp2",
}
Layouts = tuple[Bits, ...]  # of a tile, by its axes


@dataclass
class Block:
    """The threads of a block: how the axes of tiles lie in them, the values that they hold from
    step to step, and the memory that they share."""

    target: Target
    threads: int
    layouts: dict[str, Bits]  # by the name of an axis
    held: dict[str, tuple[Layouts, ir.Value]] = field(default_factory=dict)
    shared_bytes: int = 0
    loop: BlockLoop | None = None  # the loop over blocks of an axis that a step stands in
    _parts: dict[tuple, ir.Value] = field(default_factory=dict)
    places: dict[str, tuple[int, int]] = field(default_factory=dict)  # and sizes, of arrays
    arrays: Counter[str] = field(default_factory=Counter)  # of a phase so far, by their buffers

    def begin(self) -> None:
        """Emit what comes first: the thread's number; more is put behind it later."""
        self.thread = gpu.thread_id(gpu.Dimension.x)
        self.behind = index_value(0).owner

    def digits(self, bits: Bits) -> ir.Value:
        """The position along an axis at which a thread begins."""
        return self._once(("digits", bits), lambda: self._digits(bits))

    def owns(self, mask: int) -> ir.Value:
        """Whether these bits of the thread's number are 0."""
        return self._once(("owns", mask), lambda: self._is_zero(mask))

    def _once(self, key: tuple, make: Callable[[], ir.Value]) -> ir.Value:
        if key not in self._parts:
            with ir.InsertionPoint(self.behind):
                self._parts[key] = make()
        return self._parts[key]

    def _is_zero(self, mask: int) -> ir.Value:
        masked = arith.andi(self.thread, index_value(mask))
        return arith.cmpi(arith.CmpIPredicate.eq, masked, index_value(0))

    def _digits(self, bits: Bits) -> ir.Value:
        total, k = index_value(0), 0
        while k < len(bits):
            end = k + 1
            while bits[k] != REGISTER and end < len(bits) and bits[end] == bits[k] + end - k:
                end += 1
            if bits[k] != REGISTER:  # neighbouring bits move together
                piece = arith.shrui(self.thread, index_value(bits[k]))
                piece = arith.andi(piece, index_value((1 << end - k) - 1))
                total = arith.addi(total, arith.shli(piece, index_value(k)))
            k = end
        return total

    def share(self, name: str, shape: Sequence[int], dtype: str) -> ir.Value:
        """An array in shared memory; arrays of one name lie at one place."""
        size = prod(shape) * ((width_of(ir.Type.parse(dtype)) + 7) // 8)
        place, room = self.places.get(name, (0, -1))
        if size > room:
            place, self.places[name] = self.shared_bytes, (self.shared_bytes, size)
            self.shared_bytes += -(-size // 128) * 128
        text = "x".join(map(str, shape))
        view, memory = (
            ir.Type.parse(f"memref<{text}x{dtype}, 3>"),
            self._once(("memory",), self._memory),
        )
        key = (place, text, dtype)
        return self._once(key, lambda: memref.view(view, memory, index_value(place), []))

    def _memory(self) -> ir.Value:
        """The shared memory of a block, whose size the launch says."""
        function = self.behind.operation.parent
        assert function is not None
        text = 'memref.global "private" @shared : memref<0xi8, 3> {alignment = 128}'
        ir.InsertionPoint(function).insert(ir.Operation.parse(text))
        return memref.get_global(ir.Type.parse("memref<0xi8, 3>"), "shared")


@dataclass
class BlockLoop:
    """A loop over blocks of an axis, while its body is emitted."""

    axis: Axis
    operation: scf.ForOp
    first: ir.Value  # of its blocks; inside the axis even if there is no turn
    end: ir.Value
    step: int
    waits: list[ir.Operation] = field(default_factory=list)  # for copies made in the turn before

    @property
    def place(self) -> ir.Value:
        return self.operation.induction_variable

    def level_at(self, level: Level, place: ir.Value) -> Level:
        """A level as it is in the turn at another place."""
        origin = {**level.data["origin"], self.axis: place}
        return replace(level, data={**level.data, "origin": origin})


class BlockEmitter(Emitter):
    """Emits what one thread does of a step."""

    def __init__(
        self, step: Step, arguments: dict[str, ir.Value], contract: bool, block: Block,
        multiples: dict[Axis, int],
    ):  # fmt: skip
        super().__init__(step, arguments, contract)
        self.schedule = replace(self.schedule, vector=None)  # no dimension is last of all
        self.block, self.multiples = block, multiples

    # --- where a thread's places lie ----------------------------------------------------------

    def _bind(self, level: Level, axis: Axis, start: ir.Value) -> None:
        level.steps[axis] = self.multiples.get(axis, level.steps.get(axis, 1))
        if axis in self.axes:
            level.bits[axis] = self.block.layouts.get(axis.name, ())
        bits = level.bits.get(axis, ())
        level.tiles[axis] = 1 << bits.count(REGISTER)
        level.ragged |= {axis} if 1 << len(bits) > axis.size else set()
        level.data["starts"] = {**(level.parent or level).data.get("starts", {}), axis: start}
        super()._bind(level, axis, arith.addi(start, self.block.digits(bits)) if bits else start)

    def _line(self, index: tuple[Expr, ...], shape: Sequence[int], bits: int, level: Level,
              dims: Dims) -> tuple[Axis | None, int]:  # fmt: skip
        """Along which dimension elements of a thread are neighbours in a buffer, and how many of
        them are loaded or stored at once."""
        found: tuple[Axis | None, int] = (None, 1)
        for axis in dims:
            own = level.bits.get(axis, ())
            width = min(run(own), WIDEST * 8 // bits) if own else 1
            while width > found[1]:
                if self._aligned(index, shape, axis, width, level):
                    found = (axis, width)
                width //= 2
        return found

    def _aligned(
        self, index: tuple[Expr, ...], shape: Sequence[int], axis: Axis, width: int, level: Level
    ) -> bool:
        step = level.steps.get(axis, 1)
        if not contiguous_along(index, axis) or (axis in level.ragged and axis.size % width):
            return False
        stride = 1
        for expr, size in zip(index[::-1], shape[::-1], strict=True):
            low, high = expr.range
            if expr.constant * stride % width or (not (low >= 0 and high < size)):
                return False
            for atom, c in expr.parts:
                known = level.steps.get(atom, 1) if isinstance(atom, Axis) else 1
                if atom != axis and c * stride * known % width:
                    return False
            stride *= size
        return step % width == 0 and (len(shape) < 2 or shape[-1] % width == 0)

    # --- loads and stores ---------------------------------------------------------------------

    def _load(self, term: Term, level: Level) -> ir.Value:
        name, index, shape = term.attr
        dims = level.shape(term.axes)
        if name in self.block.held:
            return self._held(name, index, dims, level)
        source = self.arguments[name]
        element = ir.MemRefType(source.type).element_type
        along, width = self._line(index, shape, term.dtype.bits, level, dims)
        place = self._place(index, shape, self._narrowed(level, along, width))
        values: dict[tuple[int, ...], ir.Value] = {}
        for offsets in offsets_of(dims, level):
            if along is not None and offsets[along] % width:
                continue
            if along is None:
                values[(*offsets.values(),)] = memref.load(source, place(offsets))
                continue
            line = vector.load(
                ir.VectorType.get([width], element), source, place(offsets),
                alignment=width * term.dtype.bits // 8,
            )  # fmt: skip
            for n in range(width):
                at = {**offsets, along: offsets[along] + n}
                values[(*at.values(),)] = part(line, {along: n})
        tile = assembled(values, dims, level)
        return expand.cast(tile, "int8", "bool") if term.dtype.kind == "bool" else tile

    def _narrowed(self, level: Level, along: Axis | None, width: int) -> Level:
        """The level, for places of lines of so many elements: these lie inside as a whole."""
        return replace(level, data={**level.data, "width": {along: width}})

    def _along(self, axis: Axis, n: int, level: Level) -> ir.Value:
        place = arith.addi(level.data["origin"][axis], index_value(level.spot(axis, n)))
        if axis not in level.ragged:
            return place
        width = level.data.get("width", {}).get(axis, 1)
        return arith.minui(place, index_value(axis.size - width))

    def _held(self, name: str, index: tuple[Expr, ...], dims: Dims, level: Level) -> ir.Value:
        """What the threads hold of a local buffer, which must lie as it is read."""
        layouts, value = self.block.held[name]
        read = [axis for expr in index for axis in expr.own_axes]
        found = tuple(level.bits.get(axis, ()) for axis in read)
        if found != layouts:
            value = self._relaid(value, layouts, found)
        order = [axis for axis in read if axis in dims]
        if order != list(dims):
            whole = ir.VectorType.get(
                [level.tiles[a] for a in dims], ir.VectorType(value.type).element_type
            )
            value = vector.transpose(whole, value, [order.index(a) for a in dims])
        return value

    def _relaid(self, value: ir.Value, have: Layouts, want: Layouts) -> ir.Value:
        """A tile in another layout, in which each thread has what some threads of its warp had: of
        the lanes that a register's place has in the one and not in the other, it reads all."""
        pairs = [list(zip(h, w, strict=True)) for h, w in zip(have, want, strict=True)]
        moved = {h for bits in pairs for h, w in bits if h != w}
        kept = all(h == w or w == REGISTER for bits in pairs for h, w in bits)
        if not kept or any(1 << b >= self.block.target.warp for b in moved):
            raise CompileError(f"a tile lies in {have}, and is read in {want}")
        sides: dict[tuple[int, ...], list[ir.Value]] = {
            (): elements(value)
        }  # by the bits of the lanes that the values come from
        for b in sorted(moved):
            first = self.block.owns(1 << b)
            pairs_of = {
                at: (x, elements(self._exchanged(_like(x, value), 1 << b)))
                for at, x in sides.items()
            }
            sides = {}
            for at, (own, other) in pairs_of.items():
                for bit, (yes, no) in enumerate(((own, other), (other, own))):
                    picked = zip(yes, no, strict=True)
                    sides[(*at, bit)] = [arith.select(first, x, y) for x, y in picked]
        registers = [1 << bits.count(REGISTER) for bits in want]
        parts = []
        for place in product(*map(range, registers)):
            source, lanes = 0, dict[int, int]()
            for n, h, w, bits in zip(place, have, want, pairs, strict=True):
                at = spots(w)[n]
                lanes |= {b: at >> k & 1 for k, (b, other) in enumerate(bits) if b != other}
                kept_bits = [k for k, b in enumerate(h) if b == REGISTER]
                own = sum((at >> k & 1) << i for i, k in enumerate(kept_bits))
                source = (source << len(kept_bits)) + own
            parts.append(sides[tuple(lanes[b] for b in sorted(moved))][source])
        whole = vector.from_elements(ir.VectorType.get([len(parts)], parts[0].type), parts)
        return reshape(whole, [n for n in registers if n > 1])

    def _store(self, term: Term, name: str, level: Level) -> None:
        axes = tuple(a for a in self.axes if a in level.bits)
        dims = level.shape(frozenset(self.axes))
        if name.startswith("%"):
            value = self._tile(term, dims, level)
            self.block.held[name] = (tuple(level.bits[a] for a in axes), value)
            return
        output = self.arguments[name]
        index, shape = self.step.index, ir.MemRefType(output.type).shape
        kind = "int8" if term.dtype.kind == "bool" else None
        value = self._tile(term, dims, level, kind)
        for read in (read for expr in index for read in expr.data):
            self.value(read, level)
        value, level = self._in_lines(value, shape, dims, level)
        along, width = self._line(index, shape, term.dtype.bits, level, dims)
        place = self._place(index, shape, self._narrowed(level, along, width))
        free = (self.block.threads - 1) & ~thread_mask([level.bits[a] for a in axes])
        for offsets in offsets_of(dims, level):
            if along is not None and offsets[along] % width:
                continue
            with self._where(offsets, free, level):
                if along is None:
                    memref.store(part(value, offsets), output, place(offsets))
                    continue
                parts = [part(value, {**offsets, along: offsets[along] + n}) for n in range(width)]
                line = vector.from_elements(ir.VectorType.get([width], parts[0].type), parts)
                alignment = width * term.dtype.bits // 8
                vector.store(line, output, place(offsets), alignment=alignment)

    def _in_lines(
        self, value: ir.Value, shape: Sequence[int], dims: Dims, level: Level
    ) -> tuple[ir.Value, Level]:
        """A tile with longer runs of neighbours along its last dimension, up to what one access
        stores, and the level in which it lies so: a bit of its registers and one of the lanes swap
        places, which takes exchanges of half of the registers.
        """
        index, axis = self.step.index, dims[-1] if dims else None
        while axis is not None and axis not in level.ragged:
            bits = level.bits[axis]
            k, width = run(bits).bit_length() - 1, Lanes(value).width
            more = k < len(bits) and REGISTER in bits[k:] and 1 << bits[k] < self.block.target.warp
            if not more or not 32 <= run(bits) * width < WIDEST * 8:
                break
            j, lane = bits.index(REGISTER, k), bits[k]
            turned = tuple(
                REGISTER if n == k else lane if n == j else b for n, b in enumerate(bits)
            )
            origin = arith.addi(level.data["starts"][axis], self.block.digits(turned))
            data = {**level.data, "origin": {**level.data["origin"], axis: origin}}
            longer = replace(level, bits={**level.bits, axis: turned}, data=data)
            if not self._aligned(index, shape, axis, 2 << k, longer):
                break
            value, level = self._swapped(value, 1 << k, lane), longer
        return value, level

    def _swapped(self, value: ir.Value, size: int, lane: int) -> ir.Value:
        """A tile of whose every two lines of so many elements one goes to the lane that differs in
        a bit, for one of its: what was in two lanes' registers comes to lie in one's."""
        flat, first = elements(value), self.block.owns(1 << lane)
        line = ir.VectorType.get([size], flat[0].type)
        words = ir.VectorType.get(
            [size * Lanes(value).width // 32], ir.IntegerType.get_signless(32)
        )
        found = []
        for n in range(0, len(flat), 2 * size):
            low, high = (vector.from_elements(line, flat[m : m + size]) for m in (n, n + size))
            sent = vector.bitcast(words, arith.select(first, high, low))
            got = vector.bitcast(line, self._exchanged(sent, 1 << lane))
            found += elements(arith.select(first, low, got))
            found += elements(arith.select(first, got, high))
        return _like(found, value)

    def _apply(self, name: str, values: list[ir.Value], kind: str) -> ir.Value:
        instruction = INSTRUCTIONS.get((self.block.target.family, name, kind))
        if instruction is None or not self.contract:
            return super()._apply(name, values, kind)
        return _each(values[0], lambda x: llvm.call_intrinsic(x.type, instruction, [x], [], []))

    def _bring(self, load: Term, level: Level) -> None:
        """Nothing: other warps run while one waits."""

    @contextmanager
    def _where(self, offsets: Offsets, free: int, level: Level | None) -> Iterator[None]:
        """Code for the places inside the kernel's axes, and one of the threads that share each."""
        tests = [self.block.owns(free)] if free else []
        if level is not None:
            ragged = (a for a in self.axes if a in level.ragged)
            tests += [self._inside(a, offsets.get(a, 0), level) for a in ragged]
        if not tests:
            yield
            return
        choice = scf.IfOp(reduce(arith.andi, tests))
        with ir.InsertionPoint(choice.then_block):
            yield
            scf.YieldOp([])

    def _inside(self, axis: Axis, n: int, level: Level) -> ir.Value:
        place = arith.addi(level.data["origin"][axis], index_value(level.spot(axis, n)))
        return arith.cmpi(arith.CmpIPredicate.ult, place, index_value(axis.size))

    # --- reductions ---------------------------------------------------------------------------

    def _turns(self, fold: Term, level: Level) -> Iterator[tuple[int, int, Level]]:
        axis, bits = fold.attr, self._reduction_bits(fold, level)
        step = 1 << len(bits)
        whole, rest = axis.size // step, axis.size % step
        for start, turns in ((0, whole), (whole * step, bool(rest))):
            if turns:
                inner = level.inner(axis, 1 << bits.count(REGISTER), step)
                inner.bits[axis] = bits
                inner.ragged |= {axis} if start or not whole else set()
                yield start, turns, inner

    def _reduction_bits(self, fold: Term, level: Level) -> Bits:
        """How the places of a turn lie: as they are known to, or in threads that no other axis of
        the summand uses."""
        axis = fold.attr
        if axis.name in self.block.layouts:
            return self.block.layouts[axis.name]
        if not self.schedule.reassociate or self._goes_into(fold):
            return ()
        used = thread_mask([level.bits[a] for a in fold.axes if a in level.bits])
        threads = [b for b in range(self.block.threads.bit_length() - 1) if not used >> b & 1]
        along = [t for t in fold.loads if contiguous_along(t.attr[1], axis)]
        width = max((WIDEST * 8 // t.dtype.bits for t in along), default=1)
        width = min(width, 1 << (axis.size.bit_length() - 1))
        registers = (REGISTER,) * (width.bit_length() - 1)
        missing = max(0, (axis.size - 1).bit_length() - len(registers))
        return (*registers, *threads[:missing])

    def _goes_into(self, fold: Term) -> Term | None:
        """The reduction, of this one, that goes on from its values, if there is one."""
        every = terms.postorder([self.step.term]) if self.schedule.reassociate else []
        over = (t for t in every if t.op == fold.op and t.args == (fold,))
        return next((t for t in over if goes_on(t, self.step.term)), None)

    def _carries_on(self, fold: Term, inner: Level) -> bool:
        return self.schedule.reassociate and goes_on(fold, self.step.term)

    def _summand(self, fold: Term, dims: Dims, level: Level) -> ir.Value:
        value, kept = super()._summand(fold, dims, level), kept_in(fold).name
        sizes, last = tuple(level.tiles[a] for a in dims), fold
        while last is not None:  # and all that go on from here; another loop around is no matter
            if last.attr in level.ragged:
                neutral = expand.constant(terms.identity(fold.op, fold.dtype), kept, sizes)
                value = arith.select(self._mask(last.attr, dims, level), value, neutral)
            last = self._goes_into(last)
        return value

    def _mask(self, axis: Axis, dims: Dims, level: Level) -> ir.Value:
        """Which elements of a tile lie inside an axis."""
        found = [self._inside(axis, n, level) for n in range(level.tiles[axis])]
        if axis not in dims:
            return spread_out(found[0], (), dims, level)
        line = vector.from_elements(ir.VectorType.get([len(found)], found[0].type), found)
        return spread_out(line, (axis,), dims, level)

    def _folded(self, term: Term, value: ir.Value, dims: Dims, inner: Level) -> ir.Value:
        axis = term.attr
        if axis in dims:
            value = super()._folded(term, value, dims, inner)
        bits = [b for b in inner.bits[axis] if b != REGISTER]
        lanes = self.block.target.warp.bit_length() - 1
        for bit in (b for b in bits if b < lanes):
            other = self._exchanged(value, 1 << bit)
            value = self._combine(term, [value, other])
        across = [b for b in bits if b >= lanes]
        return self._across_warps(term, value, across) if across else value

    def _exchanged(self, value: ir.Value, distance: int) -> ir.Value:
        """The same values of the thread whose number differs by this bit."""

        def exchange(x: ir.Value) -> ir.Value:
            i32 = ir.IntegerType.get_signless(32)
            by, width = arith.constant(i32, distance), arith.constant(i32, self.block.target.warp)
            return gpu.ShuffleOp(x, by, width, gpu.ShuffleMode.XOR).results[0]

        return _each(value, lambda x: _in_words(x, exchange))

    def _across_warps(self, term: Term, value: ir.Value, bits: Sequence[int]) -> ir.Value:
        """The values of all warps whose number differs in these bits, combined in their order,
        through shared memory."""
        parts = elements(value)
        element = str(parts[0].type)
        array = self.block.share(
            f"{element} {len(parts)}", (len(parts), self.block.threads), element
        )
        for n, x in enumerate(parts):
            memref.store(x, array, [index_value(n), self.block.thread])
        gpu.barrier()
        mask = sum(1 << b for b in bits)
        base = arith.andi(self.block.thread, index_value(self.block.threads - 1 - mask))
        found = []
        for n in range(len(parts)):
            total = None
            for which in range(1 << len(bits)):
                other = sum((which >> k & 1) << b for k, b in enumerate(bits))
                place = arith.addi(base, index_value(other))
                x = memref.load(array, [index_value(n), place])
                total = x if total is None else self._combine(term, [total, x])
            found.append(total)
        gpu.barrier()
        return _like(found, value)


# --- elements of a thread's tile ------------------------------------------------------------------


def assembled(values: dict[tuple[int, ...], ir.Value], dims: Dims, level: Level) -> ir.Value:
    """A tile from its elements."""
    order = [values[(*offsets.values(),)] for offsets in offsets_of(dims, level)]
    if not dims:
        return order[0]
    flat = vector.from_elements(ir.VectorType.get([len(order)], order[0].type), order)
    return reshape(flat, [level.tiles[a] for a in dims])


def elements(value: ir.Value) -> list[ir.Value]:
    """The elements of a tile, the last dimension fastest."""
    if not isinstance(value.type, ir.VectorType):
        return [value]
    count = prod(value.type.shape)
    flat = reshape(value, [count])
    return [vector.extract(flat, [], [n]) for n in range(count)]


def _like(parts: Sequence[ir.Value], value: ir.Value) -> ir.Value:
    """A tile of these elements, of another's shape."""
    if not isinstance(value.type, ir.VectorType):
        return parts[0]
    flat = vector.from_elements(ir.VectorType.get([len(parts)], parts[0].type), list(parts))
    return reshape(flat, value.type.shape)


def _each(value: ir.Value, function: Callable[[ir.Value], ir.Value]) -> ir.Value:
    return _like([function(x) for x in elements(value)], value)


def _in_words(x: ir.Value, exchange: Callable[[ir.Value], ir.Value]) -> ir.Value:
    """`exchange` of a value of any width, in words of 32 bits, which is what threads exchange."""
    kind, i32, width = x.type, ir.IntegerType.get_signless(32), width_of(x.type)
    bits = ir.IntegerType.get_signless(width)
    whole = x if isinstance(kind, ir.IntegerType) else arith.bitcast(bits, x)
    if width <= 32:
        word = exchange(whole if width == 32 else arith.extui(i32, whole))
        found = word if width == 32 else arith.trunci(bits, word)
    else:
        pair = vector.bitcast(ir.VectorType.get([2], i32), spread_one(whole))
        words = [exchange(vector.extract(pair, [], [n])) for n in range(2)]
        both = vector.from_elements(ir.VectorType.get([2], i32), words)
        found = vector.extract(vector.bitcast(ir.VectorType.get([1], bits), both), [], [0])
    return found if isinstance(kind, ir.IntegerType) else arith.bitcast(kind, found)


def width_of(kind: ir.Type) -> int:
    """The bits of a float or an integer."""
    assert isinstance(kind, ir.FloatType | ir.IntegerType)
    return kind.width


def spread_one(x: ir.Value) -> ir.Value:
    """A vector of one element."""
    return vector.from_elements(ir.VectorType.get([1], x.type), [x])
