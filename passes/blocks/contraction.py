"""Sums of products on matrix instructions, for the threads of a block.

In: a sum that `matrix.product` knows, at a level where its rows and columns are bound. Out: a loop
over its depth whose turns load, or compute, the fragments of both operands and multiply them.

    sum(r0, a[d0, r0] * b[r0, d1])    for r0: 8 neighbours of a and b a thread: mma.sync, mma.sync
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from mlir import ir
from mlir.dialects import arith, vector

from ...dialect.errors import CompileError
from .. import expand
from ..emitter import index_value
from ..index import Axis
from ..placement import Level
from ..schedule import Schedule
from ..stage import Staged
from ..targets import Target
from ..terms import Term
from .linear import REGISTER, Bits, block_layouts, filled, thread_mask
from .matrix import (
    NARROW,
    Instruction,
    Product,
    emit,
    matrix_layouts,
    places,
    product,
    products_of,
)
from .staging import StagingEmitter
from .threads import WIDEST, assembled, elements

Fragments = list[list[ir.Value]]  # of an operand, along its own axis, and along the depth


def layouts_of(staged: Staged, schedule: Schedule, target: Target) -> dict[str, Bits]:
    """How each axis that steps store along lies in the threads of a block.

    Rows of matrix products, and of folds with weights, are not shared by warps, or by threads.
    """
    steps = [step for phase in staged.phases for step in phase.steps]
    sizes: dict[str, int] = {}
    for step in steps:
        for a in step.axes:
            size = a.size if schedule.fold else step.schedule.tile(a)
            sizes[a.name] = max(size, sizes.get(a.name, 1))
    threads = schedule.warps * target.warp
    near = [name for name in sizes if name == schedule.vector]
    if schedule.fold:
        rows = f"{schedule.vector}i" if schedule.vector else None  # as it is called in a program
        near = [name for name in sizes if not schedule.matrix and rows in (name, None)]
    layouts = block_layouts(sizes, near, schedule.lanes, threads)
    if schedule.matrix:
        found = products_of(steps, sizes, target)
        if not found:
            raise CompileError("the schedule asks for matrix instructions, and no sum has any here")
        for p in (p for p in found if p.fold.attr.name in sizes):  # that steps store along
            name, bits = p.fold.attr.name, p.instruction.depth
            sizes[name] = max(sizes[name], 1 << len(bits))
            layouts[name] = filled(bits, sizes[name])
        layouts |= matrix_layouts(found, sizes, schedule.warps, target.warp, not schedule.fold)
    return layouts


def _own(row: Instruction, columns: Bits) -> Bits:
    """How columns lie in their operand, that lie so in the result."""
    return (*row.own, *columns[len(row.columns) :])


@dataclass(frozen=True)
class _Side:
    """One operand of a product: how its own axis lies, and that of a fragment of it."""

    term: Term
    axis: Axis
    bits: Bits
    fragment: Bits


class MatrixEmitter(StagingEmitter):
    """Emits what one thread does of a step, matrix products with the instructions for them."""

    def _reduce(self, term: Term, level: Level) -> ir.Value:
        found = self._product(term)
        if found is None:
            return super()._reduce(term, level)
        kept = NARROW.get(found.instruction.dtype, found.instruction.dtype)
        total = self._contract(found, kept, level)
        level.memo[term] = expand.cast(total, kept, term.dtype.name)
        return level.memo[term]

    def _product(self, fold: Term) -> Product | None:
        wide = frozenset(a for a in self.axes if self.block.layouts.get(a.name))
        if not self.schedule.matrix or not self.axes:
            return None
        return product(fold, wide, self.axes[-1], self.block.target)

    def _contract(self, found: Product, kept: str, level: Level) -> ir.Value:
        """The sum over all of the depth, some fragments of it at a time."""
        row, axis = found.instruction, found.fold.attr
        own = _own(row, level.bits[found.columns])
        sides = (
            _Side(found.operands[0], found.rows, level.bits[found.rows], row.rows),
            _Side(found.operands[1], found.columns, own, row.own),
        )
        tiles = [1 << s.bits.count(REGISTER) - s.fragment.count(REGISTER) for s in sides]
        bits = self._depth(found)
        step, size = 1 << len(bits), len(places(row.rows, row.columns))
        zero = expand.constant(0, kept, (size,))
        totals = [zero] * prod(tiles)

        def turn(start: ir.Value, ragged: bool, totals: Sequence[ir.Value]) -> list[ir.Value]:
            a, b = (self._fragments(s, found, bits, start, ragged, level) for s in sides)
            totals = list(totals)
            for depth in range(len(a[0])):
                for n, total in enumerate(totals):
                    i, j = divmod(n, tiles[1])
                    totals[n] = emit(row, a[i][depth], b[j][depth], total)
            return totals

        whole = axis.size // step * step
        if whole:
            staged = [
                x
                for s in sides
                for x in self._staged(s.term, s.axis, s.bits, axis, bits, whole, level)
            ]
            totals = self._run(turn, totals, staged, (axis, bits, whole), level)
        if axis.size > whole:
            totals = turn(index_value(whole), True, totals)
        return self._gathered(totals, tiles, found, level)

    def _depth(self, found: Product) -> Bits:
        """How a turn's places of the summed axis lie: as they do already, or runs of 16 bytes."""
        axis, bits = found.fold.attr, found.instruction.depth
        if lies := self.block.layouts.get(axis.name):  # as they do, or as they do within a warp
            alike = thread_mask([lies]) == thread_mask([bits])  # the order of the depth is free
            return lies if alike else filled(bits, 1 << len(lies))
        registers = WIDEST * 8 // found.operands[0].dtype.bits
        lanes = sorted(b for b in bits if b != REGISTER)
        wanted = self.schedule.depth or registers << len(lanes)
        if self.schedule.stages == 1:  # one turn, but for the rest
            wanted = 1 << max(0, axis.size.bit_length() - 1)
        longest = 1 << max(0, axis.size - 1).bit_length()
        side = (REGISTER,) * max(bits.count(REGISTER), registers.bit_length() - 1)
        while 1 << len(side) + len(lanes) > max(longest, 1 << len(bits)):
            side = side[1:]
        return filled((*side, *lanes), min(wanted, longest))

    def _fragments(
        self, side: _Side, found: Product, bits: Bits, start: ir.Value, ragged: bool, level: Level
    ) -> Fragments:
        """An operand's fragments of one turn."""
        row, axis = found.instruction, found.fold.attr
        own = (side.bits, level.data["starts"][side.axis])
        places_of = {side.axis: own, axis: (bits, start)}
        inner = self._level_of(places_of, level, [axis] if ragged else [])
        dims = inner.shape(frozenset({side.axis, axis}))
        value = self._tile(side.term, dims, inner)
        if ragged:
            sizes = tuple(inner.tiles[a] for a in dims)
            zero = expand.constant(0, side.term.dtype.name, sizes)
            value = arith.select(self._mask(axis, dims, inner), value, zero)
        parts, along = elements(value), inner.tiles[axis]
        if dims and dims[0] == axis and len(dims) > 1:
            parts = [
                parts[n * inner.tiles[side.axis] + o]
                for o in range(inner.tiles[side.axis])
                for n in range(along)
            ]
        own, deep = (1 << b.count(REGISTER) for b in (side.fragment, row.depth))
        kind = ir.VectorType.get([own * deep], parts[0].type)
        return [
            [
                vector.from_elements(
                    kind,
                    [
                        parts[(i * own + o) * along + k * deep + d]
                        for o, d in places(side.fragment, row.depth)
                    ],
                )
                for k in range(along // deep)
            ]
            for i in range(inner.tiles[side.axis] // own)
        ]

    def _gathered(
        self, totals: list[ir.Value], tiles: list[int], found: Product, level: Level
    ) -> ir.Value:
        """The tile value of a product, from its fragments."""
        row, values = found.instruction, dict[tuple[int, ...], ir.Value]()
        dims = level.shape(frozenset({found.rows, found.columns}))
        sizes = (1 << row.rows.count(REGISTER), 1 << row.columns.count(REGISTER))
        for n, total in enumerate(totals):
            tile = divmod(n, tiles[1])
            pairs = zip(places(row.rows, row.columns), elements(total), strict=True)
            for place, x in pairs:
                at = {
                    a: t * size + p
                    for a, t, size, p in zip(
                        (found.rows, found.columns), tile, sizes, place, strict=True
                    )
                }
                values[tuple(at[a] for a in dims)] = x
        return assembled(values, dims, level)
