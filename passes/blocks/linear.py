"""Layouts: which thread of a block holds which element of a tile, in which register.

A layout is a linear map over GF(2), from the bits of (register, thread) to the bits of a position
along each axis. Along one axis it is written as `Bits`, which say for each bit of the position,
lowest first, where it comes from: a bit of the thread's number, or the next bit of the register's.

    rows  (2, 3, 4, R)       position 8 r + t / 4: the rows of 16 that a fragment of mma.sync has
    runs  (R, R, 0, 1, 2)    four neighbours a thread, in 8 threads: loads of 16 bytes

(Layouts of this kind are Zhou and others', Linear Layouts, 2025.)
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property

REGISTER = R = -1
Bits = tuple[int, ...]
Source = tuple[str, int]  # ("register" | "thread", bit)


@cache
def spots(bits: Bits) -> tuple[int, ...]:
    """The position of each register, from that of the thread's first one."""
    found = (0,)
    for k, source in enumerate(bits):
        found = (*found, *(n | 1 << k for n in found)) if source == REGISTER else found
    return found


def run(bits: Bits) -> int:
    """How many neighbours a thread has from each of its places."""
    first = next((k for k, source in enumerate(bits) if source != REGISTER), len(bits))
    return 1 << first


def filled(bits: Bits, size: int, threads: Sequence[int] = ()) -> Bits:
    """Bits with more on top, for `size` positions: registers, and above them these threads."""
    missing = max(0, (size - 1).bit_length() - len(bits))
    threads = threads[: max(0, missing)]
    return (*bits, *(R,) * (missing - len(threads)), *threads)


def thread_mask(layouts: Sequence[Bits]) -> int:
    """The bits of a thread's number that these layouts use."""
    return sum({1 << source for bits in layouts for source in bits if source != REGISTER})


def block_layouts(
    sizes: Mapping[str, int], near: Collection[str], lanes: int, threads: int
) -> dict[str, Bits]:
    """How axes of so many places lie in the threads of a block.

    Those that are `near` get runs of `lanes` neighbours and the lowest bits of a thread's number,
    the others the highest, the last axis first. What is left of an axis lies in registers.
    """
    found, missing = dict[str, Bits](), {name: (n - 1).bit_length() for name, n in sizes.items()}
    free = list(range(threads.bit_length() - 1))
    for name in near:
        registers = min(missing[name], lanes.bit_length() - 1)
        taken = free[: missing[name] - registers]
        left = missing[name] - registers - len(taken)
        found[name] = (*(REGISTER,) * registers, *taken, *(REGISTER,) * left)
    free = free[thread_mask(list(found.values())).bit_length() :]
    for name in reversed([name for name in sizes if name not in near]):
        taken = [free.pop() for _ in range(min(missing[name], len(free)))][::-1]
        found[name] = (*(REGISTER,) * (missing[name] - len(taken)), *taken)
    return found


@dataclass(frozen=True)
class Layout:
    """Where (register, thread) lies in a tile: `columns` has for each bit of them the position that
    it alone has, by axis. Bits of several axes may come from one source, and a bit of a position
    from several, as in a swizzle."""

    axes: tuple[str, ...]
    columns: Mapping[Source, tuple[int, ...]]

    @staticmethod
    def of(bits: Mapping[str, Bits]) -> Layout:
        """The layout whose axes have these bits; registers are numbered axis by axis, the first
        axis slowest."""
        columns: dict[Source, tuple[int, ...]] = {}
        axes, register = tuple(bits), 0
        for axis in reversed(axes):
            for k, source in enumerate(bits[axis]):
                key = ("register", register) if source == R else ("thread", source)
                register += source == R
                before = columns.get(key, (0,) * len(axes))
                columns[key] = tuple(
                    x | (1 << k if a == axis else 0) for a, x in zip(axes, before, strict=True)
                )
        return Layout(axes, columns)

    def at(self, register: int, thread: int) -> tuple[int, ...]:
        """The position of a register of a thread, along each axis."""
        place = (0,) * len(self.axes)
        for (kind, bit), column in self.columns.items():
            if (register if kind == "register" else thread) >> bit & 1:
                place = tuple(x ^ y for x, y in zip(place, column, strict=True))
        return place

    @cached_property
    def registers(self) -> int:
        """How many registers each thread has of a tile."""
        return 1 << max((bit + 1 for kind, bit in self.columns if kind == "register"), default=0)
