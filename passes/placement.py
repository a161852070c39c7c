"""Where each part of a kernel is computed: at the outermost loop that binds all of its axes.

`cost` counts instructions there and `tile` emits them: the model sees the very loops that will run.

    for d0-tile (grid)                mean = sum(r0, x[d0, r0]) * (1/n)       depends on d0 alone:
      for r0: ...                     before the loop over d1
      for d1-tile (serial): store x[d0, d1] - mean
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from .blocks.linear import Bits, spots
from .index import Axis, Expr, of_axis, substitute
from .loops import goes_on, paired
from .schedule import Schedule
from .terms import Term


@dataclass(eq=False)
class Level:
    """A loop level: the axes bound by it and its parents, with their tiles; values made in it.

    A sum inside a sum may have an axis of the same name: then `own` hides the one outside.
    """

    parent: Level | None
    tiles: dict[Axis, int]
    rank: dict[Axis, int]  # the order of a tile value's dimensions
    steps: dict[Axis, int]  # an axis's tile starts at a multiple of this
    memo: dict[Term, Any] = field(default_factory=dict)
    shapes: dict[frozenset[Axis], tuple[Axis, ...]] = field(default_factory=dict)
    data: dict[str, Any] = field(default_factory=dict)  # what a walker keeps: origins, counts
    own: Axis | None = None  # the axis of the loop that leads from the parent to here
    bits: dict[Axis, Bits] = field(default_factory=dict)  # of axes along which threads share a tile
    ragged: frozenset[Axis] = frozenset()  # axes of whose tile some places may lie past the end

    def home(self, axes: frozenset[Axis]) -> Level:
        """The outermost level that binds all of `axes`."""
        level = self
        while level.own not in axes and level.parent and axes <= level.parent.tiles.keys():
            level = level.parent
        return level

    def shape(self, axes: frozenset[Axis]) -> tuple[Axis, ...]:
        """The dimensions of a tile value with these axes, the vector axis last.

        Axes with a tile of 1 are no dimension.
        """
        if axes not in self.shapes:
            wide = [a for a in self.tiles if a in axes and self.tiles[a] > 1]
            self.shapes[axes] = tuple(sorted(wide, key=self.rank.__getitem__))
        return self.shapes[axes]

    def inner(self, axis: Axis, tile: int, step: int) -> Level:
        """The level of a loop inside this one, over tiles that start at multiples of `step`."""
        rank = {**self.rank, axis: self.rank.get(axis, 500 + len(self.tiles))}
        tiles, steps = {**self.tiles, axis: tile}, {**self.steps, axis: step}
        bits, ragged = {**self.bits}, self.ragged
        return Level(self, tiles, rank, steps, own=axis, bits=bits, ragged=ragged)

    def spot(self, axis: Axis, n: int) -> int:
        """The n-th place of a tile along an axis, from its origin."""
        return spots(self.bits[axis])[n] if axis in self.bits else n

    def contiguous(self, index: tuple[Expr, ...], axis: Axis) -> bool:
        """Whether the elements of a tile along `axis` are neighbours in the buffer."""
        return contiguous_along(index, axis, self.steps.get(axis, 1))

    def line(self, index: tuple[Expr, ...], dims: tuple[Axis, ...]) -> Axis | None:
        """The dimension of a tile along which it is stored to neighbours: its last, or one of whose
        rows squares are turned in registers."""
        for axis in reversed(dims):
            size = self.tiles[axis]
            turns = not size & (size - 1) and self.tiles[dims[-1]] % size == 0
            if self.contiguous(index, axis) and (axis == dims[-1] or turns):
                return axis
        return None

    def row(self, load: Term) -> Axis | None:
        """The dimension of a load's tile along which it loads neighbours, none outside the buffer:
        its last, or one as long, of which its last is made in registers."""
        dims = self.shape(load.axes)
        axis = None if load.outside else self.line(load.attr[1], dims)
        return axis if axis and self.tiles[axis] == self.tiles[dims[-1]] else None

    def pairs(self, fold: Term, schedule: Schedule) -> bool:
        """Whether the loop of a reduction, in which this is, adds up products two by two."""
        wide = self.shape(fold.axes)
        along = bool(wide) and wide[-1].name == schedule.vector
        return along and schedule.pairs and self.tiles[fold.attr] == 2 and paired(fold)


def top_level(schedule: Schedule, axes: tuple[Axis, ...], outer: tuple[Axis, ...] = ()) -> Level:
    """The level around the serial loops: the grid, inside `outer` axes that are at one place."""
    rank = {a: 1000 if a.name == schedule.vector else i for i, a in enumerate(axes)}
    first = [a for a in axes if a.name not in schedule.order]
    tiles = {**dict.fromkeys(outer, 1), **{a: schedule.tile(a) for a in first}}
    return Level(None, tiles, rank, {a: tile_step(schedule, a) for a in first})


def tile_step(schedule: Schedule, axis: Axis) -> int:
    """The number that every tile's start is a multiple of: the tile, if it divides everything."""
    tile, block = schedule.tile(axis), schedule.block(axis)
    return tile if axis.size % tile == 0 and block % tile == 0 else 1


@cache
def contiguous_along(index: tuple[Expr, ...], axis: Axis, step: int = 1) -> bool:
    """Whether neighbours along `axis` are neighbours in a buffer, among `step` aligned ones."""
    if not index:
        return False
    if step > 1:  # the axis is step * outer + inner; quotients by the step then depend on outer
        outer, inner = Axis(f"{axis.name}/", -(-axis.size // step)), Axis(axis.name, step)
        place = of_axis(outer) * step + of_axis(inner)
        index, axis = tuple(substitute(e, {axis: place}) for e in index), inner
    if index[-1].coefficient(axis) != 1:
        return False
    return all(expr.coefficient(axis) == 0 for expr in index[:-1])


def reduction_tile(term: Term, level: Level, schedule: Schedule) -> int:
    """A reduction is vectorised along its own axis unless its body is a vector already; then it may
    take pairs."""
    body = term.args[0]
    if not schedule.reassociate or body.folds:
        return 1  # a fold inside is vectorised along its axis
    lanes = schedule.lanes
    own = {a: tile for a, tile in level.tiles.items() if a in body.axes}
    if any(a.name == schedule.vector or tile >= lanes > 1 for a, tile in own.items()):
        wide = any(a.name == schedule.vector and tile > 1 for a, tile in own.items())
        return 2 if wide and schedule.pairs and paired(term) else 1
    while lanes > 1 and lanes > term.attr.size:
        lanes //= 2
    return lanes


def carries_on(fold: Term, root: Term, level: Level, schedule: Schedule) -> bool:
    """Whether the reduction inside another, in whose loop `level` is, adds to its accumulators."""
    body = fold.args[0]
    joined = schedule.reassociate and goes_on(fold, root)
    return joined and reduction_tile(body, level, schedule) == 1


@contextmanager
def deep_recursion(limit: int = 200_000) -> Iterator[None]:
    """Fused terms can be deeper than Python's default limit; pure Python calls can be that deep."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(max(before, limit))
    try:
        yield
    finally:
        sys.setrecursionlimit(before)
