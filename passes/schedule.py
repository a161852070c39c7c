"""Schedules: how a kernel's loops run. A frozen record; its fields are the search space.

The output axes of a kernel are cut twice. A program of the grid computes a *block*; inside it,
serial loops step over *tiles*, and a tile is one vector value. Sizes need not divide: the last
tile or block is moved back to end at the edge, and computes some elements a second time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from math import prod

from .index import Axis
from .loops import joint, paired
from .targets import Target
from .terms import REDUCTIONS, Term, postorder

LONG = 1024  # places of an axis, of which a block has no more before it grows along others


@dataclass(frozen=True)
class Schedule:
    """For each output axis its tile and block; the order of the serial loops; the vector width."""

    vector: str | None  # the output axis along which tile values are vectors, if any
    tiles: tuple[tuple[str, int], ...]
    blocks: tuple[tuple[str, int], ...]
    order: tuple[str, ...]  # serial loops, outermost first
    lanes: int  # elements of a vector; the tile of a reduction that is vectorised
    reassociate: bool = True  # whether a reduction may add up in another order than the index's
    fold: int = 0  # if not 0, one loop over blocks of so many places runs all folds (see `stage`)
    pairs: bool = False  # whether sums of products of bytes add up two at once
    warps: int = 0  # of the block of threads that runs a program on a GPU
    matrix: bool = False  # whether products run on matrix instructions
    depth: int = 0  # places of their summed axis that a turn takes
    stages: int = 0  # how many turns are in shared memory, or on their way; 0: none

    @property
    def names(self) -> tuple[str, ...]:
        """The axes; of the kernel's, any other is one with the next (see `collapse`)."""
        return tuple(name for name, _ in self.tiles)

    def tile(self, axis: Axis) -> int:
        return next((n for name, n in self.tiles if name == axis.name), 1)

    def block(self, axis: Axis) -> int:
        return next((n for name, n in self.blocks if name == axis.name), 1)

    def programs(self, axes: tuple[Axis, ...]) -> int:
        """The size of the grid."""
        return prod(-(-axis.size // self.block(axis)) for axis in axes)


def schedules(
    axes: tuple[Axis, ...], root: Term, target: Target, strict: bool = False, inside: bool = False
) -> Iterator[Schedule]:
    """The schedules that are worth looking at, generated from the kernel's shape; `inside` a
    program, of a step whose loops run over all of its axes."""
    pairs = target.pairs and any(t.op == "sum" and paired(t) for t in postorder([root]))
    for found in dict.fromkeys(_all(axes, root, target, 1 if inside else 4 * target.units)):
        own = strict or pairs
        yield replace(found, reassociate=not strict, pairs=pairs) if own else found


def fold_schedules(
    axes: tuple[Axis, ...], rows: frozenset[Axis], along: Axis, heavy: bool, target: Target
) -> Iterator[Schedule]:
    """The schedules of one loop that runs all folds of a kernel along an axis.

    `rows` are the axes that the scores of its blocks depend on; a kernel is `heavy` if these have
    sums inside, or weights of other axes. The last of the rows is cut into blocks, which share what
    a turn loads, and the axes that are no rows are whole, so that no block is computed twice.
    """
    shared = [a for a in axes if a in rows and a.size > 1][-1:]
    choices = ((1, 256), (1, 1024), (64, 256))
    if heavy:
        choices = ((32, 64), (64, 64), (64, 128), (128, 128), (1, 256))
    whole = int(target.near / 32) // max(1, along.size)  # rows of the whole axis that stay near
    choices = (*choices, (1 << (whole.bit_length() - 1), along.size)) if whole else choices
    for block, fold in choices:
        blocks = {a: 1 if a in rows else a.size for a in axes}
        others = prod(a.size for a in axes if a in rows and a not in shared)
        for a in shared:  # as many blocks as units, or a multiple, all of a size
            count = -(-a.size // block)
            if others * count % target.units:
                count = min(a.size, count + 1)
            blocks[a] = -(-a.size // count)
        yield made_schedule(None, dict.fromkeys(axes, 1), blocks, (), target.lanes(32), fold)


def scatter_schedules(
    axes: tuple[Axis, ...], targets: frozenset[Axis], target: Target
) -> Iterator[Schedule]:
    """A loop that adds to a kernel's buffer: no two programs share an element of it."""
    others = [a for a in axes if a not in targets and a.size % target.units == 0]
    for shared in (others[-1:], []):
        blocks = {a: a.size // target.units if a in shared else a.size for a in axes}
        yield made_schedule(None, dict.fromkeys(axes, 1), blocks, (), target.lanes(32), 1)


def made_schedule(
    vector: Axis | None,
    tiles: dict[Axis, int],
    blocks: dict[Axis, int],
    order: Iterable[Axis],
    lanes: int,
    fold: int = 0,
) -> Schedule:
    """A schedule; serial are the loops in this order that have more than one tile."""
    return Schedule(
        vector.name if vector else None,
        tuple((a.name, n) for a, n in tiles.items()),
        tuple((a.name, n) for a, n in blocks.items()),
        tuple(a.name for a in order if blocks[a] > tiles[a]),
        lanes,
        fold=fold,
    )


def lanes_for(root: Term, target: Target) -> int:
    """Elements of a vector: of what the reductions add up, or of the result if there are none."""
    summed = [t.args[0].dtype.bits for t in postorder([root]) if t.op in REDUCTIONS]
    return target.lanes(max(summed, default=root.dtype.bits))


def _all(axes: tuple[Axis, ...], root: Term, target: Target, programs: int) -> Iterator[Schedule]:
    inside = [t for t in postorder([root]) if t.op in REDUCTIONS]
    lanes = lanes_for(root, target)
    shared = [t.args[0].axes for t in inside]
    together = max(map(len, joint(root).values()), default=1)
    constants = sum(t.op == "const" for t in postorder([root]))
    for vector in [*vector_axes(axes, root), None]:
        wide = [1, 2] if vector and any(vector in s for s in shared) else [1]
        most = max((a.size for a in axes if a is not vector), default=1)  # rows
        wide += [4, 8] if vector and len(wide) > 1 and most < 4 <= vector.size // lanes else []
        # numbers that do not stay in registers are loaded for more elements at once
        wide += [4] if vector and not inside and constants > target.registers // 2 else []
        # a program walks through the whole vector axis where some reduction does not depend on it
        apart = [vector] if vector and any(vector not in t.axes for t in inside) else []
        choices = [*({a: a.size} for a in apart), {}]
        for registers in wide:
            for rows in _row_choices(shared, registers, together, target):
                for blocks in choices:
                    width = registers * lanes
                    yield _scheduled(axes, inside, vector, blocks, lanes, rows, width, programs)
            whole = {a: a.size for a in axes}
            yield _scheduled(axes, inside, vector, whole, lanes, 1, registers * lanes)
        for across in _across(axes, root, vector) if vector and not inside else ():
            if vector and min(vector.size, across.size) >= lanes:
                yield _turning(axes, vector, across, lanes, programs)


def _across(axes: tuple[Axis, ...], root: Term, vector: Axis) -> list[Axis]:
    """Other axes along which what is loaded for a vector lies contiguous."""
    loads = [t for t in root.loads if vector in t.axes]
    last = [e for t in loads for e in t.attr[1][-1:] if not e.coefficient(vector)]
    return [a for a in axes if a is not vector and any(e.coefficient(a) == 1 for e in last)]


def _turning(
    axes: tuple[Axis, ...], vector: Axis, across: Axis, lanes: int, programs: int
) -> Schedule:
    """Squares of elements that are turned in registers, in blocks of whole cache lines."""
    pair = (across, vector)
    tiles = {a: lanes if a in pair else 1 for a in axes}
    blocks = {a: min(a.size, 8 * lanes) if a in pair else 1 for a in axes}
    if programs == 1:
        blocks = {a: a.size for a in axes}
    order = [*(a for a in axes if a not in pair), *pair]
    return made_schedule(vector, tiles, blocks, order, lanes)


def vector_axes(axes: tuple[Axis, ...], root: Term) -> list[Axis | None]:
    """Axes along which some buffer, or the result, lies contiguous."""
    last = [a for t in root.loads if t.attr[1] for a in t.attr[1][-1].axes]
    return [a for a in axes if a.size > 1 and (a is axes[-1] or a in last)]


def _row_choices(shared: list, registers: int, together: int, target: Target) -> tuple[int, ...]:
    """How many rows of accumulators, for so many reductions: as many as the registers hold."""
    if not shared:
        return (1,)
    most = (target.registers - 4) // (2 * registers * together) * 2
    rows = (1, 4, most) if registers > 1 and most > 4 else (1, 4)
    return rows if together == 1 else (*rows, 2)


def _scheduled(
    axes: tuple[Axis, ...],
    inside: list[Term],
    vector: Axis | None,
    blocks: dict[Axis, int],
    lanes: int,
    rows: int,
    width: int = 1,
    programs: int = 1,
) -> Schedule:
    """Fill in a schedule: the row tile goes to the last other axis that shares a vector's loads."""
    tiles = {a: 1 for a in axes}
    if vector is not None:
        tiles[vector] = min(vector.size, width)
        if tiles[vector] > lanes:  # other lengths than powers of two take LLVM long to handle
            tiles[vector] = 1 << (tiles[vector].bit_length() - 1)
    loads = [t for fold in inside for t in fold.loads if vector in t.axes]
    others = [a for a in axes if a is not vector and a.size > 1]
    others.sort(key=lambda a: any(a not in t.axes for t in loads))  # what shares loads, last
    if rows > 1 and others:
        tiles[others[-1]] = _fitting(others[-1].size, rows)
        if vector is None and len(others) > 1:  # dot products: rows of both operands
            tiles[others[-2]] = min(others[-2].size, 2)
    cut = {a: max(tiles[a], blocks.get(a, tiles[a])) for a in axes}
    # loads are shared along these; any other axis is a batch
    pair = {vector, *others[-1:]} if vector is not None else {*others[-2:]}
    if lanes > 1:  # rows first: what the vector axis indexes stays near while they go by
        key = (lambda a: (a not in pair, a is vector)) if inside else (lambda a: a is not vector)
        for most in (LONG, None):
            _grow_blocks(sorted(axes[::-1], key=key), cut, programs, most)
        for a in axes:
            cut[a] = _even(a.size, cut[a], tiles[a])
    serial = [*axes]
    if vector is not None and any(vector not in t.axes for t in inside):
        serial.sort(key=lambda a: a is vector)  # what does not depend on it comes before its loop
    elif inside:  # the long axis outside: what it indexes stays near while the short ones go by
        serial.sort(key=lambda a: (a in pair, -cut[a]))
    return made_schedule(vector, tiles, cut, serial, lanes)


def _grow_blocks(order: list[Axis], cut: dict[Axis, int], enough: int, most: int | None) -> None:
    """Give each program more tiles, along the first axes first, while there are enough programs and
    blocks are shorter than `most`."""
    programs = prod(-(-a.size // cut[a]) for a in order if a.size)
    for a in order:
        while programs > enough and cut[a] < min(a.size, most or a.size):
            before = -(-a.size // cut[a])
            grown = min(a.size, cut[a] * 2)
            after = -(-a.size // grown)
            if programs // before * after < enough:
                break
            cut[a] = grown
            programs = programs // before * after


def _fitting(size: int, rows: int) -> int:
    """So many rows, or somewhat fewer where the last tile would overlap much."""
    waste = {n: -(-size // n) * n / size for n in range(rows, rows * 3 // 4, -1)}
    return min(size, rows if waste[rows] < 1.05 else min(waste, key=waste.__getitem__))


def _even(size: int, block: int, tile: int) -> int:
    """A block of whole tiles, as large or down to half of it, so that the last overlaps least."""
    count = -(-size // block) if block else 0
    blocks = [-(-size // (n * tile)) * tile for n in range(count, 2 * count + 1) if n]
    return min(blocks, key=lambda b: -(-size // b) * b, default=block) if count > 1 else block
