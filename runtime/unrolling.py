"""What a plain schedule's code is like: the vectors that live at once, and what it unrolls to.

In: a kernel's plain term and axes, a schedule, a target. Out: counts for one tile of the results,
from the levels that the emitted code has (`passes.placement`).

    code = unrolled(term, axes, schedule, find_target("cpu"))
    code.vectors, code.instructions          # 12.0, 70.0
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..passes import terms
from ..passes.cost import INSTRUCTIONS
from ..passes.index import Axis
from ..passes.loops import Around, joint, standing
from ..passes.placement import Level, reduction_tile, tile_step, top_level
from ..passes.schedule import Schedule
from ..passes.stage import kept_in
from ..passes.targets import Target
from ..passes.terms import REDUCTIONS, Term


@dataclass(frozen=True)
class Unrolled:
    """The code of one tile."""

    accumulators: float  # vectors, of the loop that has most of them
    tile: float  # vectors of the largest result
    instructions: float  # more or less
    own: int  # the longest tile of a reduction along its own axis

    @property
    def vectors(self) -> float:
        """The vectors that live at once."""
        return max(self.accumulators, self.tile)


class Levels(dict[Around, Level]):
    """The level inside a reduction's loop, by the reductions around; `()` is inside the serial
    loops and around all reductions."""

    def __init__(self, schedule: Schedule, axes: tuple[Axis, ...]):
        level = top_level(schedule, axes)
        for axis in (next(a for a in axes if a.name == name) for name in schedule.order):
            level = level.inner(axis, schedule.tile(axis), tile_step(schedule, axis))
        super().__init__({(): level})
        self.schedule = schedule

    def __missing__(self, around: Around) -> Level:
        fold = around[-1]
        home = self[around[:-1]].home(fold.axes)
        tile = reduction_tile(fold, home, self.schedule)
        made = self[around] = home.inner(fold.attr, tile, tile)
        return made


def unrolled(term: Term, axes: tuple[Axis, ...], schedule: Schedule, target: Target) -> Unrolled:
    """What a plain schedule makes of a term without rolling sums."""
    levels, together = Levels(schedule, axes), joint(term)
    accumulators: dict[Around, float] = {}
    code, own = 0.0, 1
    places = ((tuple(together[f][0] for f in around), x) for around, x in standing(term))
    for around, x in dict.fromkeys(places):
        times = 1  # the rest of an axis has code of its own
        for n, fold in enumerate(around, 1):
            times *= 2 if fold.attr.size % levels[around[:n]].tiles[fold.attr] else 1
        if x.op not in REDUCTIONS:
            code += times * _instructions(x, levels[around].home(x.axes), target)
            continue
        place = (*around, together[x][0])
        tile = levels[place].tiles[x.attr]
        count = _vectors(kept_in(x).bits, x.args[0].axes | {x.attr}, levels[place], target)
        accumulators[place] = accumulators.get(place, 0.0) + count
        code += times * count * (1 if tile == 1 else 8)
        own = max(own, tile)
    last, every, most = levels[()], frozenset(axes), 0.0
    for result, _ in terms.outcomes(term, len(axes)):
        most = max(most, _vectors(result.dtype.bits, every, last, target))
        code += _moved(result.dtype.bits, every, last, target, stores_along(last, axes))
    return Unrolled(max(accumulators.values(), default=0.0), most, code, own)


def stores_along(level: Level, axes: tuple[Axis, ...]) -> bool:
    """Whether a tile of the results is stored by vectors."""
    wide = level.shape(frozenset(axes))
    return not wide or wide[-1] is axes[-1]


def _instructions(x: Term, level: Level, target: Target) -> float:
    """Instructions that make one tile of a part of the term."""
    if x.op in ("const", "results"):
        return 0.0
    if x.op == "load":
        wide = level.shape(x.axes)
        along = bool(wide) and level.row(x) is not None
        return _moved(x.dtype.bits, x.axes, level, target, along) * (2 if x.children else 1)
    if x.op == "table":
        return 2 * _moved(x.dtype.bits, x.axes, level, target, False)
    bits = 64 if x.op in ("index", "nonneg") else max(t.dtype.bits for t in (x, *x.args))
    price = max(1.0, INSTRUCTIONS[x.op]) * (4.0 if x.dtype.name == "bfloat16" else 1.0)
    return price * _vectors(bits, x.axes, level, target)


def _vectors(bits: int, axes: frozenset[Axis], level: Level, target: Target) -> float:
    """The registers of a tile value with these axes; 16-bit floats compute in float32."""
    shape = level.shape(axes)
    if not shape:
        return 1.0
    lanes = target.lanes(32 if bits == 16 else max(8, bits))
    rows = math.prod(level.tiles[a] for a in shape[:-1])
    return float(rows * -(-level.tiles[shape[-1]] // lanes))


def _moved(bits: int, axes: frozenset[Axis], level: Level, target: Target, along: bool) -> float:
    """Instructions that load or store a tile: by vectors, or element by element."""
    if along:
        return _vectors(bits, axes, level, target)
    return 3.0 * math.prod(level.tiles[a] for a in level.shape(axes))
