"""The space of schedules of a kernel for a GPU, where a block of threads runs each program.

In: a kernel's term and axes and a target, as in `space`. Out: schedules that also say how many
warps a block has, whether products run on matrix instructions, how deep a turn of these is, and how
many turns are in shared memory. A tile has the places of the whole block: how they lie in threads
and registers, `passes.contraction.layouts_of` says, and what is legal is asked of that.

    space = find_space(kernel.term, kernel.axes, find_target("cuda:sm_80"))
    space.legal(replace(space.default, warps=3))         # "warps: 3 is none of 1, 2, 4, 8"
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import cached_property
from math import prod
from typing import TypeVar

import numpy as np

from ..dialect.errors import CompileError
from ..passes import cost
from ..passes.blocks.contraction import layouts_of
from ..passes.blocks.linear import REGISTER, Bits, thread_mask
from ..passes.blocks.matrix import Product, has_instruction, product
from ..passes.index import Axis, of_axis
from ..passes.schedule import Schedule
from ..passes.stage import OUTPUT, Phase, Staged, Step, kept_in
from ..passes.targets import Target
from ..passes.terms import REDUCTIONS, ROLLING, Term, postorder
from .counters import machine_of
from .space import CODE, Sizes, Space, log_uniform
from .unrolling import Unrolled, unrolled

WARPS = (1, 2, 4, 8)
LANES = (1, 2, 4, 8, 16)
DEPTHS = (16, 32, 64, 128)
STAGES = (0, 2, 3, 4)  # of plain schedules; the loop of a fold is the only stage of its copies
WORDS = 128  # of 32 bits: what a thread's tiles and accumulators may take
FRAGMENTS = 96  # ... and the fragments of a turn, which come and go, beside them
HELD = 192  # ... and its part of a fold's local buffers
PLAIN_SHARED = 48 << 10  # bytes that a block may share without asking for more
COUNTED = 16  # choices of tiles that `size` looks at
DECISIONS = (
    "tile", "tile", "tile", "block", "vector", "order", "lanes", "warps", "matrix", "depth",
    "stages",
)  # fmt: skip

Layouts = dict[str, Bits]
T = TypeVar("T")


def find_space(term: Term, axes: tuple[Axis, ...], target: Target, strict: bool = False) -> Space:
    """The space of a kernel on a target."""
    return (BlockSpace if target.is_gpu else Space)(term, axes, target, strict)


class BlockSpace(Space):
    """The legal schedules of one kernel on one GPU."""

    def __init__(self, term: Term, axes: tuple[Axis, ...], target: Target, strict: bool = False):
        self._layouts: dict[Schedule, Layouts | str] = {}
        super().__init__(term, axes, target, strict)

    # --- schedules that are known without a search --------------------------------------------

    @cached_property
    def plainest(self) -> Schedule:
        """One element at a time, each by a warp of its own; of folds, one row and one place."""
        if self._partial:
            blocks = {a: 1 if a in self._rows else max(1, a.size) for a in self.axes}
            return self._repaired(self._folding(blocks, 1))
        ones = dict.fromkeys(self.axes, 1)
        return self._made(None, ones, ones, (), 1)

    # --- legality -----------------------------------------------------------------------------

    def _thread_fault(self, schedule: Schedule) -> str:
        if schedule.warps not in WARPS:
            return f"warps: {schedule.warps} is none of {_words_of(WARPS)}"
        if schedule.lanes not in LANES:
            return f"lanes: {schedule.lanes} is none of {_words_of(LANES)}"
        if not schedule.matrix and (schedule.depth or schedule.stages):
            return "depth, stages: only products on matrix instructions have them"
        return ""

    def _plain_fault(self, schedule: Schedule) -> str:
        if self._partial:
            return "a result lacks an axis of the kernel: only folds can run it"
        if schedule.vector and dict(schedule.tiles)[schedule.vector] == 1:
            return f"vector: the tile of {schedule.vector} is 1"
        for a in self.axes:
            n = schedule.tile(a)
            if n & (n - 1) and n != a.size:
                return f"tiles: {n} of {a} is no power of two, and not all of it"
        fault = self._matrix_fault(schedule) if schedule.matrix else ""
        if fault:
            return fault
        layouts = self._lie(schedule)
        if isinstance(layouts, str):
            return layouts
        code = self._code(schedule)
        words, most = self._words(schedule, layouts), WORDS + FRAGMENTS * schedule.matrix
        if words > max(most, self._least.vectors):
            return f"tiles: {words:.0f} registers of a thread, more than {most}"
        if code.instructions > max(CODE, 2 * self._least.instructions):
            return f"tiles: the code unrolls to some {code.instructions:.0f} instructions"
        return self._shared_fault(schedule, self._staged(schedule), layouts)

    def _matrix_fault(self, schedule: Schedule) -> str:
        if self.strict:
            return "matrix: in strict precision sums add up in the order of their axis"
        wide = {a for a in self.axes if schedule.tile(a) > 1}
        rows = [a for a in self._row_choices if wide == {a, self.axes[-1]}]
        if not rows:
            return (
                "matrix: expected tiles of more than 1 along the two axes of a product that the "
                f"target has instructions for, with {self._row_choices or 'none'} as its rows"
            )
        for axis, least in zip((rows[0], self.axes[-1]), self._fragment(rows[0]), strict=True):
            if schedule.tile(axis) < min(least, axis.size):
                return f"matrix: the tile of {axis} is less than an instruction's {least}"
        if schedule.vector != self.axes[-1].name:
            return f"vector: products on matrix instructions have {self.axes[-1]}"
        if schedule.depth not in DEPTHS:
            return f"depth: {schedule.depth} is none of {_words_of(DEPTHS)}"
        if schedule.stages not in STAGES:
            return f"stages: {schedule.stages} is none of {_words_of(STAGES)}"
        if schedule.stages and schedule.order:
            return "stages: a program with these has one tile, and no serial loops"
        return ""

    def _fold_fault(self, schedule: Schedule) -> str:
        if self.fold_axis is None:
            return "fold: the kernel has no folds that can be run in one loop here"
        blocks = {a: schedule.block(a) for a in self.axes}
        if schedule != self._like(self._folding(blocks, schedule.fold, schedule.matrix), schedule):
            return (
                "of a fold: tiles of 1, no order, 4 lanes, and the rows as its vector axis only "
                "where weights or sums make it heavy and it has no matrix instructions"
            )
        if schedule.matrix and not self._multiplies:
            return "matrix: the target has no instructions for the products of this kernel"
        if schedule.depth or schedule.stages not in (0, 1):
            return "depth, stages: a fold has no depth of its own, and at most one stage"
        for a, block in blocks.items():
            if a in self._whole and block < a.size:
                return f"{a}: the block is {block}, but a program has all that lies along this axis"
        if not 1 <= schedule.fold <= self._longest_fold:
            return f"fold: {schedule.fold} is not between 1 and {self._longest_fold}"
        layouts = self._lie(schedule)
        if isinstance(layouts, str):
            return layouts
        staged = self._staged(schedule)
        return (
            self._held_fault(schedule, staged, layouts)
            or self._meeting(schedule, staged, layouts)
            or self._shared_fault(schedule, staged, layouts)
        )

    def _held_fault(self, schedule: Schedule, staged: Staged, layouts: Layouts) -> str:
        """Whether a thread holds too much of the local buffers, or computes too much at once."""
        code, words = 0.0, 0.0
        for phase in staged.phases:
            held = dict[str, float]()
            for step in phase.steps:
                places = _registers(step.axes, layouts)
                for t in (t for t in postorder([step.term]) if t.op in REDUCTIONS):
                    if t.attr.name in layouts and self._product(t, step.axes, schedule) is None:
                        own = [a for a in t.axes if a in step.axes]
                        places = max(places, _registers([*own, t.attr], layouts))
                for name in step.buffers:
                    size = staged.buffers[name][1].bytes if name in staged.buffers else 4
                    held[name] = max(held.get(name, 0.0), places * size / 4)
                prices = (cost.INSTRUCTIONS.get(t.op, 1.0) for t in postorder([step.term]))
                code += places * sum(prices)
            words = max(words, sum(held.values()))
        if words > HELD:
            return f"fold: {words:.0f} registers of a thread hold local buffers, more than {HELD}"
        if code > CODE:
            return f"fold: the code unrolls to some {code:.0f} instructions"
        return ""

    def _meeting(self, schedule: Schedule, staged: Staged, layouts: Layouts) -> str:
        """Two axes of a tile that lie in the same threads, so that some places are in none, or one
        that is read in other threads than those that hold it."""
        lie: dict[str, tuple[Bits, ...]] = {}
        for step in _steps(staged):
            groups = [list(step.axes)]
            for t in postorder([step.term]):
                if t.op in REDUCTIONS and self._product(t, step.axes, schedule) is None:
                    groups.append([*(a for a in t.axes if a.name in layouts), t.attr])
                if t.op == "load" and t.attr[0] in lie:
                    read = (layouts.get(a.name, ()) for e in t.attr[1] for a in e.own_axes)
                    if tuple(read) != lie[t.attr[0]]:
                        return f"fold: {t} is read in other threads than those that hold it"
            for group in groups:
                taken = 0
                for a in group:
                    mask = thread_mask([layouts.get(a.name, ())])
                    if taken & mask:
                        return f"fold: places of {a} lie in the threads of another axis"
                    taken |= mask
            for name in step.buffers:
                if name in staged.buffers:
                    lie[name] = tuple(layouts.get(a.name, ()) for a in step.axes)
        return ""

    def _shared_fault(self, schedule: Schedule, staged: Staged, layouts: Layouts) -> str:
        """Whether the threads of a block would share more memory than they have."""
        parts = dict[tuple, int]()
        steps = [(phase.axis, step) for phase in staged.phases for step in phase.steps]
        for loop, step in steps:
            for t in (t for t in postorder([step.term]) if t.op in REDUCTIONS):
                made = self._product(t, step.axes, schedule)
                if made is None:
                    parts |= self._exchanged_bytes(schedule, t, step.axes, layouts)
                elif schedule.stages:
                    parts |= self._copied_bytes(schedule, made, loop, layouts)
        shared, most = sum(parts.values()), machine_of(self.target.name).shared
        most = most if schedule.stages else min(most, PLAIN_SHARED)
        if shared > most:
            return f"stages: a block would share {shared} bytes, more than the {most} that it has"
        return ""

    @property
    def _longest_fold(self) -> int:
        assert self.fold_axis is not None
        return max(1024, 1 << max(0, self.fold_axis.size - 1).bit_length())  # it is cut to the axis

    def _exchanged_bytes(
        self, schedule: Schedule, t: Term, axes: tuple[Axis, ...], layouts: Layouts
    ) -> dict[tuple, int]:
        """What warps share to combine their parts of a reduction, at most; by what is one array."""
        threads, lanes = schedule.warps * self.target.warp, self.target.warp.bit_length() - 1
        own = [a for a in t.axes if a in axes]
        taken = thread_mask([layouts.get(a.name, ()) for a in own])
        free = [b for b in range(threads.bit_length() - 1) if not taken >> b & 1]
        bits = layouts.get(t.attr.name, free[: max(0, t.attr.size - 1).bit_length()])
        if self.strict or all(b < lanes for b in bits):
            return {}
        parts, kept = _registers(own, layouts), kept_in(t)
        return {(kept.name, parts): parts * threads * kept.bytes}

    def _copied_bytes(
        self, schedule: Schedule, made: Product, loop: Axis | None, layouts: Layouts
    ) -> dict[tuple, int]:
        """What the turns of a matrix product keep in shared memory, at most.

        What does not change in a loop over blocks is not copied there.
        """
        found, row, fold = dict[tuple, int](), made.instruction, made.fold
        size = made.operands[0].dtype.bytes
        deep = max(schedule.depth, 16 // size << sum(b != REGISTER for b in row.depth))
        if schedule.stages == 1:
            deep = 1 << max(0, fold.attr.size - 1).bit_length()
        deep = 1 << len(layouts[fold.attr.name]) if fold.attr.name in layouts else deep
        slots = max(2, schedule.stages)
        if schedule.stages == 1 and self.target.matrix == "mma" and size == 2:
            slots = 1  # others wait for what they copy, while they use what they have
        for operand, axis in zip(made.operands, (made.rows, made.columns), strict=True):
            for load in (x for x in operand.loads if {axis, fold.attr} <= x.axes):
                if not load.attr[0].startswith("%") and (loop is None or loop in load.axes):
                    places = deep << len(layouts[axis.name])
                    found[fold, load] = slots * places * load.dtype.bytes
        return found

    # --- what a schedule makes of the kernel --------------------------------------------------

    def _lie(self, schedule: Schedule) -> Layouts | str:
        """How the places of axes lie in threads, or why they do not."""
        if schedule not in self._layouts:
            try:
                made: Layouts | str = layouts_of(self._staged(schedule), schedule, self.target)
            except CompileError as error:
                made = f"matrix: {error}"
            self._layouts[schedule] = made
        return self._layouts[schedule]

    def _staged(self, schedule: Schedule) -> Staged:
        if schedule.fold:
            return cost.staging(self.rolled, self.axes, schedule, self.target)
        index = tuple(map(of_axis, self.axes))
        step = Step((f"{OUTPUT}0",), index, self.axes, self.plain, schedule)
        return Staged((), {}, (Phase((step,)),))

    def _local_bytes(self, schedule: Schedule) -> int:
        return self._staged(schedule).local_bytes

    def _product(self, t: Term, axes: tuple[Axis, ...], schedule: Schedule) -> Product | None:
        """A sum as what matrix instructions compute, where a schedule has them."""
        if not schedule.matrix or t.op != "sum" or not axes:
            return None
        sizes = {a: a.size if schedule.fold else schedule.tile(a) for a in axes}
        wide = frozenset(a for a in axes if sizes[a] > 1)
        return product(t, wide, axes[-1], self.target)

    def _words(self, schedule: Schedule, layouts: Layouts) -> float:
        """Registers of a thread: its tiles and accumulators, and the fragments of a turn."""
        words = self._code(schedule).vectors
        for t in self._sums if schedule.matrix else ():
            made = self._product(t, self.axes, schedule)
            if made is not None:
                row, size = made.instruction, made.operands[0].dtype.bytes
                more = layouts[made.columns.name][len(row.columns) :]  # than a fragment's
                own = 1 << row.own.count(REGISTER) + more.count(REGISTER)
                deep = schedule.depth >> sum(b != REGISTER for b in row.depth)
                deep = max(deep, 16 // size)
                words += (_registers([made.rows], layouts) + own) * deep * size / 4
        return words

    def _code(self, schedule: Schedule) -> Unrolled:
        """The code of a thread, whose tile is its part of the block's."""
        if schedule not in self._codes:
            own = self._of_a_thread(schedule)
            self._codes[schedule] = unrolled(self.plain, self.axes, own, self.target)
        return self._codes[schedule]

    def _of_a_thread(self, schedule: Schedule) -> Schedule:
        layouts = self._lie(schedule)
        assert not isinstance(layouts, str)
        tiles = tuple((a.name, _registers([a], layouts)) for a in self.axes)
        return replace(schedule, tiles=tiles, lanes=4)

    @cached_property
    def _least(self) -> Unrolled:
        """Of the plainest schedule, which is always allowed."""
        return self._code(self.plainest)

    @cached_property
    def _sums(self) -> list[Term]:
        return [t for t in postorder([self.plain]) if t.op == "sum"]

    @cached_property
    def _multiplies(self) -> bool:
        """Whether the products in a fold's steps have matrix instructions."""
        folds = [t for t in postorder([self.rolled]) if t.op in ("sum", "roll")]
        return any(has_instruction(t, self.target) for t in folds)

    @cached_property
    def _row_choices(self) -> list[Axis]:
        """The axes that may be the rows of matrix products, whose columns are the last one."""
        if self.strict or not self.axes or self._partial:
            return []
        return [a for a in self.axes[:-1] if self._product_with(a) is not None]

    def _product_with(self, rows: Axis) -> Product | None:
        wide = frozenset({rows, self.axes[-1]})
        if rows.size < 2 or self.axes[-1].size < 2:
            return None
        found = (product(t, wide, self.axes[-1], self.target) for t in self._sums)
        return next((p for p in found if p is not None), None)

    def _fragment(self, rows: Axis) -> tuple[int, int]:
        """The rows and columns that an instruction has."""
        made = self._product_with(rows)
        assert made is not None
        return 1 << len(made.instruction.rows), 1 << len(made.instruction.columns)

    @cached_property
    def _heavy_rows(self) -> str | None:
        """The axis along which the rows of a fold with weights or sums are cut."""
        rolls = [t for t in postorder([self.rolled]) if t.op in ROLLING]
        rows = {a for t in rolls for a in t.args[0].axes}
        heavy = any(t.axes - rows for t in rolls) or any(t.args[0].folds for t in rolls)
        shared = [a for a in self.axes if a in rows and a.size > 1][-1:]
        return shared[0].name if heavy and shared else None

    # --- drawing ------------------------------------------------------------------------------

    def _sample_plain(self, rng: np.random.Generator) -> Schedule:
        warps = WARPS[rng.integers(len(WARPS))]
        if self._row_choices and rng.random() < 0.5:
            return self._repaired(self._some_product(rng, warps))
        tiles, places = (
            dict.fromkeys(self.axes, 1),
            warps * self.target.warp << int(rng.integers(6)),
        )
        vector = self._some_vector(rng)
        others = [a for a in self.axes if a.size > 1 and a is not vector]
        chosen = [others[n] for n in rng.permutation(len(others))[: rng.integers(3)]]
        for a in [*([vector] if vector else []), *chosen]:
            tiles[a] = self._some_tile(rng, a, places // prod(tiles.values()))
        blocks = {a: self._some_block(rng, a, tiles[a]) for a in self.axes}
        order = (self.axes[n].name for n in rng.permutation(len(self.axes)))
        made = self._made(vector, tiles, blocks, order, _one_of(rng, LANES))
        return self._repaired(replace(made, warps=warps))

    def _some_product(self, rng: np.random.Generator, warps: int) -> Schedule:
        """A schedule for matrix products, not repaired."""
        tiles, rows = dict.fromkeys(self.axes, 1), _one_of(rng, self._row_choices)
        for a, least in zip((rows, self.axes[-1]), self._fragment(rows), strict=True):
            tiles[a] = max(least, self._some_tile(rng, a, 128))
        stages = _one_of(rng, STAGES)
        whole = stages > 0 or rng.random() < 0.5
        blocks = tiles if whole else {a: self._some_block(rng, a, tiles[a]) for a in self.axes}
        made = self._made(self.axes[-1], tiles, blocks, (), 4)
        depth = _one_of(rng, DEPTHS)
        return replace(made, warps=warps, matrix=True, depth=depth, stages=stages)

    def _some_tile(self, rng: np.random.Generator, axis: Axis, most: int) -> int:
        """All of an axis, or a power of two."""
        if axis.size <= most and rng.random() < 0.3:
            return max(1, axis.size)
        return 1 << int(rng.integers(max(1, min(axis.size, most)).bit_length()))

    def _sample_fold(self, rng: np.random.Generator) -> Schedule:
        blocks = {}
        for a in self.axes:  # blocks of other axes than the rows repeat the work on these
            whole = a not in self._rows and rng.random() < 0.8
            blocks[a] = a.size if whole else log_uniform(rng, 1, min(a.size, 128))
        matrix = self._multiplies and rng.random() < 0.7
        made = self._folding(blocks, self._some_fold(rng), matrix)
        stages = int(rng.integers(2)) if matrix else 0
        return self._repaired(replace(made, warps=_one_of(rng, WARPS), stages=stages))

    # --- one from others ----------------------------------------------------------------------

    def _fold_decided(self, schedule: Schedule, rng: np.random.Generator) -> Schedule:
        kind = rng.random()
        if kind < 0.2:
            return replace(schedule, warps=_one_of(rng, WARPS))
        if kind < 0.4 and self._multiplies:
            blocks = {a: schedule.block(a) for a in self.axes}
            if rng.random() < 0.5 and schedule.matrix:
                return replace(schedule, stages=1 - schedule.stages)
            made = self._folding(blocks, schedule.fold, not schedule.matrix)
            return replace(made, warps=schedule.warps)
        made = super()._fold_decided(schedule, rng)
        blocks = {a: made.block(a) for a in self.axes}
        return self._like(self._folding(blocks, made.fold, schedule.matrix), schedule)

    def _decided(self, schedule: Schedule, rng: np.random.Generator) -> Schedule:
        decision = DECISIONS[rng.integers(len(DECISIONS))]
        if decision == "warps":
            return replace(schedule, warps=_one_of(rng, WARPS))
        if decision == "lanes":
            return replace(schedule, lanes=_one_of(rng, LANES))
        if decision == "matrix" and self._row_choices:
            if not schedule.matrix:
                return self._some_product(rng, schedule.warps)
            return replace(schedule, matrix=False, depth=0, stages=0)
        if decision == "depth" and schedule.matrix:
            return replace(schedule, depth=_one_of(rng, DEPTHS))
        if decision == "stages" and schedule.matrix:
            return replace(schedule, stages=_one_of(rng, STAGES))
        if decision == "tile" and self.axes:
            axis = self.axes[rng.integers(len(self.axes))]
            tiles = {a: schedule.tile(a) for a in self.axes}
            blocks = {a: schedule.block(a) for a in self.axes}
            tiles[axis] = self._some_tile(rng, axis, 1 << 12)
            if schedule.stages:  # blocks are tiles there
                blocks = tiles
            made = self._made(self._vector(schedule), tiles, blocks, schedule.order, schedule.lanes)
            return self._like(made, schedule)
        return self._like(super()._decided(schedule, rng), schedule)

    # --- making and repair --------------------------------------------------------------------

    def _like(self, schedule: Schedule, other: Schedule) -> Schedule:
        matrix, depth = other.matrix, other.depth if other.matrix else 0
        stages = other.stages if matrix else 0
        return replace(schedule, warps=other.warps, matrix=matrix, depth=depth, stages=stages)

    def _made(
        self, vector: Axis | None, tiles: Sizes, blocks: Sizes, order: Iterable[str], lanes: int
    ) -> Schedule:
        return replace(super()._made(vector, tiles, blocks, order, lanes), warps=1)

    def _folding(self, blocks: Sizes, fold: int, matrix: bool = False) -> Schedule:
        made = self._made(None, dict.fromkeys(self.axes, 1), blocks, (), 4)
        vector = None if matrix else self._heavy_rows
        return replace(made, vector=vector, order=(), fold=fold, matrix=matrix)

    def _repaired(self, schedule: Schedule) -> Schedule:
        blocks = {a: min(schedule.block(a), max(1, a.size)) for a in self.axes}
        if schedule.fold:
            return self._repaired_loop(schedule, blocks)
        tiles = {a: _near_power(schedule.tile(a), a.size) for a in self.axes}
        if schedule.matrix:
            made = self._repaired_product(schedule, tiles, blocks)
            if made is not None:
                return made
            schedule = replace(schedule, matrix=False, depth=0, stages=0)
        vector, warps = self._vector(schedule), schedule.warps or 1
        lanes = max(n for n in LANES if n <= max(1, schedule.lanes))
        while True:
            made = self._made(vector, tiles, blocks, schedule.order, lanes)
            made = replace(made, warps=warps)
            if not self._plain_fault(made):
                return made
            largest = max(self.axes, key=lambda a: tiles[a], default=None)
            if largest is None or tiles[largest] == 1:
                return self.plainest
            tiles[largest] = 1 << (tiles[largest] - 1).bit_length() - 1

    def _repaired_product(self, schedule: Schedule, tiles: Sizes, blocks: Sizes) -> Schedule | None:
        """A legal schedule for matrix products near one, if there is any."""
        rows = max(self._row_choices, key=lambda a: tiles[a], default=None)
        if rows is None:
            return None
        pair = (rows, self.axes[-1])
        least = dict(zip(pair, self._fragment(rows), strict=True))
        tiles = {a: max(tiles[a], min(least[a], a.size)) if a in pair else 1 for a in self.axes}
        stages = max(n for n in STAGES if n <= schedule.stages)
        depth = min(DEPTHS, key=lambda n: abs(n - schedule.depth))
        while True:
            cut = tiles if stages else blocks
            made = self._made(self.axes[-1], tiles, cut, schedule.order, schedule.lanes)
            made = replace(
                made, lanes=4, warps=schedule.warps or 1, matrix=True, depth=depth, stages=stages
            )
            if not self._plain_fault(made):
                return made
            large = [a for a in pair if tiles[a] > min(least[a], a.size)]
            if large:
                largest = max(large, key=lambda a: tiles[a])
                tiles[largest] = 1 << (tiles[largest] - 1).bit_length() - 1
            elif depth > DEPTHS[0]:
                depth //= 2
            elif stages:
                stages = 0
            else:
                return None

    def _repaired_loop(self, schedule: Schedule, blocks: Sizes) -> Schedule:
        """A legal schedule near one of a fold."""
        fold = min(schedule.fold, self._longest_fold)
        matrix, stages = schedule.matrix and self._multiplies, min(schedule.stages, 1)
        warps = schedule.warps or 1
        blocks |= {a: max(1, a.size) for a in self.axes if a in self._whole}
        while True:
            made = replace(
                self._folding(blocks, fold, matrix), warps=warps, stages=stages if matrix else 0
            )
            if not self._fold_fault(made):
                return made
            free = [a for a in self.axes if a not in self._whole and blocks[a] > 1]
            longest = max(free, key=lambda a: blocks[a], default=None)
            if longest is not None and (blocks[longest] >= fold or fold == 1):
                blocks[longest] = -(-blocks[longest] // 2)
            elif fold > 1:
                fold = -(-fold // 2)
            elif matrix:
                matrix = False
            else:
                return self.default

    # --- how many, what kind ------------------------------------------------------------------

    def _sizes(self, axis: Axis) -> list[int]:
        """Powers of two, and the whole."""
        whole = max(1, axis.size)
        return sorted({*(1 << n for n in range(whole.bit_length())), whole})

    @property
    def _counted(self) -> int:
        return COUNTED

    def _ways(self, tiles: Sizes) -> Iterator[Schedule]:
        for vector in [None, *(a for a in self.axes if tiles[a] > 1)]:
            for warps in WARPS:
                for lanes in LANES:
                    made = self._made(vector, tiles, tiles, (), lanes)
                    yield replace(made, warps=warps)

    def _code_features(self, schedule: Schedule) -> list[float]:
        own = self._of_a_thread(schedule)
        self._codes.setdefault(own, self._code(schedule))
        return super()._code_features(own)


# --- threads and the memory that they share -----------------------------------------------------


def _steps(staged: Staged) -> list[Step]:
    return [step for phase in staged.phases for step in phase.steps]


def _registers(axes: Iterable[Axis], layouts: Layouts) -> int:
    """How many places of these axes a thread has."""
    return 1 << sum(layouts.get(a.name, ()).count(REGISTER) for a in axes)


# --- sizes --------------------------------------------------------------------------------------


def _near_power(size: int, whole: int) -> int:
    """All of an axis, or the power of two below."""
    return max(1, whole) if size >= max(1, whole) else 1 << size.bit_length() - 1


def _one_of(rng: np.random.Generator, options: Iterable[T]) -> T:
    found = [*options]
    return found[rng.integers(len(found))]


def _words_of(options: Iterable[int]) -> str:
    return ", ".join(map(str, options))
