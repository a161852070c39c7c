"""Schedules of programs that blocks of threads run, and what their accesses to memory cost.

block_schedules(axes, term, target)    tiles of so many places, over 4 or 8 warps
block_folds(...)                       one loop over blocks of an axis, its state in registers
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import prod

from ..index import Axis, Expr, of_axis
from ..loops import standing
from ..schedule import Schedule, made_schedule, vector_axes
from ..stage import Staged, stage
from ..targets import Target
from ..terms import REDUCTIONS, Term, postorder
from .linear import REGISTER, block_layouts, run, thread_mask
from .matrix import has_instruction, product, products_of

REGISTERS = 640.0  # bytes of local buffers that a thread of a GPU holds, at most
MATRIX = 1 / 16  # what a product on matrix instructions costs of one without
SECTOR = 32.0  # bytes that a GPU's memory moves at least


def block_schedules(
    axes: tuple[Axis, ...], root: Term, target: Target, strict: bool = False
) -> Iterator[Schedule]:
    """The schedules of programs that blocks of threads run: so many places along the vector axis,
    whose neighbours go to neighbouring threads, and so many along the others."""
    for found in dict.fromkeys(_all(axes, root, target, strict)):
        yield replace(found, reassociate=not strict)


def _all(axes: tuple[Axis, ...], root: Term, target: Target, strict: bool) -> Iterator[Schedule]:
    widest = max([root.dtype.bits, *(t.dtype.bits for t in root.loads)])
    lanes, folds = min(8, 128 // widest), [t for t in postorder([root]) if t.op in REDUCTIONS]
    if not strict and len(axes) > 1 and any(has_instruction(t, target) for t in folds):
        yield from _matrix_schedules(axes, folds, target)
    for warps in (4, 8):
        threads = warps * target.warp
        for vector in [*vector_axes(axes, root), None]:
            apart = vector is not None and any(vector not in t.axes for t in folds)
            longs = (lanes * threads, lanes * target.warp, 16 * lanes) if vector else (1,)
            for long in dict.fromkeys(min(n, _power(vector.size)) if vector else 1 for n in longs):
                for rows in (1, warps, 64, max(1, threads * lanes // max(1, long))):
                    tiles = _filled(axes, vector, rows)
                    if vector is not None:
                        tiles[vector] = max(1, min(long, vector.size))
                    if prod(map(_power, tiles.values())) > 64 * threads:
                        continue
                    blocks = tiles | ({vector: vector.size} if apart and vector else {})
                    found = made_schedule(vector, tiles, blocks, axes, lanes)
                    yield replace(found, warps=warps)


def _filled(axes: tuple[Axis, ...], vector: Axis | None, rows: int) -> dict[Axis, int]:
    """Tiles of so many places in all, the last axes first, without the vector axis."""
    tiles = dict.fromkeys(axes, 1)
    for a in (a for a in axes[::-1] if a is not vector):
        tiles[a] = max(1, min(rows, _power(a.size), a.size))
        rows //= _power(tiles[a])
    return tiles


def _matrix_schedules(
    axes: tuple[Axis, ...], folds: list[Term], target: Target
) -> Iterator[Schedule]:
    """Tiles of rows by columns, for products that matrix instructions compute."""
    columns = axes[-1]
    size = min(x.dtype.bytes for t in folds for x in t.loads)
    for rows in (a for a in axes[:-1] if a.size > 1):
        for long, wide, warps in (
            (128, 128, 8),
            (128, 64, 4),
            (64, 128, 4),
            (64, 64, 4),
            (16, 64, 2),
        ):
            tiles = {a: 1 for a in axes}
            tiles |= {rows: min(rows.size, long), columns: min(columns.size, wide)}
            wide = frozenset(a for a in axes if tiles[a] > 1)
            if not any(product(t, wide, columns, target) for t in folds):
                continue
            found = made_schedule(columns, tiles, tiles, (), 16 // size)
            for stages in (3, 0) if target.matrix == "mma" else (2, 0):
                yield replace(found, warps=warps, matrix=True, depth=128 // size, stages=stages)


def block_folds(
    axes: tuple[Axis, ...],
    rows: frozenset[Axis],
    along: Axis,
    heavy: bool,
    target: Target,
    term: Term,
) -> Iterator[Schedule]:
    """The schedules of one loop for all folds of a term over an axis, run by blocks of threads."""
    sums = [t for t in postorder([term]) if t.op in ("sum", "roll")]
    shared = [a for a in axes if a in rows and a.size > 1][-1:]
    if any(has_instruction(t, target) for t in sums):
        choices = [(128, 64, 8, 1), (64, 64, 4, 1), (16, 64, 1, 1)]
        choices += [(128, 16, 4, 0), (32, 16, 1, 0)]
    elif heavy:
        choices = [(128, 16, 4, 0), (32, 16, 1, 0)]
    else:
        choices = [(4, 16 * target.warp, 4, 0), (1, 32 * target.warp, 8, 0), (1, 1 << 13, 8, 0)]
    for block, fold, warps, stages in choices:
        matrix = stages > 0
        blocks = {a: 1 if a in rows else a.size for a in axes}
        blocks |= {a: min(a.size, block) for a in shared}
        found = made_schedule(
            None, dict.fromkeys(axes, 1), blocks, (), 4, min(fold, _power(along.size))
        )
        if heavy and not matrix:  # rows have all threads
            found = replace(found, vector=shared[0].name if shared else None, lanes=1)
        found = replace(found, warps=warps, matrix=matrix, stages=stages, depth=1024 * matrix)
        if not matrix or _multiplies(term, axes, found, target):
            yield found


def _multiplies(term: Term, axes: tuple[Axis, ...], schedule: Schedule, target: Target) -> bool:
    """Whether a kernel of folds has products for matrix instructions."""
    phases = staging(term, axes, schedule).phases
    steps = [step for phase in phases for step in phase.steps]
    return bool(products_of(steps, {a.name: a.size for s in steps for a in s.axes}, target))


def staging(term: Term, axes: tuple[Axis, ...], schedule: Schedule) -> Staged:
    """The steps of a kernel of folds; each is one tile, which threads hold in registers."""
    return stage(term, axes, schedule, lambda a, _: whole_tile(schedule, a), packs=False)


def whole_tile(schedule: Schedule, axes: tuple[Axis, ...]) -> Schedule:
    """The schedule of one step of a kernel's: all of it at once."""
    whole = tuple((a.name, a.size) for a in axes)
    return replace(schedule, tiles=whole, blocks=whole, order=(), fold=0)


def _power(size: int) -> int:
    """The least power of two that is no less."""
    return 1 << max(0, size - 1).bit_length()


def moved(
    touched: dict[str, float],
    term: Term,
    axes: tuple[Axis, ...],
    schedule: Schedule,
    target: Target,
) -> list[float]:
    """How many bytes of each buffer memory moves for those that a kernel touches."""
    apart = _scattered(term, axes, schedule, target) if target.is_gpu else {}
    return [size * apart.get(name, 1.0) for name, size in touched.items()]


def _scattered(
    term: Term, axes: tuple[Axis, ...], schedule: Schedule, target: Target
) -> dict[str, float]:
    """How many times the bytes of each buffer a GPU moves, as memory answers in sectors; of what is
    stored by the name ""."""
    if schedule.matrix or schedule.fold:
        return {}
    threads, warp = schedule.warps * target.warp, target.warp.bit_length() - 1
    sizes = {a.name: schedule.tile(a) for a in axes}
    near = [a.name for a in axes if a.name == schedule.vector]
    layouts = block_layouts(sizes, near, schedule.lanes, threads)
    found = dict[str, float]()

    def times(last: Expr, used: frozenset[Axis], size: int) -> float:
        along = next((a for a in last.own_axes if last.coefficient(a) == 1), None)
        if along is None:
            return 1.0
        if along in axes:
            bits = layouts[along.name]
            lanes = [b for b in range(warp) if b in bits]
        else:  # summed over, by the threads that are left
            taken = thread_mask([layouts[a.name] for a in used if a in axes])
            lanes, bits = [b for b in range(warp) if not taken >> b & 1], (REGISTER, REGISTER)
        beside = run(bits) << sum(b == n for n, b in enumerate(lanes))
        return max(1.0, SECTOR / (beside * size))

    for around, t in standing(term):
        if t.op == "load" and t.attr[1]:
            used = around[-1].axes if around else frozenset(axes)
            factor = times(t.attr[1][-1], used, t.dtype.bytes)
            found[t.attr[0]] = max(factor, found.get(t.attr[0], 1.0))
    return found | {"": times(of_axis(axes[-1]), frozenset(axes), 4) if axes else 1.0}


def matrix_share(schedule: Schedule, around: tuple[Term, ...], target: Target) -> float:
    """What instructions inside reductions cost, of what they would without matrix instructions."""
    matrix = schedule.matrix and around and has_instruction(around[-1], target)
    return MATRIX if matrix else 1.0


def held_bytes(schedule: Schedule, target: Target) -> float:
    """How much the threads of a block may hold from step to step."""
    return REGISTERS * schedule.warps * target.warp
