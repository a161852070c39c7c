"""The space of schedules of a kernel: every way of running it that is worth compiling.

In: a kernel's term and axes (`passes.tile.read_kernel`) and a target. Out: schedules, drawn at
random or made from others. All that it gives are legal: they compile, and compute the kernel.

    space = Space(kernel.term, kernel.axes, find_target("cpu"))          # GPUs: `block_space`
    schedule = space.sample(np.random.default_rng(0))
    space.legal(schedule), space.predict(schedule)       # "", 1.4e-05
    other = space.mutate(schedule, rng)                  # one decision is another
    from_json(to_json(other)) == other

A *plain* schedule cuts the axes of the results into blocks and tiles; a *folding* one runs all
folds over an axis in one loop over blocks of it (`passes.stage`), where the kernel has such folds.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, fields, replace
from functools import cached_property
from itertools import islice, product
from typing import Any

import numpy as np

from ..dialect.errors import CompileError, ParseError
from ..passes import cost, terms
from ..passes.collapse import shaped
from ..passes.index import Axis
from ..passes.schedule import Schedule, lanes_for, schedules
from ..passes.stage import LOCAL_BYTES, fold_axis, stage
from ..passes.targets import Target
from ..passes.terms import FOLDS, REDUCTIONS, ROLLING, Term, postorder
from .unrolling import Levels, Unrolled, stores_along, unrolled

SPILLING = 2  # times the registers may tiles and accumulators take: more is hopeless
CODE = 6000  # instructions that a tile may unroll to, more or less
COUNTED = 64  # choices of tiles that `size` looks at
DECISIONS = ("tile", "tile", "block", "block", "vector", "width", "order", "lanes")
FEATURES = (
    "vector tile", "row tile", "second row tile", "reduction tile", "vectors by registers",
    "instructions of a tile", "stores along the vector", "loads along the vector",
    "loads beside the vector", "bytes of a program by near cache", "programs by units",
    "units that wait", "predicted seconds", "part that is computing", "computed twice", "folds",
    "fold block", "local bytes by near cache", "serial loops", "vector axis innermost", "warps",
    "on matrix instructions", "stages",
)  # fmt: skip

Sizes = dict[Axis, int]


class Space:
    """The legal schedules of one kernel on one target.

    `term` and `axes` are the kernel's; `self.axes` are those of the form that the cost model likes
    best, where some may be one with the next (see `passes/collapse.py`). In `strict` precision
    every reduction adds up in the order of its axis, and there are no folds. CompileError for a
    kernel that no schedule can run.
    """

    def __init__(self, term: Term, axes: tuple[Axis, ...], target: Target, strict: bool = False):
        self.target, self.strict = target, strict
        # what the cost model alone chooses, and with it the form of the kernel
        self.default = cost.cheapest(terms.rolled(term), axes, target, strict)[1]
        term, axes = shaped(term, axes, self.default.names or tuple(a.name for a in axes))
        self.axes = axes
        self.plain = terms.plain(term)
        self.rolled = terms.rolled(self.plain)
        ranks = [rank for _, rank in terms.outcomes(self.plain, len(axes))]
        self._partial = {a for rank in ranks for a in axes[rank:]}  # axes that some result lacks
        self.fold_axis = None if strict else fold_axis(self.rolled)
        if target.is_gpu and self.rolled.op == "scatter":  # blocks of threads do not add in order
            self.fold_axis = None
        if self._partial and self.fold_axis is None:
            raise CompileError("no schedule: the results have other axes, and there are no folds")
        self._scatters = self.fold_axis is not None and self.rolled.op == "scatter"
        self._lanes = lanes_for(self.plain, target)
        self._most = SPILLING * target.registers
        self._codes: dict[Schedule, Unrolled] = {}
        self._predicted: dict[Schedule, float] = {}
        self._local: dict[Schedule, int] = {}

    # --- schedules that are known without a search --------------------------------------------

    @cached_property
    def known(self) -> list[Schedule]:
        """The short list that the cost model chooses from, the default first."""
        found = list(schedules(self.axes, self.plain, self.target, self.strict))
        if self.fold_axis is not None:
            found += cost.fold_options(self.rolled, self.axes, self.target)
        return list(dict.fromkeys([self.default, *(s for s in found if not self.legal(s))]))

    @cached_property
    def plainest(self) -> Schedule:
        """One element at a time, each a program of its own; of folds, one row and one place."""
        if self._partial:
            blocks = {a: 1 if a in self._rows else a.size for a in self.axes}
            return self._repaired(self._folding(blocks, 1))
        ones = dict.fromkeys(self.axes, 1)
        made = self._made(None, ones, ones, (), self._lanes)
        return replace(made, lanes=min(self._lanes_allowed(made)))

    # --- legality -----------------------------------------------------------------------------

    def legal(self, schedule: Schedule) -> str:
        """Why a schedule is not one of this space, in words; empty if it is."""
        fault = self._form_fault(schedule)
        if fault or schedule == self.default:  # the default is legal, whatever it takes
            return fault
        return self._fault(schedule)

    def _form_fault(self, schedule: Schedule) -> str:
        names = [a.name for a in self.axes]
        for what, pairs in (("tiles", schedule.tiles), ("blocks", schedule.blocks)):
            if [name for name, _ in pairs] != names:
                return f"{what}: expected one for each of {', '.join(names)}, in this order"
        for a in self.axes:
            tile, block = schedule.tile(a), schedule.block(a)
            if not 1 <= tile <= block <= max(1, a.size):
                return f"{a}: 1 <= tile {tile} <= block {block} <= size {a.size} does not hold"
        if schedule.pairs != self.default.pairs:
            return f"pairs: {schedule.pairs} is not what the target asks for"
        if schedule.reassociate == self.strict:
            return f"reassociate: {schedule.reassociate} is not what the precision asks for"
        serial = sorted(a.name for a in self.axes if schedule.block(a) > schedule.tile(a))
        if not schedule.fold and sorted(schedule.order) != serial:
            return f"order: expected each of {', '.join(serial) or 'no axis'} once"
        if schedule.vector not in (None, *names):
            return f"vector: {schedule.vector!r} is no axis of the kernel"
        return self._thread_fault(schedule)

    def _thread_fault(self, schedule: Schedule) -> str:
        """What is wrong with how threads run a program."""
        if (schedule.warps, schedule.matrix, schedule.depth, schedule.stages) != (0, False, 0, 0):
            return "warps, matrix, depth, stages: only a GPU's schedules have them"
        return ""

    def _fault(self, schedule: Schedule) -> str:
        """What else is wrong with a schedule of the right form."""
        return self._fold_fault(schedule) if schedule.fold else self._plain_fault(schedule)

    def _plain_fault(self, schedule: Schedule) -> str:
        if self._partial:
            return "a result lacks an axis of the kernel: only folds can run it"
        if schedule.vector and dict(schedule.tiles)[schedule.vector] == 1:
            return f"vector: the tile of {schedule.vector} is 1"
        allowed = self._lanes_allowed(schedule)
        if schedule.lanes not in allowed:
            return f"lanes: {schedule.lanes} is none of {', '.join(map(str, allowed))}"
        code, limit = self._code(schedule), self._limit
        if code.vectors > limit.vectors:
            return f"tiles: {code.vectors:.0f} vectors at once, more than {limit.vectors:.0f}"
        if code.instructions > limit.instructions:
            return f"tiles: the code unrolls to some {code.instructions:.0f} instructions"
        return ""

    def _fold_fault(self, schedule: Schedule) -> str:
        if self.fold_axis is None:
            return "fold: the kernel has no folds that can be run in one loop here"
        blocks = {a: schedule.block(a) for a in self.axes}
        if schedule != self._folding(blocks, schedule.fold):
            lanes = self.target.lanes(32)
            return f"of a fold: tiles of 1, no vector axis, no order and {lanes} lanes"
        for a, block in blocks.items():
            if a in self._whole and block < a.size:
                return f"{a}: the block is {block}, but a program has all that lies along this axis"
            if self._scatters and block < a.size and a.size % block:
                return f"{a}: blocks of {block} overlap, and two programs would add at one place"
        if not 1 <= schedule.fold <= self._longest_fold:
            return f"fold: {schedule.fold} is not between 1 and {self._longest_fold}"
        if self._local_bytes(schedule) > LOCAL_BYTES:
            return f"{self._local_bytes(schedule)} bytes of local buffers, more than {LOCAL_BYTES}"
        return ""

    def _lanes_allowed(self, schedule: Schedule) -> tuple[int, ...]:
        """Tiles of reductions along their own axis; one, if no reduction has such a tile."""
        own = [t for t in self._simple if schedule.vector not in {a.name for a in t.args[0].axes}]
        if self.strict or not own:
            return (self._lanes,)
        most = min(8 * self.target.lanes(32), max(t.attr.size for t in own))
        return tuple(sorted({self._lanes, *(1 << n for n in range(most.bit_length()))}))

    @cached_property
    def _simple(self) -> list[Term]:
        """The reductions with no other inside: these may be vectors of their own axis."""
        found = [t for t in postorder([self.plain]) if t.op in REDUCTIONS]
        return [t for t in found if not any(x.op in FOLDS for x in postorder([t.args[0]]))]

    @cached_property
    def _limit(self) -> Unrolled:
        """The most that a tile may take; what runs one element at a time is always allowed."""
        least = self._code(self.plainest)
        vectors = max(self._most, 2 * least.vectors)
        return Unrolled(vectors, vectors, max(CODE, 2 * least.instructions), 0)

    def _code(self, schedule: Schedule) -> Unrolled:
        if schedule not in self._codes:
            self._codes[schedule] = unrolled(self.plain, self.axes, schedule, self.target)
        return self._codes[schedule]

    @cached_property
    def _whole(self) -> set[Axis]:
        """The axes that a folding program may not cut."""
        return self._partial | (set(self.rolled.args[2].axes) if self._scatters else set())

    @property
    def _longest_fold(self) -> int:
        assert self.fold_axis is not None
        return 1 if self._scatters else max(self.fold_axis.size, 1024)  # it is cut to the axis

    def _local_bytes(self, schedule: Schedule) -> int:
        """What the local buffers of a folding program take."""
        if schedule not in self._local:
            step = Schedule(None, (), (), (), 1)
            staged = stage(self.rolled, self.axes, schedule, lambda axes, term: step)
            self._local[schedule] = staged.local_bytes
        return self._local[schedule]

    # --- drawing ------------------------------------------------------------------------------

    def sample(self, rng: np.random.Generator) -> Schedule:
        """A legal schedule at random; sizes are spread evenly over their logarithms."""
        folds = self.fold_axis is not None and (self._partial or rng.random() < 0.35)
        return self._sample_fold(rng) if folds else self._sample_plain(rng)

    def _sample_plain(self, rng: np.random.Generator) -> Schedule:
        tiles = dict.fromkeys(self.axes, 1)
        vector = self._some_vector(rng)
        if vector is not None:
            tiles[vector] = self._vector_tile(rng, vector)
        others = [a for a in self.axes if a.size > 1 and a is not vector]
        for n in rng.permutation(len(others))[: rng.integers(3)]:
            tiles[others[n]] = log_uniform(rng, 1, min(others[n].size, self._most))
        blocks = {a: self._some_block(rng, a, tiles[a]) for a in self.axes}
        order = (self.axes[n].name for n in rng.permutation(len(self.axes)))
        lanes = self._lanes if rng.random() < 0.5 else 1 << int(rng.integers(8))
        return self._repaired(self._made(vector, tiles, blocks, order, lanes))

    def _sample_fold(self, rng: np.random.Generator) -> Schedule:
        blocks = {}
        for a in self.axes:  # blocks of other axes than the rows repeat the work on these
            whole = a not in self._rows and rng.random() < 0.8
            blocks[a] = a.size if whole else self._some_block(rng, a, 1)
        return self._repaired(self._folding(blocks, self._some_fold(rng)))

    @cached_property
    def _rows(self) -> set[Axis]:
        """The axes that what is folded depends on."""
        if self._scatters:
            return set(self.axes)
        return {a for t in postorder([self.rolled]) if t.op in ROLLING for a in t.args[0].axes}

    def _some_vector(self, rng: np.random.Generator) -> Axis | None:
        """Most often an axis along which a buffer lies contiguous; none now and then."""
        wide = [a for a in self.axes if a.size > 1]
        loads = [t for t in postorder([self.plain]) if t.op == "load" and t.attr[1]]
        along = {a for t in loads for a in t.attr[1][-1].axes} | {*self.axes[-1:]}
        kind = rng.random()
        pool = [a for a in wide if a in along or kind > 0.75] if kind < 0.85 else []
        return pool[rng.integers(len(pool))] if pool else None

    def _vector_tile(self, rng: np.random.Generator, axis: Axis) -> int:
        """Some registers' worth most often, or any size."""
        most = min(axis.size, self._lanes * self._most)
        if rng.random() < 0.3:
            return max(2, log_uniform(rng, 1, most))
        registers = 1 << int(rng.integers(max(1, (most // self._lanes).bit_length())))
        return max(2, min(most, self._lanes * registers))

    def _some_block(self, rng: np.random.Generator, axis: Axis, tile: int) -> int:
        kind, size = rng.random(), max(tile, axis.size)
        count = size // tile
        if kind < 0.25:
            return tile
        if kind < 0.45:
            return size
        if kind < 0.7:
            return min(size, tile * log_uniform(rng, 1, count))
        if kind < 0.85:  # so many blocks of nearly one size
            return max(tile, -(-size // log_uniform(rng, 1, count)))
        return log_uniform(rng, tile, size)

    def _some_fold(self, rng: np.random.Generator) -> int:
        assert self.fold_axis is not None
        return log_uniform(rng, 1, min(self._longest_fold, self.fold_axis.size))

    # --- one from others ----------------------------------------------------------------------

    def mutate(self, schedule: Schedule, rng: np.random.Generator) -> Schedule:
        """A legal schedule that differs in one decision, and in what has to follow from it.

        The same schedule, if the space has no other.
        """
        for _ in range(40):
            if self.fold_axis is not None and not self._partial and rng.random() < 0.1:
                made = self._sample_plain(rng) if schedule.fold else self._sample_fold(rng)
            else:
                other = self._fold_decided if schedule.fold else self._decided
                made = self._repaired(other(schedule, rng))
            if made != schedule:
                return made
        return schedule

    def _fold_decided(self, schedule: Schedule, rng: np.random.Generator) -> Schedule:
        blocks = {a: schedule.block(a) for a in self.axes}
        if not self.axes or rng.random() < 0.4:
            return self._folding(blocks, self._some_fold(rng))
        axis = self.axes[rng.integers(len(self.axes))]
        return self._folding({**blocks, axis: self._some_block(rng, axis, 1)}, schedule.fold)

    def _decided(self, schedule: Schedule, rng: np.random.Generator) -> Schedule:
        """A plain schedule with one decision made anew, not repaired."""
        tiles = {a: schedule.tile(a) for a in self.axes}
        blocks = {a: schedule.block(a) for a in self.axes}
        vector, order, lanes = self._vector(schedule), list(schedule.order), schedule.lanes
        decision = DECISIONS[rng.integers(len(DECISIONS))] if self.axes else "lanes"
        axis = self.axes[rng.integers(len(self.axes))] if self.axes else None
        if decision == "tile" and axis is not None:
            own = self._vector_tile(rng, axis) if axis is vector else 0
            tiles[axis] = own or log_uniform(rng, 1, min(axis.size, self._most))
        elif decision == "block" and axis is not None:
            blocks[axis] = self._some_block(rng, axis, tiles[axis])
        elif decision == "vector":  # the new one gets the tile of the old one, which gets its
            other = self._some_vector(rng)
            mine = tiles[vector] if vector else self._lanes
            if vector is not None:
                tiles[vector] = tiles[other] if other else 1
            if other is not None:
                tiles[other] = max(2, mine)
            vector = other
        elif decision == "width" and vector is not None:
            tiles[vector] = _doubled_or_halved(tiles[vector], rng)
        elif decision == "order" and len(order) > 1:
            one, other = rng.permutation(len(order))[:2]
            order[one], order[other] = order[other], order[one]
        elif decision == "lanes":
            lanes = _doubled_or_halved(lanes, rng)
        return self._made(vector, tiles, blocks, order, lanes)

    def cross(self, a: Schedule, b: Schedule, rng: np.random.Generator) -> Schedule:
        """A legal schedule with the decisions of two, axis by axis, repaired where they clash."""
        one, other = (a, b) if rng.random() < 0.5 else (b, a)
        picks = [one if rng.random() < 0.5 else other for _ in range(len(self.axes) + 3)]
        blocks = {x: s.block(x) for x, s in zip(self.axes, picks, strict=False)}
        if one.fold:
            fold = self._folding(blocks, picks[-1].fold or one.fold)
            return self._repaired(self._like(fold, picks[-2] if picks[-2].fold else one))
        picks = [one if s.fold else s for s in picks]
        tiles = {x: s.tile(x) for x, s in zip(self.axes, picks, strict=False)}
        order = (*picks[-1].order, *one.order, *other.order)
        vector = self._vector(picks[-2])
        made = self._made(vector, tiles, blocks, order, picks[-3].lanes)
        return self._repaired(self._like(made, picks[-2]))

    # --- making and repair --------------------------------------------------------------------

    def _like(self, schedule: Schedule, other: Schedule) -> Schedule:
        """A schedule, run by as many threads as another, and as these run it."""
        return schedule

    def _vector(self, schedule: Schedule) -> Axis | None:
        return next((a for a in self.axes if a.name == schedule.vector), None)

    def _made(
        self, vector: Axis | None, tiles: Sizes, blocks: Sizes, order: Iterable[str], lanes: int
    ) -> Schedule:
        """A plain schedule; blocks are at least tiles, and what is serial is in the order."""
        cut = {a: max(tiles[a], blocks[a]) for a in self.axes}
        serial = [a.name for a in self.axes if cut[a] > tiles[a]]
        loops = [name for name in dict.fromkeys((*order, *serial)) if name in serial]
        own = vector.name if vector is not None and tiles[vector] > 1 else None
        sizes, whole = _pairs_of(tiles, self.axes), _pairs_of(cut, self.axes)
        free, pairs = not self.strict, self.default.pairs
        return Schedule(own, sizes, whole, tuple(loops), lanes, free, pairs=pairs)

    def _folding(self, blocks: Sizes, fold: int) -> Schedule:
        made = self._made(None, dict.fromkeys(self.axes, 1), blocks, (), self.target.lanes(32))
        return replace(made, order=(), fold=fold)

    def _repaired(self, schedule: Schedule) -> Schedule:
        """The legal schedule near one: sizes are cut to the axes, then the largest are halved."""
        blocks = {a: min(schedule.block(a), max(1, a.size)) for a in self.axes}
        if schedule.fold:
            return self._repaired_fold(blocks, min(schedule.fold, self._longest_fold))
        tiles = {a: min(schedule.tile(a), max(1, a.size)) for a in self.axes}
        vector, lanes = self._vector(schedule), schedule.lanes
        while True:
            made = self._made(vector, tiles, blocks, schedule.order, lanes)
            allowed = self._lanes_allowed(made)
            made = replace(made, lanes=max([n for n in allowed if n <= lanes] or allowed))
            if not self._plain_fault(made):
                return made
            rows = [a for a in self.axes if tiles[a] > 1 and (a is not vector or len(tiles) == 1)]
            rows = rows or [a for a in self.axes if tiles[a] > 1]
            if rows:
                largest = max(rows, key=lambda a: tiles[a])
                tiles[largest] = -(-tiles[largest] // 2)
            elif made.lanes > min(allowed):
                lanes = made.lanes // 2
            else:
                return self.plainest

    def _repaired_fold(self, blocks: Sizes, fold: int) -> Schedule:
        for a in self.axes:
            if a in self._whole:
                blocks[a] = max(1, a.size)
            while self._scatters and a.size % blocks[a]:
                blocks[a] -= 1
        while self._fold_fault(made := self._folding(blocks, fold)):
            free = [a for a in self.axes if a not in self._whole and blocks[a] > 1]
            longest = max(free, key=lambda a: blocks[a], default=None)
            if longest is not None and not self._scatters and blocks[longest] >= fold:
                blocks[longest] = -(-blocks[longest] // 2)
            elif fold > 1:
                fold = -(-fold // 2)
            else:
                return self.default
        return made

    # --- how many, how fast, what kind --------------------------------------------------------

    @cached_property
    def size(self) -> int:
        """How many legal schedules there are, or a lower bound of it.

        Counted are tiles of all sizes up to 8 and of powers of two, each with all of its blocks
        and orders; and for folds, blocks and folds of such sizes. After `COUNTED` choices the rest
        is left out. So it is exact if no axis is longer than 8 and there are few choices.
        """
        widths = [self._sizes(a) for a in self.axes]
        found = 0
        for sizes in islice(product(*widths), 0 if self._partial else self._counted):
            found += self._count_with(dict(zip(self.axes, sizes, strict=True)))
        if self.fold_axis is not None:
            folds = _some_sizes(min(self.fold_axis.size, self._longest_fold))
            for *sizes, fold in islice(product(*widths, folds), self._counted):
                blocks = dict(zip(self.axes, sizes, strict=True))
                found += not self._fold_fault(self._folding(blocks, fold))
        return max(found, 1)

    def _count_with(self, tiles: Sizes) -> int:
        """How many plain schedules with these tiles are legal."""
        legal = sum(not self._plain_fault(made) for made in self._ways(tiles))
        rest = [a.size - tiles[a] for a in self.axes if a.size > tiles[a]]
        ways = [1, *(0 for _ in rest)]  # to choose the blocks of so many serial axes
        for count in rest:
            for n in range(len(rest), 0, -1):
                ways[n] += ways[n - 1] * count
        return legal * sum(math.factorial(n) * blocks for n, blocks in enumerate(ways))

    @property
    def _counted(self) -> int:
        return COUNTED

    def _sizes(self, axis: Axis) -> list[int]:
        """The tiles along an axis that `size` looks at."""
        return _some_sizes(axis.size)

    def _ways(self, tiles: Sizes) -> Iterator[Schedule]:
        """The plain schedules with these tiles that have no serial loops."""
        for vector in [None, *(a for a in self.axes if tiles[a] > 1)]:
            made = self._made(vector, tiles, tiles, (), self._lanes)
            for lanes in self._lanes_allowed(made):
                yield replace(made, lanes=lanes)

    def predict(self, schedule: Schedule) -> float:
        """The seconds of the kernel with a schedule, by the cost model."""
        if schedule not in self._predicted:
            form = self.rolled if schedule.fold else self.plain
            self._predicted[schedule] = cost.estimate(form, self.axes, schedule, self.target)
        return self._predicted[schedule]

    def features(self, schedule: Schedule) -> np.ndarray:
        """What a schedule is like, by `FEATURES`: logarithms of sizes, parts of 1, and 0 or 1.

        They mean the same for every kernel, so that what is learned of one serves another.
        """
        form = self.rolled if schedule.fold else self.plain
        work = cost.counted(form, self.axes, schedule, self.target)
        programs, units = max(1, schedule.programs(self.axes)), self.target.units
        seconds = max(self.predict(schedule), 1e-12)
        computing = work.instructions / (self.target.rate * min(units, programs))
        elements = max(1, math.prod(a.size for a in self.axes))
        computed = programs * math.prod(schedule.block(a) for a in self.axes)
        local = self._local_bytes(schedule) if schedule.fold else 0
        return np.array([
            *(self._code_features(schedule) if not schedule.fold else [0.0] * 9),
            math.log2(1 + (work.fetched + work.again) / programs / self.target.near),
            math.log2(programs / units),
            -(-programs // units) * units / programs - 1.0,
            math.log2(seconds),
            min(1.0, computing / seconds),
            math.log2(computed / elements),
            float(schedule.fold > 0),
            math.log2(max(1, schedule.fold)),
            math.log2(1 + local / self.target.near),
            len(schedule.order),
            float(schedule.order[-1:] == (schedule.vector,)),
            *(float(n) for n in (schedule.warps, schedule.matrix, schedule.stages)),
        ])  # fmt: skip

    def _code_features(self, schedule: Schedule) -> list[float]:
        """Those of `FEATURES` that are about the tiles of a plain schedule."""
        vector, code = self._vector(schedule), self._code(schedule)
        rows = sorted((schedule.tile(a) for a in self.axes if a is not vector), reverse=True)
        level = Levels(schedule, self.axes)[()]
        loads = [t for t in postorder([self.plain]) if t.op == "load"]
        crossing = [t for t in loads if vector in t.axes]
        along = [t for t in crossing if vector and level.row(t) == vector]
        count = max(1, len(loads))
        return [
            math.log2(schedule.tile(vector) if vector else 1),
            *(math.log2(n) for n in [*rows, 1, 1][:2]),
            math.log2(code.own),
            math.log2(1 + code.vectors / self.target.registers),
            math.log2(1 + code.instructions),
            float(stores_along(level, self.axes)),
            len(along) / count,
            1 - len(crossing) / count,
        ]


# --- sizes --------------------------------------------------------------------------------------


def log_uniform(rng: np.random.Generator, low: int, high: int) -> int:
    """A number from low to high: a power of two most often, or the end, or any."""
    kind, most = rng.random(), max(low, high)
    if kind < 0.15:
        return most
    if kind < 0.75:
        first, last = (low - 1).bit_length(), most.bit_length()
        return max(low, min(most, 1 << int(rng.integers(first, max(first + 1, last)))))
    return max(low, min(most, int(math.exp(rng.uniform(math.log(low), math.log(most + 1))))))


def _doubled_or_halved(size: int, rng: np.random.Generator) -> int:
    return size * 2 if rng.random() < 0.5 else max(1, size // 2)


def _some_sizes(size: int) -> list[int]:
    """All sizes up to 8, powers of two, and the whole."""
    whole = max(1, size)
    powers = (1 << n for n in range(whole.bit_length()))
    return sorted({*range(1, min(8, whole) + 1), *powers, whole})


def _pairs_of(sizes: Mapping[Axis, int], axes: tuple[Axis, ...]) -> tuple[tuple[str, int], ...]:
    return tuple((a.name, sizes[a]) for a in axes)


# --- as text ------------------------------------------------------------------------------------


def to_json(schedule: Schedule) -> str:
    """A schedule's fields as JSON: one text for each schedule."""
    return json.dumps(asdict(schedule), separators=(",", ":"), sort_keys=True)


def from_json(text: str) -> Schedule:
    """The schedule that a text of `to_json` says; ParseError for any other text.

    Whether it is legal for a kernel, `Space.legal` tells.
    """
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ParseError(f"a schedule is not JSON: {error}") from None
    names = sorted(f.name for f in fields(Schedule))
    if not isinstance(found, dict) or sorted(found) != names:
        raise ParseError(f"expected a schedule's {', '.join(names)}, got {text:.200}")
    for name in ("tiles", "blocks"):
        found[name] = tuple(_pair(name, x) for x in _typed(name, found[name], list))
        if len(dict(found[name])) < len(found[name]):
            raise ParseError(f"{name} of a schedule: an axis is there twice")
    found["order"] = tuple(_typed("order", x, str) for x in _typed("order", found["order"], list))
    if found["vector"] is not None:
        _typed("vector", found["vector"], str)
    for name in ("pairs", "reassociate", "matrix"):
        _typed(name, found[name], bool)
    numbers = ("fold", "warps", "depth", "stages")
    if _typed("lanes", found["lanes"], int) < 1 or any(
        _typed(name, found[name], int) < 0 for name in numbers
    ):
        raise ParseError(f"a schedule's lanes are at least 1, {', '.join(numbers)} at least 0")
    return Schedule(**found)


def _pair(name: str, value: Any) -> tuple[str, int]:
    pair = _typed(name, value, list)
    if len(pair) != 2 or _typed(name, pair[1], int) < 1:
        raise ParseError(f"{name} of a schedule: expected an axis and its size, got {pair!r:.80}")
    return _typed(name, pair[0], str), pair[1]


def _typed(name: str, value: Any, kind: type) -> Any:
    if type(value) is not kind or (kind is int and abs(value) >= 1 << 62):
        raise ParseError(f"{name} of a schedule: expected {kind.__name__}, got {value!r:.80}")
    return value
