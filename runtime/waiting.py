"""What a block does when every thread of it waits, and the scheduler in LLVM IR cannot go on.

In: the records of the threads. Out: some of them are ready again, or an `Error` says who waits for
whom:

    block = Block(kernel, threads, exchange, ...)
    block.resolve()         # Error: kernel k, block (0, 0, 0): deadlock: threads 0-31 wait at `...`

Here are named barriers, warps that meet in part, and everything that numpy does (`Operation`).
Copies that nobody has waited for yet land only when nothing else can happen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np

from ..dialect.errors import Error
from .block_barriers import Named, open_barriers
from .counters import Counts
from .fibers import ARENA, ASKS, DONE, IN_WARP, READY
from .host_ir import HostIR
from .operations import Operation
from .races import Clocks

_WARP_SYNC = -1


@dataclass
class Block:
    """A block that runs, as Python sees it."""

    name: str
    code: HostIR
    threads: np.ndarray
    exchange: np.ndarray  # (threads, 2, EXCHANGE) bytes
    shared: np.ndarray  # the arena
    base: int  # its address
    wave: int
    amd: bool
    clocks: Clocks
    counts: Counts
    check: Callable[[np.ndarray, int, np.ndarray, int], None]  # bounds, of what numpy touches
    new_window: Callable[[], None]
    note: Callable[[np.ndarray, int, int, int], None]  # accesses, for the log
    named: dict[int, Named] = field(default_factory=dict)
    late: list = field(default_factory=list)  # copies on their way (`async_copies.Copy`)
    memory: dict = field(default_factory=dict)  # what operations keep: barriers in shared memory

    def begin(self) -> None:
        """A new block starts."""
        self.named.clear()
        self.late.clear()
        self.memory.clear()

    def place(self) -> str:
        return f"kernel {self.name}, block {tuple(int(i) for i in self.threads['ctaid'][0])}"

    def resolve(self) -> None:
        """Let somebody go on; Error if nobody can."""
        steps = (self._ask, self._meet_in_part, lambda: open_barriers(self))
        if not any([step() for step in steps]) and not self._land_one():
            raise Error(self._deadlock())

    def _land_one(self) -> bool:
        """The oldest copy that a barrier waits for; those of groups land at their wait."""
        for copy in self.late:
            if copy.group < 0:
                self.late.remove(copy)
                copy.land()
                return True
        return False

    def end(self) -> None:
        """The block is over; Error if something is still on its way."""
        if self.late:
            raise Error(
                f"{self.place()}: thread {self.late[0].thread} has left, and a copy that it began "
                "and nobody waited for is still on its way"
            )
        pending = [key for key, value in self.memory.items() if key[0] == "wgmma" and value]
        pending += [key for key, value in self.memory.items() if key[0] == "groups" and value]
        if pending:
            raise Error(
                f"{self.place()}: threads {pending[0][1]}-{pending[0][1] + 31} have left, and "
                "never waited for a wgmma that they began"
            )

    # --- operations -----------------------------------------------------------------------------

    def _ask(self) -> bool:
        asking = np.flatnonzero(self.threads["state"] == ASKS)
        went = False
        kinds = self.threads["kind"]
        for kind in dict.fromkeys(kinds[asking].tolist()):
            who = asking[kinds[asking] == kind]
            if kind == _WARP_SYNC:
                went |= self._meet_in_part(ASKS)
                continue
            operation = self.code.operations[kind]
            lanes = self._groups(operation, who)
            if len(lanes):
                went |= self._run(operation, lanes)
        return went

    def _groups(self, operation: Operation, who: np.ndarray) -> np.ndarray:
        """(groups, lanes) of the threads of which all have asked, at one instruction."""
        if operation.scope == "thread":
            return who[:, None]
        count = len(self.threads)
        size = {"warp": self.wave, "warpgroup": 4 * self.wave, "block": count}[operation.scope]
        if len(who) < count:  # leave out groups that are not whole
            first = who // size * size
            starts, counts = np.unique(first, return_counts=True)
            lanes = starts[counts == size][:, None] + np.arange(size)
        elif count % size:
            lanes = who[: count // size * size].reshape(-1, size)
        else:
            lanes = who.reshape(-1, size)
        if operation.scope == "block":
            return lanes
        sites = self.threads["site"][lanes]
        return lanes[(sites == sites[:, :1]).all(axis=1)]

    def _run(self, operation: Operation, lanes: np.ndarray) -> bool:
        """Run an operation for all that can have it; those of which it says no wait on."""
        given = operation.given.read(self.exchange[:, 0, : operation.given.bytes][lanes])
        try:
            results = operation.run(self, lanes, given)
        except Error as error:
            raise self._located(error, lanes) from error
        if isinstance(results, tuple):
            went, results = results
            lanes, results = lanes[went], [result[went] for result in results]
        if operation.unit:
            done = self.counts.matrix.get(operation.unit, 0)
            self.counts.matrix[operation.unit] = done + len(lanes)
        if operation.back.kinds:
            out = np.empty((*lanes.shape, operation.back.bytes), np.uint8)
            operation.back.write(out, results)
            self.exchange[:, 1, : operation.back.bytes][lanes] = out
        self.threads["state"][lanes.reshape(-1)] = READY
        return len(lanes) > 0

    def _located(self, error: Error, lanes: np.ndarray) -> Error:
        if str(error).startswith("kernel "):
            return error
        site = self.code.sites[int(self.threads["site"][lanes[0, 0]])]
        return type(error)(f"{self.place()}: {error}, at {site.said}")

    # --- warps of which not all threads are there -----------------------------------------------

    def _meet_in_part(self, state: int = IN_WARP) -> bool:
        """Those that a mask names go on when all of them that are alive have come."""
        threads, went = self.threads, False
        waiting = np.flatnonzero(threads["state"] == state)
        if state == ASKS:
            waiting = waiting[threads["kind"][waiting] == _WARP_SYNC]
        for first in np.unique(threads["first"][waiting]).tolist():
            lanes = np.arange(first, min(first + self.wave, len(threads)))
            alive = lanes[threads["state"][lanes] != DONE]
            here = lanes[threads["state"][lanes] == state]
            here = np.intersect1d(here, waiting)
            for kind, mask in {(int(threads["kind"][i]), int(threads["mask"][i])) for i in here}:
                same = here[(threads["kind"][here] == kind) & (threads["mask"][here] == mask)]
                bits = np.array([mask >> int(i - first) & 1 for i in alive], bool)
                if not np.array_equal(same, alive[bits]) or (kind < -1 and len(same) < self.wave):
                    continue
                threads["active"][same] = sum(1 << int(i - first) for i in same)
                threads["state"][same] = READY
                if state == ASKS:
                    self.clocks.meet(same)
                went = True
        return went

    # --- what to say ----------------------------------------------------------------------------

    def _deadlock(self) -> str:
        threads = self.threads
        groups: dict[tuple[int, int, int], list[int]] = {}
        for index, one in enumerate(threads):
            state = int(one["state"])
            key = (0, 0, 0) if state == DONE else (state, int(one["site"]), int(one["mask"]))
            groups.setdefault(key, []).append(index)
        parts = []
        for (state, site, _), who in groups.items():
            what = "have left the kernel" if not state else f"wait at {self.code.sites[site].said}"
            parts.append(f"threads {spans(who)} {what}")
        omitted = self._left_out()
        if len(omitted):
            kind = f"threads {spans(omitted)} wait with a mask that leaves them out"
        elif (divided := self._divided()) >= 0:
            kind = f"divergent {'wave' if self.amd else 'warp'} {divided}"
        else:
            kind = "deadlock"
        return f"{self.place()}: {kind}: {'; '.join(parts)}"

    def _left_out(self) -> np.ndarray:
        """Threads at a collective whose mask does not name them."""
        threads = self.threads
        own = np.left_shift(np.uint64(1), threads["lane"].astype(np.uint64))
        return np.flatnonzero((threads["state"] == IN_WARP) & ((threads["mask"] & own) == 0))

    def _divided(self) -> int:
        """The first warp of which some threads wait where others do not; -1 if there is none."""
        threads = self.threads
        for first in np.unique(threads["first"]).tolist():
            part = threads[first : first + self.wave]
            waits = (part["state"] != DONE) & (part["state"] != READY)
            places = set(part["site"][waits].tolist())
            if waits.any() and (not waits.all() or len(places) > 1):
                return first // self.wave
        return -1

    # --- memory that numpy touches --------------------------------------------------------------

    def gather(self, addresses: np.ndarray, size: int) -> np.ndarray:
        """Bytes of shared memory at addresses: (..., size)."""
        offsets = addresses.astype(np.int64) - self.base
        inside = (offsets >= 0) & (offsets + size <= ARENA)
        if not inside.all():
            raise Error("a pointer that is not into shared memory")
        return self.shared[offsets[..., None] + np.arange(size)]

    def scatter(self, addresses: np.ndarray, values: np.ndarray) -> None:
        offsets = addresses.astype(np.int64) - self.base
        size = values.shape[-1]
        if not ((offsets >= 0) & (offsets + size <= ARENA)).all():
            raise Error("a pointer that is not into shared memory")
        self.shared[offsets[..., None] + np.arange(size)] = values


def spans(numbers: Iterable[int]) -> str:
    """Numbers in order, as ranges: "0-15, 20"."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in parts)
