"""Sums of products on matrix instructions, for the threads of a block.

In: a sum that `matrix.product` knows, at a level where its rows and columns are bound. Out: a loop
over its depth whose turns load, or compute, the fragments of both operands and multiply them.

    sum(r0, a[d0, r0] * b[r0, d1])    for r0: 8 neighbours of a and b a thread: mma.sync, mma.sync
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from mlir import ir
from mlir.dialects import arith, scf, vector

from . import expand, terms
from .blocks import WIDEST, BlockEmitter, assembled, elements
from .emitter import index_value
from .index import Axis
from .linear import REGISTER, Bits, block_layouts, filled
from .matrix import Product, emit, matrix_layouts, places, product
from .placement import Level
from .schedule import Schedule
from .stage import Staged, kept_in
from .targets import Target
from .terms import Term

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
        near = [name for name in sizes if not schedule.matrix and name != schedule.vector]
    layouts = block_layouts(sizes, near, schedule.lanes, threads)
    if schedule.matrix:
        found = [
            p
            for step in steps
            for t in terms.postorder([step.term])
            if t.op == "sum" and step.axes
            if (p := product(t, _wide(step.axes, sizes), step.axes[-1], target))
        ]
        layouts |= matrix_layouts(found, sizes, schedule.warps, target.warp, not schedule.fold)
    return layouts


def _wide(axes: Iterable[Axis], sizes: Mapping[str, int]) -> frozenset[Axis]:
    return frozenset(a for a in axes if sizes[a.name] > 1)


@dataclass(frozen=True)
class _Side:
    """One operand of a product: how its own axis lies, and that of a fragment of it."""

    term: Term
    axis: Axis
    bits: Bits
    fragment: Bits


class MatrixEmitter(BlockEmitter):
    """Emits what one thread does of a step, matrix products with the instructions for them."""

    def _reduce(self, term: Term, level: Level) -> ir.Value:
        found = self._product(term)
        if found is None:
            return super()._reduce(term, level)
        total = self._contract(found, level)
        level.memo[term] = expand.cast(total, kept_in(term).name, term.dtype.name)
        return level.memo[term]

    def _product(self, fold: Term) -> Product | None:
        wide = frozenset(a for a in self.axes if self.block.layouts.get(a.name))
        if not self.schedule.matrix or not self.axes:
            return None
        return product(fold, wide, self.axes[-1], self.block.target)

    def _contract(self, found: Product, level: Level) -> ir.Value:
        """The sum over all of the depth, some fragments of it at a time."""
        row, axis = found.instruction, found.fold.attr
        own = (*row.own, *level.bits[found.columns][len(row.columns) :])
        sides = (
            _Side(found.operands[0], found.rows, level.bits[found.rows], row.rows),
            _Side(found.operands[1], found.columns, own, row.own),
        )
        tiles = [1 << s.bits.count(REGISTER) - s.fragment.count(REGISTER) for s in sides]
        bits = self._depth(found)
        step, size = 1 << len(bits), len(places(row.rows, row.columns))
        zero = expand.constant(0, kept_in(found.fold).name, (size,))
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
        if whole > step:
            loop = scf.ForOp(index_value(0), index_value(whole), index_value(step), totals)
            with ir.InsertionPoint(loop.body):
                scf.YieldOp(turn(loop.induction_variable, False, list(loop.inner_iter_args)))
            totals = list(loop.results)
        elif whole:
            totals = turn(index_value(0), False, totals)
        if axis.size > whole:
            totals = turn(index_value(whole), True, totals)
        return self._gathered(totals, tiles, found, level)

    def _depth(self, found: Product) -> Bits:
        """How a turn's places of the summed axis lie: as they do already, or runs of 16 bytes."""
        axis, bits = found.fold.attr, found.instruction.depth
        if axis.name in self.block.layouts:
            return self.block.layouts[axis.name]
        registers = WIDEST * 8 // found.operands[0].dtype.bits
        wanted = registers << len(bits) - bits.count(REGISTER)
        bits = filled(bits, min(wanted, 1 << max(0, axis.size - 1).bit_length()))
        lanes = sorted(b for b in bits if b != REGISTER)
        return (*(REGISTER,) * bits.count(REGISTER), *lanes)

    def _fragments(
        self, side: _Side, found: Product, bits: Bits, start: ir.Value, ragged: bool, level: Level
    ) -> Fragments:
        """An operand's fragments of one turn."""
        row, axis = found.instruction, found.fold.attr
        inner = self._operand_level(side, axis, bits, start, ragged, level)
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

    def _operand_level(
        self, side: _Side, axis: Axis, bits: Bits, start: ir.Value, ragged: bool, level: Level
    ) -> Level:
        """A level of its own: what an operand's axes are elsewhere does not matter to it."""
        rank = {**level.rank, axis: 500}
        tiles, steps = dict(level.tiles), {**level.steps, axis: 1 << len(bits)}
        inner = Level(
            None, tiles, rank, steps, bits={**level.bits, side.axis: side.bits, axis: bits}
        )
        inner.ragged = level.ragged | ({axis} if ragged else set())
        inner.data = {"origin": level.data["origin"], "starts": level.data["starts"]}
        for a, begin in ((side.axis, level.data["starts"][side.axis]), (axis, start)):
            inner.data["origin"] = {
                **inner.data["origin"], a: arith.addi(begin, self.block.digits(inner.bits[a]))
            }  # fmt: skip
            inner.tiles[a] = 1 << inner.bits[a].count(REGISTER)
        return inner

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
