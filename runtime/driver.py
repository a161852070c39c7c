"""The native side of a CPU call in this process: the driver's entry points, and teams of threads.

    run_launches(2, launches, count, buffers)       # threads, addresses, and the number of launches

The driver (`driver_ir.py`) is compiled for this process, or comes with a saved executable:
whichever is first serves all. A team's threads stay for the next call.

Calls at the same time, from several Python threads, divide the cores between them, and each has a
team of its own: were they to wait for one team, its threads would find their cores taken.
"""

from __future__ import annotations

import ctypes
import os
import signal
import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..dialect.errors import Error
from .memory import aligned

LINE = 64  # bytes of a cache line: what different threads write stays on different lines
# How a thread waits: first it pauses, some 30 ns each time, then it offers its core to others (on a
# busy machine the thread that it waits for may need just this core); an idle worker then sleeps.
YIELD_AFTER = 100  # rounds of waiting before the core is offered
PARK_AFTER = 200  # rounds before an idle worker sleeps, tens of microseconds

Word = ctypes.c_int64  # an address or a count; ctypes takes 0.3 us to make one of a number


@dataclass(frozen=True)
class Native:
    """The compiled driver's entry points; each releases Python's lock while it runs."""

    start: Callable[[Word], int]  # (worker) -> error number
    alone: Callable[[Word, Word, Word], None]  # (launches, count, buffers)
    together: Callable[[Word, Word, Word, Word], None]  # (pool, launches, count, buffers)


_native: Native | None = None
_making = threading.RLock()


def native() -> Native:
    """The process's driver; compiled now, unless `install` or an earlier call gave one."""
    if _native is None:
        from .jit import driver_entry  # and with it LLVM, which a saved executable does without

        with _making:
            install(driver_entry)
    assert _native is not None
    return _native


def install(entry: Callable[[str], int]) -> None:
    """Take a driver, given as the addresses of its functions by name, unless there is one.

    Its code must stay for good: workers stand in it until the process ends.
    """
    global _native
    with _making:
        _native = _native or Native(
            ctypes.CFUNCTYPE(ctypes.c_int, Word)(entry("dodeca_start")),
            ctypes.CFUNCTYPE(None, *[Word] * 3)(entry("dodeca_alone")),
            ctypes.CFUNCTYPE(None, *[Word] * 4)(entry("dodeca_together")),
        )


class Pool:
    """A team of threads, the caller among them, for one call at a time."""

    def __init__(self, threads: int):
        self.threads = threads
        self._memory = aligned(LINE * (2 + threads), LINE)
        self._memory[:] = 0
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._memory))  # the workers' for good
        self.address = Word(self._memory.ctypes.data)
        crowded = threads > available_cores()  # then whoever spins keeps another from running
        settings = self._memory[: LINE * 3].view(np.int64)
        settings[3:6] = threads, 0 if crowded else YIELD_AFTER, 0 if crowded else PARK_AFTER
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            for thread in range(1, threads):
                self._start(thread)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)

    def _start(self, thread: int) -> None:
        line = LINE * (2 + thread)
        self._memory[line : line + LINE].view(np.int64)[5:7] = self.address.value, thread
        code = native().start(Word(self.address.value + line))
        if code:
            raise Error(f"could not start thread {thread} of {self.threads}: {os.strerror(code)}")

    def run(self, launches: Word, count: Word, buffers: Word) -> None:
        """Run a table of launches at an address."""
        native().together(self.address, launches, count, buffers)


# What calls share. There is no lock: each step is one operation of a dict or list, which is atomic.
_idle: defaultdict[int, list[Pool]] = defaultdict(list)  # the teams that no call has, by their size
_parts: dict[int, int] = {}  # the threads of each call that runs, by the Python thread that made it


def run_launches(threads: int, launches: Word, count: Word, buffers: Word) -> None:
    """Run a table of launches, with so many threads if no other call runs meanwhile."""
    caller, team = threading.get_ident(), None
    try:
        _parts[caller] = threads  # before the look at others: of two that start, one sees the other
        if len(_parts) > 1:
            others = [part for one, part in _parts.copy().items() if one != caller]
            threads = _parts[caller] = part_of(threads, others)
        if threads == 1:
            native().alone(launches, count, buffers)
        else:
            try:
                team = _idle[threads].pop()
            except IndexError:
                team = Pool(threads)
            team.run(launches, count, buffers)
    finally:
        _parts.pop(caller, None)
        if team is not None:
            _idle[team.threads].append(team)


def part_of(threads: int, others: Sequence[int]) -> int:
    """How many of its threads a call gets while others run: cores that they leave, or a fair part.

    >>> part_of(8, [8]), part_of(8, [1])        # on 8 cores
    (4, 7)
    """
    left = max(threads, available_cores()) - sum(others)
    return min(threads, max(left, threads // (len(others) + 1), 1))


def _forget_pools() -> None:
    """A forked child has none of its parent's threads, and locks as some thread left them."""
    global _making
    _idle.clear()
    _parts.clear()
    _making = threading.RLock()


os.register_at_fork(after_in_child=_forget_pools)


def available_cores() -> int:
    """The cores that this process may run on."""
    return len(os.sched_getaffinity(0))


def waited_seconds() -> float:
    """How long the threads of this process were ready to run and had no core (Linux; else 0)."""
    total = 0
    for file in Path("/proc/self/task").glob("*/schedstat"):
        with suppress(OSError):  # the thread has ended
            total += int(file.read_text().split()[1])
    return total / 1e9
