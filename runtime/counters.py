"""What a launch did to memory, counted from its log of accesses.

In: the log, with every access of every thread. Out: `Counts`: requests of warps, sectors of global
memory, cycles of shared memory, instructions of matrix units, bytes.

    counts.global_load.sectors, counts.global_load.ideal    # 128, 16: strided
    counts.shared_load.extra                                 # cycles lost to bank conflicts

A request is one instruction of one warp: the accesses of its lanes at one site that are each lane's
k-th there since the last barrier. Global memory answers in sectors of 32 bytes (NVIDIA) or segments
of 64 (AMD); ideal is what the distinct bytes of a request fill. Shared memory has 32 banks of 4
bytes (64 on gfx950). It takes lanes by phases of 128 bytes: 32 lanes of 4 bytes or less, 16 of 8
bytes, 8 of 16; wider accesses are several instructions. A phase takes as many cycles as the most
different words that fall into one bank. That gfx950 takes twice as many lanes in a phase, in order,
is a guess from its banks.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

# The phases of ds_read_b128 on CDNA, half a wave: not lanes that follow each other (ROCm's blog on
# bank conflicts in CK-Tile lists them); writes take lanes in order.
_B128 = np.array([0] * 4 + [1] * 4 + [2] * 4 + [3] * 4 + [1] * 4 + [0] * 4 + [3] * 4 + [2] * 4)


# CUDA C++ Programming Guide, "Technical Specifications per Compute Capability"
_SHARED = {
    "sm_75": 64 << 10,
    "sm_80": 163 << 10,
    "sm_86": 99 << 10,
    "sm_87": 163 << 10,
    "sm_89": 99 << 10,
}


@dataclass(frozen=True)
class Machine:
    """The memory of a chip, as far as it is counted."""

    wave: int = 32
    sector: int = 32  # bytes
    banks: int = 32
    amd: bool = False
    shared: int = 227 << 10  # bytes that a block may have


@dataclass
class Traffic:
    """Requests of warps to one memory. `units` are sectors of global memory, cycles of shared."""

    requests: int = 0
    bytes: int = 0  # that threads asked for
    units: int = 0
    ideal: int = 0

    @property
    def sectors(self) -> int:
        return self.units

    @property
    def cycles(self) -> int:
        return self.units

    @property
    def extra(self) -> int:
        """Sectors or cycles that a better order of the same bytes would not need."""
        return self.units - self.ideal

    def add(self, other: Traffic) -> None:
        self.requests += other.requests
        self.bytes += other.bytes
        self.units += other.units
        self.ideal += other.ideal


@dataclass
class Counts:
    """What one launch did. `sites` has the traffic of each instruction, by its text."""

    kernel: str
    threads: int = 0
    global_load: Traffic = field(default_factory=Traffic)
    global_store: Traffic = field(default_factory=Traffic)
    shared_load: Traffic = field(default_factory=Traffic)
    shared_store: Traffic = field(default_factory=Traffic)
    matrix: dict[str, int] = field(default_factory=dict)  # instructions of warps, by name
    sites: dict[str, Traffic] = field(default_factory=dict)


def machine_of(target: str, features: str = "") -> Machine:
    """The memory of a target such as "cuda:sm_80" or "hip:gfx942"."""
    family, _, chip = target.partition(":")
    if family != "hip":
        return Machine(shared=_SHARED.get(chip, Machine.shared))
    wave = 64 if chip.startswith("gfx9") or "+wavefrontsize64" in features else 32
    new = chip == "gfx950"
    return Machine(wave, 64, 64 if new else 32, True, (160 if new else 64) << 10)


def count(
    counts: Counts, log: np.ndarray, kinds: np.ndarray, names: list[str], machine: Machine,
    shared: np.ndarray,
) -> None:  # fmt: skip
    """Add the records of a log; `shared` says which of them are accesses to shared memory."""
    writes = kinds[log["site"]] > 0
    for is_shared, is_write, total in (
        (False, False, counts.global_load),
        (False, True, counts.global_store),
        (True, False, counts.shared_load),
        (True, True, counts.shared_store),
    ):
        part = log[(shared == is_shared) & (writes == is_write)]
        if not len(part):
            continue
        for site in np.unique(part["site"]):
            one = _traffic(part[part["site"] == site], machine, is_shared, is_write)
            total.add(one)
            counts.sites.setdefault(names[site], Traffic()).add(one)


def _traffic(log: np.ndarray, machine: Machine, shared: bool, write: bool) -> Traffic:
    """The traffic of one site."""
    request = _requests(log, machine.wave)
    size, address = log["bytes"].astype(np.int64), log["address"].astype(np.int64)
    made = Traffic(requests=int(request.max()) + 1, bytes=int(size.sum()))
    if shared:
        made.units, made.ideal = _cycles(log, request, machine, write)
    else:
        made.units = _distinct(request, address, size, machine.sector)
        distinct = np.unique(_packed(request, address), return_index=True)[1]
        filled = np.bincount(request[distinct], size[distinct]).astype(np.int64)
        made.ideal = int((-(-filled // machine.sector)).sum())
    return made


def _requests(log: np.ndarray, wave: int) -> np.ndarray:
    """A number for each record's request, from 0 on: a record's rank among those of its thread."""
    place = np.arange(len(log))
    order = np.lexsort((place, log["thread"], log["window"]))
    window, thread = log["window"][order].astype(np.int64), log["thread"][order].astype(np.int64)
    fresh = np.r_[True, (window[1:] != window[:-1]) | (thread[1:] != thread[:-1])]
    starts = np.maximum.accumulate(np.where(fresh, place, 0))
    rank = place - starts
    request = np.empty(len(log), np.int64)
    request[order] = np.unique(_packed(window, thread // wave, rank), return_inverse=True)[1]
    return request


def _packed(*columns: np.ndarray) -> np.ndarray:
    """One number for each row of columns, in the order of the rows."""
    key = np.zeros(len(columns[0]), np.int64)
    for column in columns:
        low = int(column.min())
        key = key * (int(column.max()) - low + 1) + (column - low)
    return key


def _distinct(request: np.ndarray, address: np.ndarray, size: np.ndarray, unit: int) -> int:
    """How many different units of memory the requests touch, each request by itself."""
    first, last = address // unit, (address + size - 1) // unit
    counts = last - first + 1
    which = np.repeat(np.arange(len(address)), counts)
    within = np.arange(len(which)) - np.repeat(np.cumsum(counts) - counts, counts)
    return len(np.unique(_packed(request[which], first[which] + within)))


def _cycles(log: np.ndarray, request: np.ndarray, machine: Machine, write: bool) -> tuple[int, int]:
    """Cycles of shared memory, and those that the phases alone would take."""
    size = int(log["bytes"][0])
    lane = log["thread"].astype(np.int64) % machine.wave
    address = log["address"].astype(np.int64)
    total = ideal = 0
    for offset in range(0, size, 16):
        width = min(16, size - offset)
        phase = _phases(lane, width, machine, write)
        words = max(1, -(-width // 4))
        word = ((address + offset) // 4)[:, None] + np.arange(words)
        turn = np.unique(_packed(request, phase), return_inverse=True)[1]
        every, word = np.repeat(turn, words), word.reshape(-1)
        distinct = np.unique(_packed(every, word), return_index=True)[1]
        bank = every[distinct] * machine.banks + word[distinct] % machine.banks
        places, load = np.unique(bank, return_counts=True)
        worst = np.zeros(int(turn.max()) + 1, np.int64)
        np.maximum.at(worst, places // machine.banks, load)
        total += int(worst.sum())
        ideal += len(worst)
    return total, ideal


def _phases(lane: np.ndarray, width: int, machine: Machine, write: bool) -> np.ndarray:
    """Which phase each lane is in."""
    lanes = 4 * machine.banks // max(width, 4)
    if machine.amd and width == 16 and machine.banks == 32 and not write:
        return lane // 32 * 4 + _B128[lane % 32]
    return lane // lanes
