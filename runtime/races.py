"""Which accesses to shared memory are ordered, and the first two that are not.

In: the log of a launch (`ACCESS` records, in the order in which things happened), and what threads
learned from each other inside a window, the time between two barriers of the whole block. Out: a
`Race`, two accesses of different threads to one byte, at least one a write, in no order.

    race = first_race(log, kinds, clocks.rows)

The order within a window is kept as vector clocks: a thread's `epoch` counts how often it has told
others what it did so far, in all windows of its block; its `row` is a vector that says for each
thread how many of its epochs it knows to be over. An access a comes before b if b's row has a's
thread past a's epoch. Neighbours in time suffice: if every access is ordered after the write before
it, and before the write that
follows, all pairs are.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

_KINDS = {"load": 0, "meets": 0, "store": 1, "async": 1, "atomic": 2}


def kind_number(kind: str) -> int:
    """0 for a site that reads, 1 for one that writes, 2 for an atomic."""
    return _KINDS[kind]


def does_to_memory(kind: str) -> str:
    return ("reads", "writes", "changes")[_KINDS[kind]]


class Clocks:
    """What each thread of a block knows of the others, within a window."""

    def __init__(self, threads: np.ndarray):
        self._epoch, self._row = threads["epoch"], threads["row"]
        self.rows = [np.zeros(len(threads), np.int32)]

    def forget(self) -> None:
        """All records have been looked at, and a barrier of the whole block has passed."""
        if not self._row.any():
            del self.rows[1:]

    def release(self, who: np.ndarray) -> np.ndarray:
        """What these threads know and did, for others to acquire."""
        known = np.maximum.reduce([self.rows[row] for row in np.unique(self._row[who])])
        known[who] = np.maximum(known[who], self._epoch[who] + 1)
        self._epoch[who] += 1
        return known

    def acquire(self, who: np.ndarray, known: np.ndarray) -> None:
        rows = self._row[who]
        for row in np.unique(rows):
            self.rows.append(np.maximum(self.rows[row], known))
            self._row[who[rows == row]] = len(self.rows) - 1

    def meet(self, who: np.ndarray) -> None:
        """These threads wait for each other."""
        self.acquire(who, self.release(who))


@dataclass(frozen=True)
class Race:
    """Two records of the log that touch a byte at `address` in no order."""

    address: int
    earlier: np.void
    later: np.void


def first_race(log: np.ndarray, kinds: np.ndarray, rows: list[np.ndarray]) -> Race | None:
    """The first race of a log; `kinds` holds for each site 0 for a read, 1 a write, 2 an atomic.

    The log must hold whole windows.
    """
    if not len(log) or not kinds[log["site"]].any():
        return None
    record, word, low, high = _words(log)
    order = np.lexsort((record, word, log["window"][record]))
    record, word, low, high = record[order], word[order], low[order], high[order]
    window = log["window"][record]
    fresh = np.r_[True, (word[1:] != word[:-1]) | (window[1:] != window[:-1])]
    narrow = (low > 0) | (high < 4)
    group = np.cumsum(fresh) - 1
    kind = kinds[log["site"][record]]
    written = np.bincount(group, kind > 0) > 0
    keep = written[group]
    if not keep.any():
        return None
    parts = _Parts(record[keep], word[keep], low[keep], high[keep], group[keep], kind[keep])
    if narrow[keep].any():
        parts = _bytes(parts)
    return _unordered(log, parts, rows)


def _words(log: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """The 4-byte words of each record: its index, the word, and which bytes of it, [low, high)."""
    first, end = log["address"].astype(np.int64), log["address"].astype(np.int64) + log["bytes"]
    counts = (end + 3) // 4 - first // 4
    record = np.repeat(np.arange(len(log)), counts)
    within = np.arange(len(record)) - np.repeat(np.cumsum(counts) - counts, counts)
    word = first[record] // 4 + within
    low = np.maximum(first[record] - 4 * word, 0)
    return record, word, low, np.minimum(end[record] - 4 * word, 4)


@dataclass(frozen=True)
class _Parts:
    """Parts of accesses, sorted: those that touch one word of one window follow each other."""

    record: np.ndarray  # its number in the log
    word: np.ndarray
    low: np.ndarray  # the first byte of the word, and the one after the last
    high: np.ndarray
    group: np.ndarray  # equal where the window and the word are
    kind: np.ndarray


def _bytes(parts: _Parts) -> _Parts:
    """The same, byte by byte: for words of which some access touches a part."""
    counts = parts.high - parts.low
    which = np.repeat(np.arange(len(counts)), counts)
    within = np.arange(len(which)) - np.repeat(np.cumsum(counts) - counts, counts)
    byte = parts.low[which] + within
    cell = parts.group[which] * 4 + byte
    order = np.lexsort((parts.record[which], cell))
    which, byte, cell = which[order], byte[order], cell[order]
    return _Parts(parts.record[which], parts.word[which], byte, byte + 1, cell, parts.kind[which])


def _unordered(log: np.ndarray, parts: _Parts, rows: list[np.ndarray]) -> Race | None:
    """Compare each access with the last write before it and the next one after it in its group."""
    record, group, kind = parts.record, parts.group, parts.kind
    places = np.arange(len(record))
    writes = kind > 0
    before = np.maximum.accumulate(np.where(writes, places, -1))
    before = np.r_[-1, before[:-1]]
    after = np.minimum.accumulate(np.where(writes, places, len(places))[::-1])[::-1]
    after = np.r_[after[1:], len(places)]
    found = []
    for earlier, later in ((before, places), (places, after)):
        there = (earlier >= 0) & (later < len(places))
        a, b = earlier[there], later[there]
        same = group[a] == group[b]
        a, b = a[same], b[same]
        x, y = log[record[a]], log[record[b]]
        bad = (x["thread"] != y["thread"]) & ((kind[a] < 2) | (kind[b] < 2))
        bad &= ~_ordered(x, y, rows)
        if bad.any():
            first = int(np.argmin(np.where(bad, record[b], len(log))))
            at = int(parts.word[b][first] * 4 + parts.low[b][first])
            found.append((int(record[b][first]), Race(at, x[first], y[first])))
    return min(found, key=lambda one: one[0])[1] if found else None


def _ordered(a: np.ndarray, b: np.ndarray, rows: list[np.ndarray]) -> np.ndarray:
    """Whether each b knows that a is over."""
    if len(rows) == 1 or not b["row"].any():
        return np.zeros(len(a), bool)
    return np.stack(rows)[b["row"], a["thread"]] > a["epoch"]
