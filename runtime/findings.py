"""What the SIMT executor has found, in words: who did what, where.

In: numbers of blocks, threads and sites, and addresses. Out: an `Error`:

    kernel k, block (0, 0, 0), thread (8, 0, 0) reads 4 bytes 0 bytes after the end of argument 0,
    at `%v = load float, ptr %p, align 4` (model.py:70)
"""

from __future__ import annotations

from dataclasses import dataclass

from ..dialect.errors import Error
from . import fibers
from .counters import Machine
from .host_ir import HostIR
from .races import Race, does_to_memory

_FAR = 1 << 20  # bytes: an address that far from a buffer has nothing to do with it


@dataclass(frozen=True)
class Findings:
    """A launch, as far as messages speak of it."""

    name: str
    code: HostIR
    machine: Machine
    blocks: tuple[int, int, int]
    size: tuple[int, int, int]  # of a block
    buffers: list[tuple[int, int, str]]  # begin, end and name of what threads may touch
    shared: int  # where shared memory begins

    def thread(self, number: int) -> str:
        return f"thread {_place(number, self.size)}"

    def block(self, number: int) -> str:
        return f"block {_place(number, self.blocks)}"

    def failure(
        self, why: int, block: int, thread: int, address: int, size: int, site: int
    ) -> Error:
        """Why a thread could not go on."""
        who = f"kernel {self.name}, {self.block(block)}, {self.thread(thread)}"
        at = f", at {self.code.sites[site].said}"
        if why == fibers.OUTSIDE:
            kind = self.code.sites[site].kind
            does = {"load": "reads", "store": "writes", "async": "writes"}.get(kind, "accesses")
            return Error(f"{who} {does} {size} bytes {self._nearest(address)}{at}")
        what = {
            fibers.TOO_MANY_COPIES: (
                f"more than {fibers.COPIES} asynchronous copies of a thread are on their way"
            ),
            fibers.TOO_MANY_RESOURCES: f"more than {fibers.RESOURCES} buffer resources",
            fibers.MISSING: f"its warp has fewer than {self.machine.wave} threads",
            fibers.DIFFERS: "WMMA on gfx11 takes A and B twice, and lanes 16-31 hold others",
            fibers.ENDLESS: (
                f"{fibers.PATIENCE} accesses without waiting: if it waits for what another thread "
                "writes, that is not simulated"
            ),
            fibers.MISALIGNED: (
                f"an access of {size & 0xFFFFFFFF} bytes at an address that is no multiple of "
                f"{(size >> 32) + 1}"
            ),
        }[why]
        return Error(f"{who}: {what}{at}")

    def _nearest(self, address: int) -> str:
        """Where an address lies, in terms of the buffer that is closest."""
        best = (_FAR, "outside of every buffer of the launch")
        for begin, end, name in self.buffers:
            if address >= end:
                away, text = address - end, f"{address - end} bytes after the end of {name}"
            elif address < begin:
                away, text = begin - address, f"{begin - address} bytes before the start of {name}"
            else:
                size, inside = end - begin, address - begin
                away, text = -1, f"over the end of {name} ({size} bytes), from {inside} on"
            best = min(best, (away, text))
        return best[1]

    def race(self, race: Race) -> Error:
        sides = [
            f"{self.thread(int(one['thread']))} {does_to_memory(site.kind)} it at {site.said}"
            for one in (race.earlier, race.later)
            for site in (self.code.sites[int(one["site"])],)
        ]
        return Error(
            f"kernel {self.name}, {self.block(int(race.earlier['block']))}: a race on byte "
            f"{race.address - self.shared} of shared memory: {sides[0]}, {sides[1]}, and nothing "
            "orders them"
        )


def _place(number: int, sizes: tuple[int, int, int]) -> tuple[int, int, int]:
    x, y, _ = sizes
    return number % x, number // x % y, number // (x * y)
