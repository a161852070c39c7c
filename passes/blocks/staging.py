"""Operands of matrix products in shared memory, which the threads of a block fill together.

In: a load inside an operand. Out: an array of slots by rows by columns, copied in lines of 16 bytes
and read where a fragment needs it. Columns are what lies side by side in memory; chunks of 16 bytes
change places by a linear map of the row (`swizzle`), so that no bank is asked for twice at once.

    a[d0, r0]    rows d0, columns r0: a thread reads 16 bytes of its row
    b[r0, d1]    rows r0, columns d1: ldmatrix turns squares of 8 by 8 as it reads them
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

from mlir import ir
from mlir.dialects import arith, gpu, nvgpu, nvvm, scf, vector

from ..emitter import Offsets, index_value, offsets_of, part
from ..index import Axis
from ..placement import Level
from ..terms import Term
from .linear import REGISTER, Bits, block_layouts, run, spots, thread_mask
from .threads import BlockEmitter, assembled

CHUNK = 16  # bytes that are swapped as one
BANKS = 128  # bytes that are read at once
WARPS = 5  # the first bit of a thread's number that says in which warp it is


Turn = Callable[[ir.Value, bool, Sequence[ir.Value]], list[ir.Value]]  # start, ragged, totals


@dataclass(frozen=True)
class StagedLoad:
    """A load of which a tile lies in shared memory."""

    load: Term
    rows: Axis
    columns: Axis
    copy: dict[Axis, Bits]  # how the threads share the copying
    array: ir.Value  # slots by rows by columns
    swizzle: tuple[int, ...]  # for each bit of a row which columns change places
    turned: bool  # whether fragments are turned as they are read
    waits: bool  # whether threads wait for what they copy, before they go on


class StagingEmitter(BlockEmitter):
    """Emits what one thread does of a step, with loads through shared memory."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.slots: dict[Term, tuple[StagedLoad, ir.Value]] = {}  # where a turn finds its loads

    def _load(self, term: Term, level: Level) -> ir.Value:
        if term not in self.slots:
            return super()._load(term, level)
        staged, slot = self.slots[term]
        read = self._squares if staged.turned else self._lines
        return read(staged, slot, level)

    # --- what is staged -----------------------------------------------------------------------

    def _staged(
        self, term: Term, own: Axis, lies: Bits, axis: Axis, bits: Bits, whole: int, level: Level
    ) -> Iterator[StagedLoad]:
        """The loads of an operand that are worth it: two of their axes are its own and the summed
        one, and neighbours along one of them fill lines. What a loop over blocks reads in each turn
        anew stays in registers if there is one stage."""
        loop, bound = self.block.loop, {*level.tiles, axis}  # not what sums inside read
        for load in term.loads if self.schedule.stages else ():
            name, index, shape = load.attr
            again = loop is None or loop.axis in load.axes or self.schedule.stages > 1
            if (
                name in self.block.held
                or load.children
                or not {own, axis} <= load.axes <= bound
                or not again
            ):
                continue
            size, lanes = load.dtype.bytes, CHUNK // load.dtype.bytes
            for columns in (axis, own):
                rows = own if columns is axis else axis
                sizes = {rows.name: 1 << len(bits if rows is axis else lies)}
                sizes[columns.name] = 1 << len(bits if columns is axis else lies)
                layouts = block_layouts(sizes, [columns.name], lanes, self.block.threads)
                copy = {a: layouts[a.name] for a in (rows, columns)}
                places = {a: (copy[a], index_value(0)) for a in copy}
                trial = self._level_of(places, level)
                found = self._line(index, shape, load.dtype.bits, trial, trial.shape(load.axes))
                if found != (columns, lanes):
                    continue
                mma = self.block.target.matrix == "mma"
                turned = columns is own and mma and size == 2
                waits = not mma or (columns is own and not turned)
                if columns is own and not turned:  # turned in registers, on its way
                    rows, columns = columns, rows
                pitch, count = sizes[columns.name], self.block.arrays[name]
                masks = swizzle(
                    bits if turned else lies, lies if turned else bits, pitch, size, turned
                )
                slots = 1 if whole == 1 << len(bits) else self._slots(waits)
                self.block.arrays[name] += 1
                array = self.block.share(
                    f"{name} {count}",
                    (slots, sizes[rows.name], pitch),
                    load.dtype.mlir,
                )
                yield StagedLoad(load, rows, columns, copy, array, masks, turned, waits)
                break

    def _slots(self, waits: bool) -> int:
        """How many turns of a loop have room in shared memory."""
        return 2 if waits else max(2, self.schedule.stages)

    def _level_of(
        self,
        places: Mapping[Axis, tuple[Bits, ir.Value]],
        level: Level,
        ragged: Iterable[Axis] = (),
    ) -> Level:
        """A level of its own, where axes lie and begin like this: how they do elsewhere does not
        matter to it."""
        inner = Level(None, dict(level.tiles), dict(level.rank), dict(level.steps))
        inner.bits, origin = dict(level.bits), dict(level.data["origin"])
        inner.ragged = level.ragged.union(ragged)
        for axis, (bits, start) in places.items():
            inner.bits[axis], inner.tiles[axis] = bits, 1 << bits.count(REGISTER)
            inner.rank.setdefault(axis, 500)
            if axis not in level.tiles:
                inner.steps[axis] = 1 << len(bits)
            origin[axis] = arith.addi(start, self.block.digits(bits))
        inner.data = {"origin": origin, "starts": level.data["starts"]}
        return inner

    # --- turns --------------------------------------------------------------------------------

    def _run(
        self, turn: Turn, totals: list[ir.Value], staged: list[StagedLoad],
        along: tuple[Axis, Bits, int], level: Level,
    ) -> list[ir.Value]:  # fmt: skip
        """All whole turns along an axis; what they read is copied while others run."""
        axis, bits, whole = along
        step, loop = 1 << len(bits), self.block.loop
        waits = any(s.waits for s in staged)  # then for all of them
        staged = [replace(s, waits=waits) for s in staged]

        def copy(
            start: ir.Value,
            slot: ir.Value,
            level: Level = level,
            some: Iterable[StagedLoad] = staged,
        ) -> None:
            for s in some:
                self._put(s, self._fetch(s, start, slot, axis, level), slot)

        def run(start: ir.Value, slot: ir.Value, now: Sequence[ir.Value]) -> list[ir.Value]:
            self.slots = {s.load: (s, slot) for s in staged}
            found = turn(start, False, now)
            self.slots = {}
            return found

        zero = self.block.digits(())  # before all loops
        if whole == step and not staged:
            return turn(zero, False, totals)
        if whole == step:
            still = [s for s in staged if loop is not None and loop.axis not in s.load.axes]
            moving = [s for s in staged if s not in still]
            if loop is not None and still:
                with ir.InsertionPoint(loop.operation):
                    copy(zero, zero, level, still)
                    if not waits:
                        close_group()
            if loop is None or waits or not moving:
                gpu.barrier()  # all have read what lies there
                copy(zero, zero, level, moving)
                if not waits:
                    close_group()
                    wait_groups(0)
                gpu.barrier()
                return run(zero, zero, totals)
            with ir.InsertionPoint(loop.operation):
                copy(zero, zero, loop.level_at(level, loop.first), moving)
                close_group()
            loop.waits.append(wait_groups(0))
            gpu.barrier()
            found = run(zero, zero, totals)
            gpu.barrier()
            ahead = arith.addi(loop.place, index_value(loop.step))
            more = scf.IfOp(arith.cmpi(arith.CmpIPredicate.slt, ahead, loop.end))
            with ir.InsertionPoint(more.then_block):
                copy(zero, zero, loop.level_at(level, ahead), moving)
                scf.YieldOp([])
            close_group()
            return found
        if staged and loop is not None:
            gpu.barrier()
        slots = self._slots(waits)
        for n in range(slots - 1 if staged else 0):
            if n * step < whole:
                copy(index_value(n * step), index_value(n))
            if not waits:
                close_group()
        if staged and waits:
            gpu.barrier()
        made = scf.ForOp(zero, index_value(whole), index_value(step), totals)
        with ir.InsertionPoint(made.body):
            start, now = made.induction_variable, list(made.inner_iter_args)
            if not staged:
                scf.YieldOp(turn(start, False, now))
                return list(made.results)
            number = arith.divui(start, index_value(step))
            slot = arith.remui(number, index_value(slots))
            into = arith.remui(arith.addi(number, index_value(slots - 1)), index_value(slots))
            ahead = arith.addi(start, index_value((slots - 1) * step))
            if waits:
                last = arith.minui(ahead, index_value(whole - step))
                fetched = [self._fetch(s, last, into, axis, level) for s in staged]
                found = run(start, slot, now)
                for s, values in zip(staged, fetched, strict=True):
                    self._put(s, values, into)
                gpu.barrier()
            else:
                wait_groups(slots - 2)
                gpu.barrier()
                more = scf.IfOp(arith.cmpi(arith.CmpIPredicate.ult, ahead, index_value(whole)))
                with ir.InsertionPoint(more.then_block):
                    copy(ahead, into)
                    scf.YieldOp([])
                close_group()
                found = run(start, slot, now)
            scf.YieldOp(found)
        return list(made.results)

    # --- copies -------------------------------------------------------------------------------

    def _fetch(
        self, staged: StagedLoad, start: ir.Value, slot: ir.Value, axis: Axis, level: Level
    ) -> tuple[ir.Value, Level] | None:
        """A thread's part of a copy: its values, or None if they go on their way by themselves."""
        starts = level.data["starts"]
        places = {a: (b, start if a is axis else starts[a]) for a, b in staged.copy.items()}
        inner, load = self._level_of(places, level), staged.load
        if staged.waits:
            return super()._load(load, inner), inner
        name, index, shape = load.attr
        width = CHUNK // load.dtype.bytes
        place = self._place(
            index, shape, replace(inner, data={**inner.data, "width": {staged.columns: width}})
        )
        target = self._shared(staged, slot, inner)
        with self._owned(staged):
            for offsets in offsets_of(inner.shape(load.axes), inner):
                if not offsets[staged.columns] % width:
                    copy_line(
                        self.arguments[name], place(offsets), staged.array, target(offsets), width
                    )
        return None

    def _put(
        self, staged: StagedLoad, fetched: tuple[ir.Value, Level] | None, slot: ir.Value
    ) -> None:
        """Store what a thread has fetched."""
        if fetched is None:
            return
        value, inner = fetched
        dims, columns = inner.shape(staged.load.axes), staged.columns
        width = min(run(inner.bits[columns]), CHUNK // staged.load.dtype.bytes)
        target = self._shared(staged, slot, inner)
        kind = ir.VectorType.get([width], ir.VectorType(value.type).element_type)
        with self._owned(staged):
            for offsets in offsets_of(dims, inner):
                if offsets.get(columns, 0) % width:
                    continue
                at = [{**offsets, columns: offsets.get(columns, 0) + n} for n in range(width)]
                parts = [part(value, {a: o[a] for a in dims}) for o in at]
                line = vector.from_elements(kind, parts)
                alignment = width * staged.load.dtype.bytes
                vector.store(line, staged.array, target(offsets), alignment=alignment)

    def _owned(self, staged: StagedLoad) -> AbstractContextManager[None]:
        """Code for one of the threads that share each place of a copy."""
        free = (self.block.threads - 1) & ~thread_mask(list(staged.copy.values()))
        return self._where({}, free, None)

    def _shared(
        self, staged: StagedLoad, slot: ir.Value, level: Level
    ) -> Callable[[Offsets], list[ir.Value]]:
        """Where an element of a tile lies in the array, by its offsets."""
        masks = staged.swizzle
        row, column = (self.block.digits(level.bits[a]) for a in (staged.rows, staged.columns))
        column = arith.xori(column, swapped(row, masks)) if any(masks) else column

        def place(offsets: Offsets) -> list[ir.Value]:
            r, c = (level.spot(a, offsets.get(a, 0)) for a in (staged.rows, staged.columns))
            off = index_value(c ^ swapped_number(r, masks))
            return [slot, arith.addi(row, index_value(r)), arith.xori(column, off)]

        return place

    # --- reads --------------------------------------------------------------------------------

    def _lines(self, staged: StagedLoad, slot: ir.Value, level: Level) -> ir.Value:
        """A tile, line by line."""
        dims, columns = level.shape(staged.load.axes), staged.columns
        width = min(run(level.bits[columns]), CHUNK // staged.load.dtype.bytes)
        kind = ir.VectorType.get([width], ir.MemRefType(staged.array.type).element_type)
        place = self._shared(staged, slot, level)
        values: dict[tuple[int, ...], ir.Value] = {}
        for offsets in offsets_of(dims, level):
            if offsets.get(columns, 0) % width:
                continue
            alignment = width * staged.load.dtype.bytes
            line = vector.load(kind, staged.array, place(offsets), alignment=alignment)
            for n in range(width):
                at = {**offsets, columns: offsets.get(columns, 0) + n}
                values[tuple(at[a] for a in dims)] = vector.extract(line, [], [n])
        return assembled(values, dims, level)

    def _squares(self, staged: StagedLoad, slot: ir.Value, level: Level) -> ir.Value:
        """A tile of squares that are turned as they are read."""
        own, depth = staged.columns, staged.rows
        across, along, together, begins = squares(level.bits[own], level.bits[depth])
        inner = self._level_of(
            {own: (across, index_value(0)), depth: (along, index_value(0))}, level
        )
        dims, values = level.shape(staged.load.axes), dict[tuple[int, ...], ir.Value]()
        inner.bits = {**inner.bits}
        place = self._shared(staged, slot, inner)
        masks = staged.swizzle
        for o, d in begins:
            c, r = spots(level.bits[own])[o], spots(level.bits[depth])[d]
            _, row, column = place({})
            off = index_value(c ^ swapped_number(r, masks))
            at = [slot, arith.addi(row, index_value(r)), arith.xori(column, off)]
            found = read_squares(staged.array, at, len(together))
            for n, (o2, d2) in enumerate(together):
                for k in range(2):
                    offsets = {own: o | o2, depth: d | d2 | k}
                    values[tuple(offsets[a] for a in dims)] = vector.extract(found, [], [n, k])
        return assembled(values, dims, level)


def swizzle(rows: Bits, columns: Bits, pitch: int, size: int, turned: bool) -> tuple[int, ...]:
    """The least swizzle with which lanes that read at once read from different banks.

    `rows` and `columns` say how the reading threads lie; a row has `pitch` elements of so many
    bytes. In turned reads eight lanes name eight rows, those that fragments have in (R, 0, 1).
    """
    chunk = CHUNK // size
    width = CHUNK if turned else min(run(columns) * size, CHUNK)
    lanes = range((BANKS // width).bit_length() - 1)
    if turned:
        moves = [(1 << k, 0) for k in _square(rows)]
    else:
        moves = [(_weight(rows, b), _weight(columns, b)) for b in lanes]
    found, taken = [0] * 16, [0]

    def bank(row: int, column: int) -> int:
        swapped = column
        for bit, mask in enumerate(found):
            swapped ^= mask if row >> bit & 1 else 0
        return (row * pitch + swapped) * size % BANKS // width

    for row, column in moves:
        if bank(row, column) in taken and row:
            free = [m for m in (chunk, 2 * chunk, 4 * chunk) if m < pitch]
            bit = row.bit_length() - 1
            for mask in free:
                found[bit] = mask
                if bank(row, column) not in taken:
                    break
            else:
                found[bit] = 0
        taken += [x ^ bank(row, column) for x in taken]
    return tuple(found)


def _weight(bits: Bits, source: int) -> int:
    return 1 << bits.index(source) if source in bits else 0


def _square(rows: Bits) -> tuple[int, ...]:
    """The bits of a row's position that change within a square of 8 by 8."""
    return rows.index(REGISTER), rows.index(0), rows.index(1)


def swapped(x: ir.Value, masks: Sequence[int]) -> ir.Value:
    """The columns to swap in a row, by their bits."""
    total, bit = index_value(0), 0
    while bit < len(masks):
        end = bit + 1
        while masks[bit] and end < len(masks) and masks[end] == masks[end - 1] << 1:
            end += 1
        if masks[bit]:
            piece = arith.andi(arith.shrui(x, index_value(bit)), index_value((1 << end - bit) - 1))
            shift = index_value(masks[bit].bit_length() - 1)
            total = arith.xori(total, arith.shli(piece, shift))
        bit = end
    return total


def swapped_number(x: int, masks: Sequence[int]) -> int:
    """The same of a number."""
    total = 0
    for bit, mask in enumerate(masks):
        total ^= mask if x >> bit & 1 else 0
    return total


def squares(
    own: Bits, depth: Bits
) -> tuple[Bits, Bits, list[tuple[int, int]], list[tuple[int, int]]]:
    """How ldmatrix reads fragments that lie turned, four squares at once: where each lane's row
    begins, along an operand's own axis and along the depth; the registers of the squares that are
    read at once; and those at which each reading begins.
    """
    lanes = {depth.index(REGISTER): 0, depth.index(0): 1, depth.index(1): 2}
    along = [k for k, source in enumerate(depth) if source == REGISTER][1:]
    across = [k for k, source in enumerate(own) if source == REGISTER]
    taken = [("depth", n + 1) for n in range(min(1, len(along)))]
    taken += [("own", n) for n in range(min(2 - len(taken), len(across)))]
    taken += [("depth", n + 2) for n in range(min(2 - len(taken), max(0, len(along) - 1)))]
    places = {"own": dict[int, int](), "depth": lanes}
    for lane, (kind, n) in enumerate(taken, 3):
        places[kind][across[n] if kind == "own" else along[n - 1]] = lane
    where = {
        kind: tuple(places[kind].get(k, s if s >= WARPS else REGISTER) for k, s in enumerate(bits))
        for kind, bits in (("own", own), ("depth", depth))
    }

    def registers(bits: list[tuple[str, int]]) -> list[tuple[int, int]]:
        made = [(0, 0)]
        for kind, n in bits:
            made += [(o | 1 << n, d) if kind == "own" else (o, d | 1 << n) for o, d in made]
        return made

    every = [("own", n) for n in range(len(across))] + [("depth", n + 1) for n in range(len(along))]
    rest = [bit for bit in every if bit not in taken]
    return where["own"], where["depth"], registers(taken), registers(rest)


def read_squares(array: ir.Value, place: Sequence[ir.Value], count: int) -> ir.Value:
    """`count` squares of 8 by 8 halves, turned: a pair of each in every lane."""
    kind = ir.MemRefType(array.type).element_type
    result = ir.VectorType.get([count, 2], kind)
    return nvgpu.LdMatrixOp(result, array, list(place), True, count).result


def copy_line(
    source: ir.Value, at: Sequence[ir.Value], target: ir.Value, to: Sequence[ir.Value], width: int
) -> None:
    """Copy a line from memory to shared memory, without waiting for it."""
    token = ir.Type.parse("!nvgpu.device.async.token")
    size = ir.IntegerAttr.get(ir.IndexType.get(), width)
    nvgpu.DeviceAsyncCopyOp(
        target, list(to), source, list(at), size, bypassL1=ir.UnitAttr.get(), results=[token]
    )


def close_group() -> None:
    """What was copied since the last time is one group."""
    nvvm.CpAsyncCommitGroupOp()


def wait_groups(open_ones: int) -> ir.Operation:
    """Wait until so many of this thread's groups at most are on their way."""
    return nvvm.CpAsyncWaitGroupOp(open_ones).operation
