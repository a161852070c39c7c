"""Memory: pieces of it, where each scratch buffer lies, and which launches wait for earlier ones.

The plan takes a program and gives offsets of the scratch buffers in one arena, by liveness over the
launches, and for each launch whether all launches before it must be finished first.

    >>> layout({0: 64, 1: 64, 2: 64}, [(0,), (0, 1), (1, 2)])
    Layout(offsets={0: 0, 1: 64, 2: 0}, bytes=128)
"""

from __future__ import annotations

import ctypes
import mmap
from bisect import insort
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from .program import Buffer, Kernel, Launch, Program

ALIGNMENT = 64  # bytes: a cache line, and the widest vector register
PAGE = 4096  # bytes
HUGE = 2 << 20  # bytes of a huge page
SPARE = 1  # pieces that a lender keeps while nobody has them
# No bytes are asked for, so that arrays without elements have enough of them.
_start_of: Callable[[Any], ctypes.Array[ctypes.c_char]] = (ctypes.c_char * 0).from_buffer


@dataclass(frozen=True)
class Layout:
    """Offsets of buffers in an arena of some bytes. Buffers live together never overlap."""

    offsets: dict[int, int]
    bytes: int


def address_of(array: np.ndarray) -> int:
    """Where the first element of an array lies.

    The buffer protocol says it in a quarter of the time of numpy's own interface, which is left for
    arrays that ctypes takes no buffer of: read-only or strided ones, and bfloat16.
    """
    try:
        return ctypes.addressof(_start_of(array))
    except (TypeError, ValueError):
        return array.__array_interface__["data"][0]


def aligned(size: int, alignment: int = ALIGNMENT) -> np.ndarray:
    """Uninitialised bytes that start at a multiple of `alignment`.

    Those that fill a huge page start at the edge of one, in huge pages where the system has them:
    kernels then take 2 to 10 % less time.
    """
    large = size >= HUGE
    alignment = HUGE if large else alignment
    raw = np.empty(size + alignment, np.uint8)
    address = address_of(raw)
    skip = -address % alignment
    if large:
        _madvise()(address + skip, size, mmap.MADV_HUGEPAGE)  # a wish: nothing fails without
    return raw[skip : skip + size]


@cache
def _madvise() -> Any:
    function = ctypes.CDLL(None).madvise
    function.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    return function


_Piece = tuple[np.ndarray, dict[str, Any]]  # memory, and its array interface, made once


class Lender:
    """Memory of one size for results: a piece comes back when the last array on it is gone.

    The C library gives a large piece back to the system, which clears each page of the next one:
    12 ms in every call for 64 MB. Any thread may borrow or give back.
    """

    def __init__(self, size: int):
        self._size = size
        self._free: list[_Piece] = []

    def lend(self) -> np.ndarray:
        """Uninitialised bytes that no other array has."""
        try:
            piece = self._free.pop()
        except IndexError:
            memory = aligned(self._size)
            piece = memory, memory.__array_interface__
        return np.asarray(_Loan(piece, self._free))


class _Loan:
    """What arrays on a lent piece have as their base; it ends with the last of them."""

    def __init__(self, piece: _Piece, home: list[_Piece]):
        self._piece, self._home = piece, home
        _, self.__array_interface__ = piece

    def __del__(self) -> None:
        if len(self._home) < SPARE:
            self._home.append(self._piece)


def layout(sizes: Mapping[int, int], uses: Sequence[Sequence[int]]) -> Layout:
    """Place buffers of some bytes, given the buffers that each launch uses, in order.

    A buffer lives from the first launch that uses it to the last. Best fit, largest first: each
    goes into the smallest gap between the buffers already placed that live at the same time.
    """
    lives: dict[int, tuple[int, int]] = {}
    for step, used in enumerate(uses):
        for buffer in used:
            lives[buffer] = (lives.get(buffer, (step, step))[0], step)
    offsets: dict[int, int] = {}
    placed: list[tuple[int, int, int, int]] = []  # (begin, end, first, last), sorted
    for buffer in sorted(lives, key=lambda one: (-sizes.get(one, 0), lives[one], one)):
        if buffer not in sizes:
            continue
        first, last = lives[buffer]
        size = -(-sizes[buffer] // ALIGNMENT) * ALIGNMENT
        near = [(begin, end) for begin, end, f, t in placed if f <= last and t >= first]
        offsets[buffer] = begin = _gap(near, size)
        if size:
            insort(placed, (begin, begin + size, first, last))
    return Layout(offsets, max((end for _, end, _, _ in placed), default=0))


def _gap(taken: list[tuple[int, int]], size: int) -> int:
    """The start of the smallest gap that holds `size` bytes between sorted, taken ranges."""
    best, best_room, free = -1, 0, 0
    for begin, end in taken:
        room = begin - free
        if room >= size and (best < 0 or room < best_room):
            best, best_room = free, room
        free = max(free, end)
    return best if best >= 0 else free


def scratch(program: Program) -> set[int]:
    """The buffers that nobody outside a call sees: they live in the arena."""
    seen = {*program.inputs, *program.outputs, *program.weights.values()}
    return {
        index
        for index, buffer in enumerate(program.buffers)
        if buffer.role in ("scratch", "output") and index not in seen
    }


def plan_memory(program: Program, launches: Sequence[Launch]) -> Layout:
    """Where the scratch buffers of a program lie while the launches run."""
    sizes = {index: program.buffers[index].bytes for index in scratch(program)}
    return layout(sizes, [launch.arguments for launch in launches])


@dataclass(frozen=True)
class _Access:
    """A range of bytes that a launch reads or writes."""

    space: int  # -1 is the arena; any other buffer is a space of its own
    begin: int
    end: int
    writes: bool

    def conflicts(self, earlier: _Access) -> bool:
        return (
            self.space == earlier.space
            and self.begin < earlier.end
            and earlier.begin < self.end
            and (self.writes or earlier.writes)
        )


def waits(
    launches: Sequence[Launch],
    kernels: Mapping[str, Kernel],
    buffers: Sequence[Buffer],
    offsets: Mapping[int, int],
) -> list[bool]:
    """Whether each launch must wait until every launch before it is finished.

    It must when it touches bytes that a launch since the last wait writes, or writes bytes that one
    reads; buffers of the arena may share bytes. Launches with a grid of 1 all run on one thread, in
    order, and need not wait for each other.
    """
    result: list[bool] = []
    alone: list[_Access] = []  # since the last wait, by launches with a grid of 1
    shared: list[_Access] = []  # by all others
    for launch in launches:
        kernel = kernels[launch.kernel]
        now = _accesses(launch, kernel, buffers, offsets) if kernel.grid else []
        earlier = shared + alone if kernel.grid > 1 else shared
        wait = any(new.conflicts(old) for old in earlier for new in now)
        result.append(wait)
        if wait:
            alone, shared = [], []
        (shared if kernel.grid > 1 else alone).extend(now)
    return result


def _accesses(
    launch: Launch, kernel: Kernel, buffers: Sequence[Buffer], offsets: Mapping[int, int]
) -> list[_Access]:
    reads = len(launch.arguments) - kernel.outputs
    found = []
    for position, index in enumerate(launch.arguments):
        space, begin = (-1, offsets[index]) if index in offsets else (index, 0)
        found.append(_Access(space, begin, begin + buffers[index].bytes, position >= reads))
    return found
