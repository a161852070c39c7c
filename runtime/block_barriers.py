"""Barriers that not simply all threads of a block reach: with numbers, counts, or in two halves.

In: a block of which every thread waits. Out: threads that may go on, and what they know of others:

    open_barriers(block)        # whether somebody went on

`bar.sync id, count` opens when `count` threads have come, of which some may have said `bar.arrive`
and gone on. On gfx12 a barrier has two halves, `s_barrier_signal` and `s_barrier_wait`: a wait is
over when every thread has signalled as often as the one that waits. `barrier.red` also combines a
bit. Sources: PTX ISA 8.x, barrier; RDNA4 ISA guide, S_BARRIER_SIGNAL.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ..dialect.errors import Error
from .fibers import AT_BARRIER, READY
from .operations import Operation

# In the mask of a barrier, above its count of threads (0: all of the block):
ARRIVES = 1 << 32  # do not wait
SINGLY = 1 << 33  # the threads of a warp may come one by one
HALF = 1 << 34  # wait for a barrier that was signalled before


@dataclass
class Named:
    """A barrier with a number: who has arrived since it opened last."""

    arrived: list[int] = field(default_factory=list)  # threads that did not wait
    known: np.ndarray | None = None  # what those knew
    # Of barriers in halves: how often each thread has signalled and waited.
    signals: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    waited: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    opened: list[np.ndarray] = field(
        default_factory=list
    )  # what all knew, each time that it opened


def open_barriers(block: Any) -> bool:
    """Let those go on for whom a barrier is open, and those that only arrive."""
    threads, went = block.threads, False
    waiting = np.flatnonzero(threads["state"] == AT_BARRIER)
    if not len(waiting):
        return False
    whole = _whole_warps(block, waiting)
    mask = threads["mask"][whole]
    arriving, half = (mask & ARRIVES) != 0, (mask & HALF) != 0
    for number, who in _by_number(threads, whole[arriving & ~half]):
        one = block.named.setdefault(number, Named())
        one.arrived += who.tolist()
        known = block.clocks.release(who)
        one.known = known if one.known is None else np.maximum(one.known, known)
        threads["state"][who] = READY
        went = True
    for number, who in _by_number(threads, whole[arriving & half]):
        _signal(block, block.named.setdefault(number, Named()), who)
        went = True
    for number, who in _by_number(threads, whole[~arriving & half]):
        went |= _wait(block, block.named.setdefault(number, Named()), who)
    for number, who in _by_number(threads, whole[~arriving & ~half]):
        went |= _open(block, block.named.setdefault(number, Named()), who)
    return went


def _by_number(threads: np.ndarray, who: np.ndarray) -> list[tuple[int, np.ndarray]]:
    kinds = threads["kind"][who]
    return [(number, who[kinds == number]) for number in np.unique(kinds).tolist()]


def _whole_warps(block: Any, waiting: np.ndarray) -> np.ndarray:
    """Threads at barriers without those of warps of which some are elsewhere."""
    threads = block.threads
    good = [waiting[:0]]
    for first in np.unique(threads["first"][waiting]).tolist():
        lanes = np.arange(first, min(first + block.wave, len(threads)))
        here = lanes[threads["state"][lanes] == AT_BARRIER]
        singly = (threads["mask"][here] & SINGLY) != 0
        together = len(here) == len(lanes) and len(np.unique(threads["site"][here])) == 1
        good.append(here if together else here[singly])
    return np.concatenate(good)


def _open(block: Any, one: Named, who: np.ndarray) -> bool:
    """Let the threads at a barrier go on, if as many have come as it counts."""
    threads = block.threads
    counts = np.unique(threads["mask"][who] & 0xFFFFFFFF)
    if len(counts) != 1:
        text = ", ".join(str(int(count)) for count in counts)
        raise Error(f"{block.place()}: threads wait at one barrier for {text} threads")
    expected = int(counts[0]) or len(threads)
    if len(who) + len(one.arrived) != expected:
        return False
    threads["state"][who] = READY
    if len(who) == len(threads):
        block.new_window()
    else:
        known = block.clocks.release(who)
        if one.known is not None:
            known = np.maximum(known, one.known)
        block.clocks.acquire(who, known)
    one.arrived, one.known = [], None
    return True


def _signal(block: Any, one: Named, who: np.ndarray) -> None:
    if not len(one.signals):
        one.signals, one.waited = np.zeros((2, len(block.threads)), np.int64)
    known = block.clocks.release(who)
    one.known = known if one.known is None else np.maximum(one.known, known)
    one.signals[who] += 1
    block.threads["state"][who] = READY
    if one.signals.min() > len(one.opened):
        one.opened.append(known if one.known is None else one.known)
        one.known = None


def _wait(block: Any, one: Named, who: np.ndarray) -> bool:
    if not len(one.signals) or (one.signals[who] <= one.waited[who]).any():
        raise Error(f"{block.place()}: thread {who[0]} waits for a barrier without a signal")
    turn = one.waited[who]
    ready = turn < len(one.opened)
    for number in np.unique(turn[ready]).tolist():
        block.clocks.acquire(who[ready & (turn == number)], one.opened[number])
    one.waited[who[ready]] += 1
    block.threads["state"][who[ready]] = READY
    return bool(ready.any())


def _reduction(operation: Operation, found: re.Match[str], arguments: Sequence) -> Operation:
    """barrier.red: a barrier of the block that also gives a bit of all threads, or their number."""
    combine = {"and": np.all, "or": np.any, "popc": np.count_nonzero}[found[1]]

    def run(block: Any, lanes: np.ndarray, given: list[np.ndarray]) -> list[np.ndarray]:
        value = combine(given[1] != 0)
        block.new_window()
        return [np.full(lanes.shape, int(value))]

    return replace(operation, scope="block", run=run)


BARRIER_ROWS: list[tuple[str, Callable]] = [
    (r"nvvm\.barrier\.cta\.red\.(and|or|popc)(?:\.aligned)?\.all", _reduction),
]
