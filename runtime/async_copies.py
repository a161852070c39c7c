"""Barriers in shared memory (mbarrier), bulk copies and TMA: what reports to whom, and when.

In: what single threads ask for. Out: copies that land as late as they may: when every thread of the
block waits, or at the wait for the thread's own group. Until then their target holds NaNs.

    tensor_map(weights, box=(64, 32), swizzle=128)      # an argument for a kernel that uses TMA

A tensor map on a device is 128 bytes that only the driver can write; here they are our own. A wait
(`try_wait`, `test_wait`) comes back when its phase is over, and then says yes: a loop around it
turns once. Sources: PTX ISA 8.x, mbarrier, cp.async.bulk, cp.async.bulk.tensor.
"""

from __future__ import annotations

import ctypes
import re
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..dialect.errors import Error, TargetError
from .fibers import COPY_BYTES
from .operations import Operation

_MAGIC = 0x70616D5F
_POISON = 0xFF


# --- barriers -----------------------------------------------------------------------------------


@dataclass
class MBarrier:
    """A barrier in shared memory. A phase is over when nothing is pending and no bytes are."""

    expected: int
    pending: int
    bytes: int = 0  # still to come
    phase: int = 0
    known: np.ndarray | None = None  # what those who have arrived in this phase knew
    before: np.ndarray | None = None  # the same of the phase before

    def learn(self, known: np.ndarray) -> None:
        self.known = known if self.known is None else np.maximum(self.known, known)

    def turn(self) -> None:
        """Begin the next phase, if this one is over."""
        if self.pending < 0:
            raise Error(f"more arrivals at a barrier than the {self.expected} that it expects")
        if not self.pending and not self.bytes:
            self.phase += 1
            self.pending, self.before, self.known = self.expected, self.known, None


def _barrier_at(block: Any, address: int) -> MBarrier:
    found = block.memory.get(("mbarrier", int(address)))
    if found is None:
        raise Error("a barrier in shared memory that no thread has made (mbarrier.init)")
    return found


def _arrive(block: Any, address: int, who: np.ndarray, count: int = 1) -> np.ndarray:
    """Threads arrive in their order, each `count` times; the phases that it was for them."""
    one, phases = _barrier_at(block, address), np.zeros(len(who), np.int64)
    at = 0
    while at < len(who):
        some = slice(at, at + max(1, one.pending // max(count, 1)))
        one.learn(block.clocks.release(who[some]))
        phases[some] = one.phase
        at += len(who[some])
        one.pending -= count * len(who[some])
        one.turn()
    return phases


def _by_thread(
    step: Callable[[Any, int, list], Any],
) -> Callable[[Any, np.ndarray, list[np.ndarray]], list[np.ndarray]]:
    """A function of all that ask, from one of a single thread and its arguments."""

    def run(block: Any, lanes: np.ndarray, given: list[np.ndarray]) -> list[np.ndarray]:
        results = [
            step(block, int(lanes[i, 0]), [int(value[i, 0]) for value in given])
            for i in range(len(lanes))
        ]
        return [np.array(results).reshape(-1, 1)] if results[0] is not None else []

    return run


def _init(block: Any, thread: int, given: list) -> None:
    block.memory["mbarrier", given[0]] = MBarrier(given[1], given[1])


def _arrives(expecting: bool) -> Callable:
    """All that ask at once: those of one barrier together, for often a whole block arrives."""

    def run(block: Any, lanes: np.ndarray, given: list[np.ndarray]) -> list[np.ndarray]:
        who, addresses = lanes[:, 0], given[0][:, 0]
        more = given[1][:, 0] if len(given) > 1 else np.ones(len(who), np.int64)
        phases = np.zeros(len(who), np.int64)
        for address, count in sorted(set(zip(addresses.tolist(), more.tolist(), strict=True))):
            same = (addresses == address) & (more == count)
            if expecting:
                _barrier_at(block, address).bytes += count * int(same.sum())
            phases[same] = _arrive(block, address, who[same], 1 if expecting else count)
        return [phases[:, None]]

    return run


def _expects(block: Any, thread: int, given: list) -> None:
    _barrier_at(block, given[0]).bytes += given[1]


def _completes(block: Any, thread: int, given: list) -> None:
    one = _barrier_at(block, given[0])
    one.bytes -= given[1]
    one.turn()


def _waits(by_parity: bool) -> Callable:
    """Those whose phase is over go on; the others ask again later."""

    def run(block: Any, lanes: np.ndarray, given: list[np.ndarray]):
        went = np.zeros(len(lanes), bool)
        addresses, values = given[0][:, 0], given[1][:, 0]
        for address, value in set(zip(addresses.tolist(), values.tolist(), strict=True)):
            one = _barrier_at(block, address)
            if one.phase & 1 != value & 1 if by_parity else one.phase != value:
                same = (addresses == address) & (values == value)
                went |= same
                if one.before is not None:
                    block.clocks.acquire(lanes[same, 0], one.before)
        return went, [np.ones((len(lanes), 1), np.uint8)]

    return run


def _together(run: Callable) -> Callable:
    def make(operation: Operation, found: re.Match[str], arguments: Sequence) -> Operation:
        def of_kind(block: Any, lanes: np.ndarray, given: list) -> list:
            results = run(block, lanes, given)
            return results if operation.back.kinds else []

        return replace(
            operation, scope="thread", run=of_kind, sites=("atomic",), rows=1 << 30, row_bytes=8
        )

    return make


def _simple(step: Callable, kind: str = "atomic") -> Callable:
    def make(operation: Operation, found: re.Match[str], arguments: Sequence) -> Operation:
        each = _by_thread(step)

        def run(block: Any, lanes: np.ndarray, given: list) -> list:
            results = each(block, lanes, given)
            return results if operation.back.kinds else []

        return replace(operation, scope="thread", run=run, sites=(kind,), rows=1 << 30, row_bytes=8)

    return make


def _waiting(operation: Operation, found: re.Match[str], arguments: Sequence) -> Operation:
    return replace(
        operation, scope="thread", run=_waits(bool(found[1])), sites=("atomic",), rows=1 << 30,
        row_bytes=8,
    )  # fmt: skip


def _copies_arrive(operation: Operation, found: re.Match[str], arguments: Sequence) -> Operation:
    """cp.async.mbarrier.arrive: arrive when this thread's copies so far have landed."""
    keeps_count = not found[1]

    def step(block: Any, thread: int, given: list) -> None:
        one = block.threads[thread]
        count = int(one["copied"])
        memory = (ctypes.c_char * (count * COPY_BYTES)).from_address(int(one["copies"]))
        copies = [struct.unpack_from("<QQiiii", memory, i * COPY_BYTES) for i in range(count)]
        one["copied"] = 0
        barrier = _barrier_at(block, given[0])
        barrier.pending += keeps_count

        def land() -> None:
            for to, of, size, taken, site, _ in copies:
                ctypes.memset(to, 0, size)
                ctypes.memmove(to, of, taken)
                block.note(np.array([to]), size, thread, site)
            _arrive(block, given[0], np.array([thread]))

        block.late.append(Copy(land, thread))

    return _simple(step)(operation, found, arguments)


# --- copies -------------------------------------------------------------------------------------


@dataclass
class Copy:
    """A copy on its way. Those out of shared memory belong to a group of their thread."""

    land: Callable[[], None]
    thread: int
    group: int = -1


@dataclass(frozen=True)
class TensorMap:
    """A tensor in global memory, the box of it that one copy moves, and how that lies in shared."""

    address: int
    shape: tuple[int, ...]  # innermost dimension first, as in the PTX ISA
    strides: tuple[int, ...]  # bytes
    box: tuple[int, ...]
    item: int  # bytes of an element
    swizzle: int  # 0, 32, 64 or 128 bytes

    @property
    def bytes(self) -> int:
        return int(np.prod(self.box)) * self.item

    def packed(self) -> np.ndarray:
        rank = len(self.shape)
        data = struct.pack("<IBBHQ", _MAGIC, rank, self.item, self.swizzle, self.address)
        data += struct.pack(f"<{rank}q{rank}q{rank}i", *self.shape, *self.strides, *self.box)
        return np.frombuffer(data.ljust(128, b"\0"), np.uint8).copy()

    @classmethod
    def read(cls, data: bytes) -> TensorMap:
        magic, rank, item, swizzle, address = struct.unpack_from("<IBBHQ", data)
        if magic != _MAGIC:
            raise Error("a pointer that is not to a tensor map")
        rest = struct.unpack_from(f"<{rank}q{rank}q{rank}i", data, 16)
        return cls(address, rest[:rank], rest[rank : 2 * rank], rest[2 * rank :], item, swizzle)


def tensor_map(array: np.ndarray, box: Sequence[int], swizzle: int = 0) -> np.ndarray:
    """128 bytes that stand for a tensor map: an argument of a kernel that uses TMA.

    `box` is in the order of the array's dimensions. `array` has to stay where it is.
    """
    rank = array.ndim
    if len(box) != rank or rank > 4:
        raise Error(f"tensor map: {rank} dimensions and a box of {len(box)}; at most 4 and as many")
    inner = box[-1] * array.itemsize
    if swizzle not in (0, 32, 64, 128) or inner % 16 or (swizzle and inner > swizzle):
        raise Error(f"tensor map: rows of {inner} bytes with a swizzle of {swizzle}")
    return TensorMap(
        array.ctypes.data, array.shape[::-1], array.strides[::-1], tuple(box)[::-1],
        array.itemsize, swizzle,
    ).packed()  # fmt: skip


def swizzled(offsets: np.ndarray, swizzle: int) -> np.ndarray:
    """Where bytes lie: 16-byte pieces of a row change places by the number of the row."""
    if not swizzle:
        return offsets
    mask = {32: 1, 64: 3, 128: 7}[swizzle]
    return offsets ^ ((offsets >> 7 & mask) << 4)


def _decoded(block: Any, address: int, thread: int) -> TensorMap:
    site = int(block.threads["site"][thread])
    block.check(np.array([address]), 128, np.array([thread]), site)
    return TensorMap.read(ctypes.string_at(address, 128))


def _box(
    block: Any, one: TensorMap, at: Sequence[int], to: int, thread: int
) -> tuple[np.ndarray, ...]:
    """Addresses of a box's elements in global and in shared memory, and which are in the tensor."""
    grids = np.meshgrid(*[np.arange(n) for n in one.box[::-1]], indexing="ij")[::-1]
    inside = np.ones(grids[0].shape, bool)
    source = np.full(grids[0].shape, one.address, np.int64)
    offset = np.zeros(grids[0].shape, np.int64)
    pitch = one.item
    for grid, start, size, stride, extent in zip(
        grids, at, one.shape, one.strides, one.box, strict=True
    ):
        place = grid + start
        inside &= (place >= 0) & (place < size)
        source += place * stride
        offset += grid * pitch
        pitch *= extent
    if to % (128 if not one.swizzle else 8 * one.swizzle):
        raise Error(f"a box in shared memory at {to - block.base}, which is not aligned")
    places = swizzled(offset + (to - block.base), one.swizzle) + block.base
    if inside.any():
        site = int(block.threads["site"][thread])
        ends = source[inside]
        for address in (ends.min(), ends.max()):
            block.check(np.array([address]), one.item, np.array([thread]), site)
    return source.reshape(-1), places.reshape(-1), inside.reshape(-1)


def _memory(addresses: np.ndarray, item: int) -> tuple[np.ndarray, np.ndarray]:
    """The bytes around some addresses, and where in them those of each item are."""
    first = int(addresses.min())
    size = int(addresses.max()) + item - first
    memory = np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(first))
    return memory, (addresses - first)[:, None] + np.arange(item)


def _fill(block: Any, to: int, size: int, thread: int, site: int) -> None:
    """A target is nobody's until the copy has landed."""
    block.check(np.array([to]), size, np.array([thread]), site)
    at = to - block.base
    block.shared[at : at + size] = _POISON
    block.note(np.arange(to, to + size, 16), 16, thread, site)


def _tensor_in(operation: Operation, found: re.Match[str], arguments: Sequence) -> Operation:
    rank = int(found[1])

    def step(block: Any, thread: int, given: list) -> None:
        to, barrier, address = given[:3]
        one, site = _decoded(block, address, thread), int(block.threads["site"][thread])
        source, places, inside = _box(block, one, given[3 : 3 + rank], to, thread)
        _fill(block, to, one.bytes, thread, site)

        def land() -> None:
            values = np.zeros((len(source), one.item), np.uint8)
            if inside.any():
                memory, offsets = _memory(source[inside], one.item)
                values[inside] = memory[offsets]
            block.scatter(places, values)
            _landed(block, barrier, to, one.bytes, thread, site)

        block.late.append(Copy(land, thread))

    return _simple_copy(operation, step)


def _bulk_in(operation: Operation, found: re.Match[str], arguments: Sequence) -> Operation:
    def step(block: Any, thread: int, given: list) -> None:
        to, barrier, of, size = given[:4]
        site = int(block.threads["site"][thread])
        block.check(np.array([of]), size, np.array([thread]), site)
        _fill(block, to, size, thread, site)

        def land() -> None:
            ctypes.memmove(to, of, size)
            _landed(block, barrier, to, size, thread, site)

        block.late.append(Copy(land, thread))

    return _simple_copy(operation, step)


def _landed(block: Any, barrier: int, to: int, size: int, thread: int, site: int) -> None:
    block.note(np.arange(to, to + size, 16), 16, thread, site)
    one = _barrier_at(block, barrier)
    one.learn(block.clocks.release(np.array([thread])))
    one.bytes -= size
    one.turn()


def _bulk_out(operation: Operation, found: re.Match[str], arguments: Sequence) -> Operation:
    """shared.cta.to.global, and tensors: read when the thread waits for its group."""
    rank = int(found[1] or 0)

    def step(block: Any, thread: int, given: list) -> None:
        site = int(block.threads["site"][thread])
        if rank:
            of, one = given[0], _decoded(block, given[1], thread)
            target, places, inside = _box(block, one, given[2 : 2 + rank], of, thread)
            size, item = one.bytes, one.item
        else:
            to, of, size = given[:3]
            block.check(np.array([to]), size, np.array([thread]), site)
            item = 1
            target, places = np.arange(to, to + size), np.arange(of, of + size)
            inside = np.ones(size, bool)
        read = np.arange(of, of + size, 16)
        block.check(np.array([of]), size, np.array([thread]), site)
        block.note(read, 16, thread, site)

        def land() -> None:
            block.note(read, 16, thread, site)
            if inside.any():
                memory, offsets = _memory(target[inside], item)
                memory[offsets] = block.gather(places[inside], item)

        groups = block.memory.setdefault(("bulk", thread), 0)
        block.late.append(Copy(land, thread, groups))

    return replace(_simple_copy(operation, step), sites=("load",))


def _bulk_commit(operation: Operation, found: re.Match[str], arguments: Sequence) -> Operation:
    def step(block: Any, thread: int, given: list) -> None:
        block.memory["bulk", thread] = block.memory.get(("bulk", thread), 0) + 1

    return _simple_copy(operation, step)


def _bulk_wait(operation: Operation, found: re.Match[str], arguments: Sequence) -> Operation:
    def step(block: Any, thread: int, given: list) -> None:
        limit = block.memory.get(("bulk", thread), 0) - given[0]
        ready = [c for c in block.late if c.thread == thread and 0 <= c.group < limit]
        for copy in ready:
            copy.land()
            block.late.remove(copy)

    return _simple_copy(operation, step)


def _simple_copy(operation: Operation, step: Callable) -> Operation:
    def run(block: Any, lanes: np.ndarray, given: list) -> list:
        _by_thread(step)(block, lanes, given)
        return []

    return replace(operation, scope="thread", run=run, sites=("store",))


def _no_cluster(make: Callable) -> Callable:
    """Refuse copies to several blocks, and other kinds than tiles."""

    def checked(operation: Operation, found: re.Match[str], arguments: Sequence) -> Operation:
        if any(kind == "i1" and value not in ("false", "0") for kind, value in arguments[-3:-1]):
            raise TargetError(f"simulate: {operation.name} to several blocks is not simulated")
        return make(operation, found, arguments)

    return checked


_SCOPE = r"(?:\.relaxed)?\.scope\.(?:cta|cluster)\.space\.cta"
ASYNC_ROWS: list[tuple[str, Callable]] = [
    (r"nvvm\.mbarrier\.init(?:\.shared)?", _simple(_init, "store")),
    (rf"nvvm\.mbarrier\.arrive(?:\.noComplete)?(?:\.shared|{_SCOPE})?", _together(_arrives(False))),
    (rf"nvvm\.mbarrier\.arrive\.expect\.tx{_SCOPE}", _together(_arrives(True))),
    (rf"nvvm\.mbarrier\.expect\.tx{_SCOPE}", _simple(_expects)),
    (rf"nvvm\.mbarrier\.complete\.tx{_SCOPE}", _simple(_completes)),
    (rf"nvvm\.mbarrier\.(?:test|try)\.wait(\.parity)?(?:\.tl)?(?:\.shared|{_SCOPE})?", _waiting),
    (r"asm\.mbarrier\.try_wait(\.parity)\.loop", _waiting),
    (r"nvvm\.cp\.async\.mbarrier\.arrive(\.noinc)?(?:\.shared)?", _copies_arrive),
    (r"nvvm\.cp\.async\.bulk\.tensor\.g2s\.(?:cta\.)?tile\.(\d)d", _no_cluster(_tensor_in)),
    (r"nvvm\.cp\.async\.bulk\.global\.to\.shared\.(?:cta|cluster)", _no_cluster(_bulk_in)),
    (r"nvvm\.cp\.async\.bulk\.tensor\.s2g\.tile\.(\d)d", _bulk_out),
    (r"nvvm\.cp\.async\.bulk\.shared\.cta\.to\.global()", _bulk_out),
    (r"nvvm\.cp\.async\.bulk\.commit\.group", _bulk_commit),
    (r"nvvm\.cp\.async\.bulk\.wait\.group(?:\.read)?", _bulk_wait),
]
