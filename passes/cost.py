"""What a kernel costs, in seconds: instructions of its loops, bytes it touches, and its launch.

    estimate(term, axes, schedule, target)

The counts come from the same walk that emits the code (`placement`). The numbers rank candidates;
measurement decides.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from math import prod

from . import terms
from .blocks.schedules import block_folds, block_schedules, held_bytes, matrix_share, moved
from .blocks.schedules import staging as block_staging
from .collapse import forms, shaped
from .index import Axis, Expr, Quotient, of_axis
from .loops import Around, joint, paired, spread, standing
from .placement import Level, carries_on, reduction_tile, tile_step, top_level
from .schedule import Schedule, fold_schedules, scatter_schedules, schedules
from .stage import LOCAL_BYTES, Staged, fold_axis, stage
from .targets import Target
from .terms import FOLDS, ROLLING, Term, postorder

# Vector instructions for one vector of results.
INSTRUCTIONS = {
    "exp2": 20.0, "log2": 27.0, "sin": 50.0, "sqrt": 8.0, "recip": 8.0, "div": 8.0, "mod": 30.0,
    "add": 1.0, "mul": 1.0, "less_than": 1.0, "select": 1.0, "cast": 1.5, "bitcast": 0.0,
    "index": 2.0, "nonneg": 2.0, "const": 0.0, "table": 12.0, "sum": 1.0, "max": 3.0,
    "larger": 3.0, "results": 0.0,
}  # fmt: skip
SCALAR_LOAD = 1.2  # one element, and putting it into a vector
SCALAR_STORE = 3.0  # one element of a vector, to a line of its own
ADDRESSES = 16  # of elements that are loaded one by one, so many fit into registers
VECTOR_LOAD = 0.6
ODD_LOAD = 4.0  # a vector whose length is no power of two, in pieces
BROADCAST_LOAD = 0.6
SPILL = 2.5  # a store and a load for what does not fit into registers
OVERLAP = 0.1  # of the lesser of computing and moving, what is not hidden behind the other
FAR = 16.0  # waiting for a line in a page of its own
LINE = 1.0  # bringing a line from the second cache to the first
FIRST = 16e3  # bytes of one operand that stay in the first cache
PAGE, PAGES = 4096.0, 64  # bytes; so many pages are found at once
TURN = 1.5  # one of the exchanges that make rows of columns, for each vector
CLAMP = 3.0  # a coordinate that is kept inside its buffer
LOOP = 1.0  # counting and branching, for each turn of a loop
LATENCY = 9.0  # a turn of a reduction waits for the accumulator that the last one made


def estimate(term: Term, axes: tuple[Axis, ...], schedule: Schedule, target: Target) -> float:
    """The predicted seconds of a kernel that stores `term` at every point of `axes`."""
    term, axes = shaped(term, axes, schedule.names)
    programs, work = schedule.programs(axes), counted(term, axes, schedule, target)
    threads = max(1, schedule.warps * target.warp)
    busy = max(1.0, min(target.units, programs * threads))
    slots = max(1, target.units // threads)
    rounds = -(-programs // slots) * slots / max(1, programs) if programs else 1.0
    computing = work.instructions / (target.rate * busy) * min(rounds, 2.0)
    touched = {**work.touched, "": bytes_written(term, axes)}  # and "", what it stores
    *touched, written = moved(touched, term, axes, schedule, target)
    near = target.cache_bandwidth * busy
    # one program runs where it is called, without a barrier
    launch = target.launch / (10 if programs == 1 and not target.is_gpu else 1)
    computing += work.fetched / near
    far = [size for size in (*touched, written) if size > target.cache / 4]
    moving = sum(far) / target.bandwidth + (0.0 if written in far else written / near)
    running = max(computing, moving) + OVERLAP * min(computing, moving)
    return launch + running + work.again / near + spilling(written, target)


def counted(term: Term, axes: tuple[Axis, ...], schedule: Schedule, target: Target) -> Work:
    """What a kernel's programs do, all together."""
    programs, work = schedule.programs(axes), Work()
    if schedule.fold:
        staged = staging(term, axes, schedule, target)
        most = held_bytes(schedule, target) if target.is_gpu else LOCAL_BYTES
        work.instructions = 0.0 if staged.local_bytes <= most else float("inf")
        for phase in staged.phases:
            work.seen = set()  # a turn's steps share what they bring near
            for step in phase.steps:
                counter = _Counter(step.schedule, step.axes, target, work)
                counter.run(step.term, programs * phase.turns)
    else:
        _Counter(schedule, axes, target, work).run(term, programs)
    return work


def staging(term: Term, axes: tuple[Axis, ...], schedule: Schedule, target: Target) -> Staged:
    """The steps of a kernel of folds."""
    if target.is_gpu:
        return block_staging(term, axes, schedule)
    return stage(term, axes, schedule, lambda a, t: step_schedule(a, t, target))


def spilling(written: float, target: Target) -> float:
    """The seconds that results take which leave the last cache: each line comes in before it is
    written, and nothing is computed from it meanwhile."""
    return 2 * max(0.0, written - target.cache) / target.bandwidth


@lru_cache(4096)
def cheapest(
    term: Term, axes: tuple[Axis, ...], target: Target, strict: bool = False
) -> tuple[float, Schedule]:
    """The least predicted seconds of a kernel, and its schedule.

    Rolling sums run in one loop over blocks, or as the two reductions that they stand for.
    """
    term, axes = forms(term, axes)[0]
    plain = terms.plain(term)
    partial = [a for _, rank in terms.outcomes(term, len(axes)) for a in axes[rank:]]
    known = block_schedules if target.is_gpu else schedules
    options = [
        (plain, schedule)
        for form, own in forms(plain, axes)
        if not partial
        for schedule in known(own, form, target, strict)
    ]
    if fold_axis(term) is not None and not strict and not (target.is_gpu and term.op == "scatter"):
        folds = fold_options(term, axes, target)
        options += [(term, s) for s in folds if all(s.block(a) >= a.size for a in partial)]
    priced = [(estimate(form, axes, schedule, target), schedule) for form, schedule in options]
    none = (float("inf"), Schedule(None, (), (), (), 1))  # there is none for these results
    return min(priced, key=lambda pair: pair[0], default=none)


def fold_options(term: Term, axes: tuple[Axis, ...], target: Target) -> Iterable[Schedule]:
    """The schedules of one loop for all folds of a kernel."""
    if term.op == "scatter":
        return scatter_schedules(axes, term.args[2].axes, target)
    rolls = [t for t in postorder([term]) if t.op in ROLLING]
    scores = [t.args[0] for t in rolls]
    rows = frozenset(a for s in scores for a in s.axes if a in axes)
    weighted = any(t.axes - rows for t in rolls)
    heavy = weighted or any(t.folds for t in scores)
    if target.is_gpu:
        return block_folds(axes, rows, rolls[0].attr, heavy, target, term)
    return fold_schedules(axes, rows, rolls[0].attr, heavy, target)


def bytes_written(root: Term, axes: tuple[Axis, ...]) -> float:
    """How many bytes a kernel's results take."""
    found = terms.outcomes(root, len(axes))
    return float(sum(prod(a.size for a in axes[:n]) * t.dtype.bytes for t, n in found))


@lru_cache(4096)
def bytes_read(load: Term) -> float:
    """How many bytes of a buffer a load reads at all of its points."""
    _, index, shape = load.attr
    total = float(load.dtype.bytes)
    for expr, size in zip(index, shape, strict=True):
        low, high = expr.range
        total *= max(1, min(size, high - low + 1)) if not expr.data else size
    return total


@lru_cache(4096)
def step_schedule(axes: tuple[Axis, ...], term: Term, target: Target) -> Schedule:
    """The schedule of least predicted time for a step inside a program."""

    def instructions(schedule: Schedule) -> float:
        work = Work()
        _Counter(schedule, axes, target, work).run(term, 1)
        return work.instructions + work.fetched * target.rate / target.cache_bandwidth

    return min(schedules(axes, term, target, inside=True), key=instructions)


@dataclass
class Work:
    """What a kernel does in all its programs."""

    instructions: float = 0.0
    fetched: float = 0.0  # bytes brought near
    again: float = 0.0  # and not for the first time
    touched: dict[str, float] = field(default_factory=dict)  # bytes of each buffer that it reads
    seen: set[tuple] = field(default_factory=set)  # what is near already


@dataclass
class _Parts:
    """What a term is made of, by where it stands: work of equal axes and width is one entry."""

    prices: dict[tuple[Around, frozenset[Axis], int], float] = field(default_factory=dict)
    loads: list[tuple[Around, Term]] = field(default_factory=list)
    constants: int = 0
    folds: list[tuple[Around, Term]] = field(default_factory=list)  # inner ones before outer ones


@lru_cache(4096)
def _parts(root: Term) -> _Parts:
    found, together = _Parts(), joint(root)
    for around, x in dict.fromkeys(
        (tuple(together[f][0] for f in around), x) for around, x in standing(root)
    ):
        found.constants += x.op == "const"
        if x.op == "load":
            found.loads.append((around, x))
        elif x.op in FOLDS:
            found.folds.append((around, x))
        else:
            known = x.op == "mod" and x.args[1].op == "const"
            price = 4.0 if known else INSTRUCTIONS[x.op]
            key = (around, x.axes, x.dtype.bits)
            price *= 4.0 if x.dtype.name == "bfloat16" else 1.0
            if around and paired(around[-1]):  # two products at once, of words as they lie there
                words = x.op == "cast" and x.args[0].dtype.bits == 16
                price *= 0.2 if words else 0.5 if x is around[-1].args[0] else 1.0
            found.prices[key] = found.prices.get(key, 0.0) + price
    return found


class _Counter:
    """Counts what the loops of one schedule do."""

    def __init__(self, schedule: Schedule, axes: tuple[Axis, ...], target: Target, work: Work):
        self.schedule, self.axes, self.target, self.work = schedule, axes, target, work
        self.levels: dict[Around, Level] = {}

    def run(self, term: Term, trips: float) -> None:
        """Add what `trips` programs do."""
        self.programs = trips
        outer = tuple(sorted(term.axes - set(self.axes)))
        # how many places of an axis one program passes through
        self.lengths = dict.fromkeys(outer, 1) | {a: self.schedule.block(a) for a in self.axes}
        last = top_level(self.schedule, self.axes, outer)
        last.data["trips"] = trips
        for name in self.schedule.order:
            axis = next(a for a in self.axes if a.name == name)
            tile = self.schedule.tile(axis)
            trips *= -(-self.schedule.block(axis) // tile)
            last = last.inner(axis, tile, tile_step(self.schedule, axis))
            last.data["trips"] = trips
            self.work.instructions += trips * LOOP
        self.levels[()] = last
        self.term, parts, room = term, _parts(term), self.target.registers // 2  # for constants
        self.work.instructions += trips * BROADCAST_LOAD * max(0, parts.constants - room)
        for (around, axes, bits), price in parts.prices.items():
            level = self._level(around).home(axes)
            price *= matrix_share(self.schedule, around, self.target)
            self._count(level, self._vectors(bits, axes, level) * price)
        for around, load in parts.loads:
            self._load(load, self._level(around).home(load.axes))
        together = joint(term)
        for around, fold in parts.folds:
            self._reduce(fold, together[fold], around)
        wide, lanes = last.shape(frozenset(self.axes)), self.schedule.lanes
        along = last.line(tuple(map(of_axis, self.axes)), wide)
        store = INSTRUCTIONS["add"] if not wide or along == wide[-1] else SCALAR_STORE * lanes
        if along is not None and along != wide[-1]:
            size = last.tiles[along]
            store = TURN * (size.bit_length() - 1) + lanes / size
        for result, _ in terms.outcomes(term, len(self.axes)):
            vectors = self._vectors(result.dtype.bits, frozenset(self.axes), last)
            self.work.instructions += trips * vectors * store

    def _level(self, around: Around) -> Level:
        """The innermost of the loops over the axes of these reductions."""
        if around not in self.levels:
            fold = around[-1]
            home = self._level(around[:-1]).home(fold.axes)
            tile = reduction_tile(fold, home, self.schedule)
            inner = self.levels[around] = home.inner(fold.attr, tile, tile)
            inner.data["trips"] = home.data["trips"] * -(-fold.attr.size // tile)
            inner.data["registers"] = 1.0
        return self.levels[around]

    def _vectors(self, bits: int, axes: frozenset[Axis], level: Level) -> float:
        """How many vector registers a tile value of these axes fills."""
        shape = level.shape(axes)
        if not shape:
            return 1.0
        lanes = self.target.lanes(bits)
        return prod(level.tiles[a] for a in shape[:-1]) * -(-level.tiles[shape[-1]] // lanes)

    def _count(self, level: Level, instructions: float) -> None:
        self.work.instructions += level.data["trips"] * instructions
        level.data["turn"] = level.data.get("turn", 0.0) + instructions

    def _load(self, term: Term, level: Level) -> None:
        name, index, shape = term.attr
        if not name.startswith("%"):  # no local buffer
            self._fetch(term)
        wide = level.shape(term.axes)
        apart = self._apart(term, level)
        if not wide or (self.schedule.matrix and level.own in term.axes):  # or lines of fragments
            self._count(level, BROADCAST_LOAD + apart)
            return
        rows = prod(level.tiles[a] for a in wide[:-1])
        length, row = level.tiles[wide[-1]], level.row(term)
        alone = term in spread(self.term, self.schedule.vector)
        if row is not None and not alone:
            vectors = self._vectors(term.dtype.bits, term.axes, level)
            price = VECTOR_LOAD if not length & (length - 1) else ODD_LOAD
            price += 0.0 if row == wide[-1] else TURN * (length.bit_length() - 1)
            self._count(level, vectors * price + rows * apart)
            shared = any(tile > 1 and a not in term.axes for a, tile in level.tiles.items())
            if "registers" in level.data and shared and length > 2:  # the loads of a loop
                level.data["registers"] += vectors
            return
        if alone:
            price = BROADCAST_LOAD + apart / (length if row is not None else 1)
        else:  # each element in a cache line, often a page, of its own
            price = SCALAR_LOAD * (6.0 if index and length * shape[-1] > 4096 else 1.0)
            price *= 4.0 if rows * length > ADDRESSES else 1.0
        self._count(level, rows * length * (price + CLAMP * term.outside))

    def _apart(self, term: Term, level: Level) -> float:
        """What a load waits where each turn of its loop is far from the last, and does not stay."""
        _, index, shape = term.attr
        step = 0
        for expr, size in zip(index, shape, strict=True):
            step = step * size + (expr.coefficient(level.own) or 0 if level.own else 0)
        apart = abs(step) * term.dtype.bytes
        turns = level.own.size if level.own else 0
        if turns <= PAGES or apart * turns <= self.target.near:
            return LINE * min(1.0, apart / 64) if apart * turns > FIRST else 0.0
        return FAR * min(1.0, apart / PAGE)

    def _fetch(self, term: Term) -> None:
        """Note what a load reads from memory."""
        name, index, shape = term.attr
        spans = [self._span(e, n) for e, n in zip(index, shape, strict=True)]
        span = prod(spans) * term.dtype.bytes
        stays = span <= self.target.near / 2 and all(
            self.lengths.get(a, a.size) == a.size for a in term.axes
        )
        times = min(self.programs, self.target.units) if stays else self.programs
        if name in self.work.touched and span > self.target.near:  # it has not stayed
            self.work.again += span * times
        elif (name, index) not in self.work.seen:
            self.work.fetched += span * times
        self.work.seen.add((name, index))
        self.work.touched[name] = max(self.work.touched.get(name, 0.0), bytes_read(term))

    def _span(self, expr: Expr, size: int) -> int:
        """How many places along a buffer's dimension one program reads."""
        if expr.data:  # anywhere: as many as there are indices
            return max(1, min(size, prod(self.lengths.get(a, a.size) for a in expr.axes)))
        total = 1
        for atom, c in expr.parts:
            if isinstance(atom, Axis):
                length = self.lengths.get(atom, atom.size)
            else:
                assert isinstance(atom, Quotient)
                length = -(-self._span(atom.expr, 1 << 62) // atom.divisor)
            total += abs(c) * (length - 1)
        return max(1, min(size, total))

    def _reduce(self, term: Term, group: Around, around: Around) -> None:
        inner, level = self._level((*around, group[0])), self._level(around).home(term.axes)
        body = term.args[0]
        if carries_on(term, self.term, inner, self.schedule):
            self._count(inner, LOOP)
            return
        fused = term.op == "sum" and body.op == "mul" and body.dtype.is_float
        price = 0.2 if fused else INSTRUCTIONS[term.op]
        own = frozenset() if inner.pairs(term, self.schedule) else {term.attr}
        vectors = self._vectors(term.dtype.bits, term.axes | own, inner)
        self._count(inner, vectors * price * matrix_share(self.schedule, (term,), self.target))
        if own and inner.tiles[term.attr] > 1:
            self._count(level, 8.0 * prod(level.tiles[x] for x in level.shape(term.axes)))
        inner.data["registers"] += vectors
        if term is group[-1]:  # all that share the loop
            self._count(inner, LOOP if body.folds else max(LOOP, LATENCY - inner.data["turn"]))
            excess = inner.data["registers"] - self.target.registers
            if excess > 0 and not self.target.is_gpu:
                self._count(inner, excess * SPILL)
