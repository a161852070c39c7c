"""Schedules: how a kernel's loops run. A frozen record; its fields are the search space.

The output axes of a kernel are cut twice. A program of the grid computes a *block*; inside it,
serial loops step over *tiles*, and a tile is one vector value. Sizes need not divide: the last
tile or block is moved back to end at the edge, and computes some elements a second time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from .index import Axis
from .targets import Target
from .terms import REDUCTIONS, Term, postorder


@dataclass(frozen=True)
class Schedule:
    """For each output axis its tile and block; the order of the serial loops; the vector width."""

    vector: str | None  # the output axis along which tile values are vectors, if any
    tiles: tuple[tuple[str, int], ...]
    blocks: tuple[tuple[str, int], ...]
    order: tuple[str, ...]  # serial loops, outermost first
    lanes: int  # elements of a vector; the tile of a reduction that is vectorised
    reassociate: bool = True  # whether a reduction may add up in another order than the index's

    def tile(self, axis: Axis) -> int:
        return dict(self.tiles).get(axis.name, 1)

    def block(self, axis: Axis) -> int:
        return dict(self.blocks).get(axis.name, 1)

    def programs(self, axes: tuple[Axis, ...]) -> int:
        """The size of the grid."""
        total = 1
        for axis in axes:
            total *= -(-axis.size // self.block(axis)) if axis.size else 0
        return total

    def __str__(self) -> str:
        cut = ", ".join(
            f"{name} {self_tile}/{block}"
            for (name, self_tile), (_, block) in zip(self.tiles, self.blocks, strict=True)
        )
        return f"tile/block {cut}; loops {' '.join(self.order) or '-'}; vector {self.vector}"


def schedules(
    axes: tuple[Axis, ...], root: Term, target: Target, strict: bool = False
) -> Iterator[Schedule]:
    """The schedules that are worth looking at, generated from the kernel's shape."""
    for found in dict.fromkeys(_all(axes, root, target)):
        yield replace(found, reassociate=not strict)


def _all(axes: tuple[Axis, ...], root: Term, target: Target) -> Iterator[Schedule]:
    inside = [t for t in postorder([root]) if t.op in REDUCTIONS]
    lanes = target.lanes(max(8, root.dtype.bits))
    if target.is_gpu:
        yield _scheduled(axes, inside, None, {}, 1, 1)
        for axis in axes:
            if axis.size > 1 and any(axis not in t.axes for t in inside):
                yield _scheduled(axes, inside, None, {axis: axis.size}, 1, 1)
        return
    shared = [t.args[0].axes for t in inside]
    for vector in [a for a in axes if a.size > 1] + [None]:
        wide = [1, 2] if vector and any(vector in s for s in shared) else [1]
        for registers in wide:
            for rows in (1, 4, 6) if shared else (1,):
                for blocks in _block_choices(axes, vector, inside):
                    yield _scheduled(
                        axes, inside, vector, blocks, lanes, rows, registers * lanes, target.units
                    )


def _block_choices(
    axes: tuple[Axis, ...], vector: Axis | None, inside: list[Term]
) -> list[dict[Axis, int]]:
    """Axes that a program walks through whole, because some reduction does not depend on them."""
    whole = {a: a.size for a in axes if any(a not in t.axes for t in inside) and a is vector}
    return [whole, {}] if whole else [{}]


def _scheduled(
    axes: tuple[Axis, ...],
    inside: list[Term],
    vector: Axis | None,
    blocks: dict[Axis, int],
    lanes: int,
    rows: int,
    width: int = 1,
    units: int = 1,
) -> Schedule:
    """Fill in a schedule: the row tile goes to the last other axis that shares loads."""
    tiles = {a: 1 for a in axes}
    if vector is not None:
        tiles[vector] = min(vector.size, width)
    others = [a for a in axes if a is not vector and a.size > 1]
    if rows > 1 and others:
        tiles[others[-1]] = min(others[-1].size, rows)
        if vector is None and len(others) > 1:
            tiles[others[-2]] = min(others[-2].size, 2)
    cut = {a: max(tiles[a], blocks.get(a, tiles[a])) for a in axes}
    if lanes > 1:
        _grow_blocks(axes, tiles, cut, vector, units)
    serial = [a for a in axes if cut[a] > tiles[a]]
    hoisted = vector is not None and any(vector not in t.axes for t in inside)
    serial.sort(key=lambda a: (a is vector) == hoisted)
    return Schedule(
        vector.name if vector else None,
        tuple((a.name, tiles[a]) for a in axes),
        tuple((a.name, cut[a]) for a in axes),
        tuple(a.name for a in serial),
        lanes,
    )


def _grow_blocks(
    axes: tuple[Axis, ...], tiles: dict[Axis, int], cut: dict[Axis, int], vector: Axis | None, units: int
) -> None:
    """Give each program more tiles, innermost axes first, while every unit keeps a few programs."""
    programs = 1
    for a in axes:
        programs *= -(-a.size // cut[a]) if a.size else 0
    enough = 8 * units
    order = sorted(axes[::-1], key=lambda a: a is not vector)
    for a in order:
        while programs > enough and cut[a] < a.size:
            before = -(-a.size // cut[a])
            grown = min(a.size, cut[a] * 2)
            after = -(-a.size // grown)
            if programs // before * after < enough // 2:
                break
            cut[a] = grown
            programs = programs // before * after
