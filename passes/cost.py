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
from typing import Any

from . import terms
from .index import Axis, Expr, Quotient
from .placement import Level, Walker, deep_recursion, tile_step, top_level
from .schedule import Schedule, fold_schedules, scatter_schedules, schedules, step_schedules
from .stage import fold_axis, stage
from .targets import Target
from .terms import FOLDS, ROLLING, Term, postorder

# Vector instructions for one vector of results.
INSTRUCTIONS = {
    "exp2": 20.0, "log2": 27.0, "sin": 50.0, "sqrt": 8.0, "recip": 8.0, "div": 8.0, "mod": 30.0,
    "add": 1.0, "mul": 1.0, "less_than": 1.0, "select": 1.0, "cast": 1.5, "bitcast": 0.0,
    "index": 2.0, "nonneg": 2.0, "const": 0.0, "table": 12.0, "sum": 1.0, "max": 3.0,
    "larger": 3.0,
}  # fmt: skip
SCALAR_LOAD = 1.2  # one element, and putting it into a vector
VECTOR_LOAD = 0.6
BROADCAST_LOAD = 0.6
SPILL = 2.5  # a store and a load for what does not fit into registers
LOOP = 1.0  # counting and branching, for each turn of a loop


def estimate(term: Term, axes: tuple[Axis, ...], schedule: Schedule, target: Target) -> float:
    """The predicted seconds of a kernel that stores `term` at every point of `axes`."""
    programs = schedule.programs(axes)
    work = _Work()
    if schedule.fold:
        for phase in stage(term, axes, schedule, lambda a, t: step_schedule(a, t, target)).phases:
            work.seen = set()  # a turn's steps share what they bring near
            for step in phase.steps:
                counter = _Counter(step.schedule, step.axes, target, work)
                counter.run(step.term, programs * phase.turns)
    else:
        _Counter(schedule, axes, target, work).run(term, programs)
    busy = max(1.0, min(target.units, programs))
    rounds = -(-programs // target.units) * target.units / max(1, programs) if programs else 1.0
    computing = work.instructions / (target.rate * busy) * min(rounds, 2.0)
    output = prod(a.size for a in axes) * term.dtype.bytes
    moved = sum(work.touched.values()) + output
    near = target.cache_bandwidth * busy
    alone = programs == 1 and not target.is_gpu  # runs where it is called, without a barrier
    launch = target.launch / 10 if alone else target.launch
    reading = max(computing + work.fetched / near, moved / target.bandwidth)
    return launch + reading + work.again / near


@lru_cache(4096)
def cheapest(
    term: Term, axes: tuple[Axis, ...], target: Target, strict: bool = False
) -> tuple[float, Schedule]:
    """The least predicted seconds of a kernel, and its schedule.

    Rolling sums run in one loop over blocks, or as the two reductions that they stand for.
    """
    plain = terms.plain(term)
    options = [(plain, s) for s in schedules(axes, plain, target, strict)]
    if fold_axis(term) is not None and not strict and not target.is_gpu:
        options += [(term, s) for s in _fold_options(term, axes, target)]
    enough = at_least(term, axes, target) * 1.05
    priced: list[tuple[float, Schedule]] = []
    for form, schedule in options:
        priced.append((estimate(form, axes, schedule, target), schedule))
        if priced[-1][0] <= enough:
            break
    return min(priced, key=lambda pair: pair[0])


def _fold_options(term: Term, axes: tuple[Axis, ...], target: Target) -> Iterable[Schedule]:
    """The schedules of one loop for all folds of a kernel."""
    if term.op == "scatter":
        return scatter_schedules(axes, term.args[2].axes, target)
    scores = [t.args[0] for t in postorder([term]) if t.op in ROLLING]
    rows = frozenset(a for s in scores for a in s.axes if a in axes)
    weighted = any(t.axes - rows for t in postorder([term]) if t.op in ROLLING)
    heavy = weighted or any(t.op in FOLDS for t in postorder(scores))
    return fold_schedules(axes, rows, heavy, target)


@lru_cache(4096)
def at_least(term: Term, axes: tuple[Axis, ...], target: Target) -> float:
    """Seconds that no schedule of a kernel falls below: every part once for each of its points."""
    instructions = 0.0
    touched: dict[str, float] = {}
    for t in postorder([term]):
        if t.op == "load":
            touched[t.attr[0]] = max(touched.get(t.attr[0], 0.0), _reached(t) * t.dtype.bytes)
        elif t.op in FOLDS:
            around = t.args[0].axes if t.op == "scatter" else t.axes.union(t.args[0].axes, {t.attr})
            instructions += 0.2 * prod(a.size for a in around)
        else:
            instructions += INSTRUCTIONS[t.op] * prod(a.size for a in t.axes)
    computing = instructions / (target.lanes(32) * target.rate * target.units)
    moved = sum(touched.values()) + prod(a.size for a in axes) * term.dtype.bytes
    return target.launch / 10 + max(computing, moved / target.bandwidth)


def _reached(load: Term) -> float:
    """How many elements of a buffer a load reads at all of its points."""
    _, index, shape = load.attr
    total = 1.0
    for expr, size in zip(index, shape, strict=True):
        low, high = expr.range
        total *= max(1, min(size, high - low + 1)) if not expr.data else size
    return total


@lru_cache(4096)
def step_schedule(axes: tuple[Axis, ...], term: Term, target: Target) -> Schedule:
    """The schedule of least predicted time for a step inside a program."""

    def instructions(schedule: Schedule) -> float:
        work = _Work()
        _Counter(schedule, axes, target, work).run(term, 1)
        return work.instructions + work.fetched * target.rate / target.cache_bandwidth

    return min(step_schedules(axes, term, target), key=instructions)


@dataclass
class _Work:
    """What a kernel does in all its programs."""

    instructions: float = 0.0
    fetched: float = 0.0  # bytes brought near
    again: float = 0.0  # and not for the first time
    touched: dict[str, float] = field(default_factory=dict)  # bytes of each buffer that it reads
    seen: set[tuple] = field(default_factory=set)  # what is near already


class _Counter(Walker):
    """Counts instructions instead of emitting them."""

    def __init__(self, schedule: Schedule, axes: tuple[Axis, ...], target: Target, work: _Work):
        super().__init__(schedule, axes)
        self.target, self.work = target, work
        self.outer: tuple[Axis, ...] = ()
        self.programs = 1.0

    def run(self, term: Term, trips: float) -> None:
        """Add what `trips` programs do."""
        self.programs = trips
        with deep_recursion():
            self._run(term, trips)

    def _run(self, term: Term, trips: float) -> None:
        self.outer = tuple(sorted(term.axes - set(self.axes)))
        last = top_level(self.schedule, self.axes, self.outer)
        last.data["trips"] = trips
        for name in self.schedule.order:
            axis = next(a for a in self.axes if a.name == name)
            trips *= -(-self.schedule.block(axis) // self.schedule.tile(axis))
            tile = self.schedule.tile(axis)
            last = last.inner(axis, tile, tile_step(self.schedule, axis))
            last.data["trips"] = trips
            self.work.instructions += trips * LOOP
        self.value(term, last)
        wide = [a for a in self.axes if self.schedule.tile(a) > 1]
        rows = not wide or wide[-1] is self.axes[-1]  # whether tiles are stored as vectors
        store = INSTRUCTIONS["add"] if rows else SCALAR_LOAD * self.schedule.lanes
        self.work.instructions += trips * self._vectors(term, frozenset(self.axes), last) * store

    def _vectors(self, term: Term, axes: frozenset[Axis], level: Level) -> float:
        """How many vector registers a tile value of these axes fills."""
        shape = level.shape(axes)
        if not shape:
            return 1.0
        lanes = self.target.lanes(max(8, term.dtype.bits))
        return prod(level.tiles[a] for a in shape[:-1]) * -(-level.tiles[shape[-1]] // lanes)

    def node(self, term: Term, args: dict[Term, Any], level: Level) -> None:
        if term.op == "load":
            self._load(term, level)
            return
        price = INSTRUCTIONS[term.op]
        if term.op == "mod" and term.args[1].op == "const":
            price = 4.0
        price *= 4.0 if term.dtype.name == "bfloat16" else 1.0
        self._count(level, self._vectors(term, term.axes, level) * price)

    def _count(self, level: Level, instructions: float) -> None:
        self.work.instructions += level.data["trips"] * instructions

    def _load(self, term: Term, level: Level) -> None:
        _, index, shape = term.attr
        key = (term.attr[0], index)
        spans = [self._span(e, n) for e, n in zip(index, shape, strict=True)]
        span = prod(spans) * term.dtype.bytes
        name = term.attr[0]
        if not name.startswith("%"):  # no local buffer
            if name in self.work.touched and span > self.target.near:  # it has not stayed
                self.work.again += span * self.programs
            elif key not in self.work.seen:
                self.work.fetched += span * self.programs
            self.work.seen.add(key)
            bytes_ = _reached(term) * term.dtype.bytes
            self.work.touched[name] = max(self.work.touched.get(name, 0.0), bytes_)
        wide = level.shape(term.axes)
        if not wide:
            price = BROADCAST_LOAD
        else:
            rows = prod(level.tiles[a] for a in wide[:-1])
            last = wide[-1]
            ok = level.contiguous(index, last)
            price = rows * (
                VECTOR_LOAD * -(-level.tiles[last] // self.target.lanes(max(8, term.dtype.bits)))
                if ok
                else SCALAR_LOAD * level.tiles[last]
            )
            if not ok and index and level.tiles[last] * shape[-1] > 4096:
                price *= 2.0  # each element in a cache line, often a page, of its own
        self._count(level, price)

    def _span(self, expr: Expr, size: int) -> int:
        """How many places along a buffer's dimension one program reads."""
        if expr.data:  # anywhere: as many as there are indices
            return max(1, min(size, prod(self._length(a) for a in expr.axes)))
        total = 1
        for atom, c in expr.parts:
            if isinstance(atom, Axis):
                length = self._length(atom)
            else:
                assert isinstance(atom, Quotient)
                length = -(-self._span(atom.expr, 1 << 62) // atom.divisor)
            total += abs(c) * (length - 1)
        return max(1, min(size, total))

    def _length(self, axis: Axis) -> int:
        """How many places of an axis one program passes through."""
        if axis in self.outer:
            return 1
        return self.schedule.block(axis) if axis in self.axes else axis.size

    def reduce(self, term: Term, level: Level) -> None:
        axis: Axis = term.attr
        tile = self.reduction_tile(term, level)
        inner = level.inner(axis, tile, tile)
        inner.data["trips"] = level.data["trips"] * -(-axis.size // tile)
        body = term.args[0]
        self.value(body, inner)
        fused = term.op == "sum" and body.op == "mul" and body.dtype.is_float
        price = 0.2 if fused else INSTRUCTIONS[term.op]
        around = body.axes | {axis}
        vectors = self._vectors(term, around, inner)
        self._count(inner, vectors * price + LOOP)
        needed = vectors + self._operand_registers(inner)
        if needed > self.target.registers and not self.target.is_gpu:
            self._count(inner, (needed - self.target.registers) * SPILL)
        if tile > 1:
            self._count(level, self._vectors(term, term.axes, level) * 8)

    def _operand_registers(self, level: Level) -> float:
        """Registers that the vectors loaded in a loop take beside its accumulators."""
        total = 1.0
        for term in level.memo:
            wide = level.shape(term.axes)
            if term.op == "load" and wide and level.contiguous(term.attr[1], wide[-1]):
                total += self._vectors(term, term.axes, level)
        return total
