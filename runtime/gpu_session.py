"""A device as this process uses it: one stream, memory from a pool, copies through pinned memory.

    session = session_on(driver, 0)
    with session.working():
        memory = session.allocate(1 << 20)          # goes back to the pool when nobody holds it
        session.upload(memory.address, array)
        session.download([(memory.address, array)])     # and waits

All work of all executables on a device is in the order of one stream. So a result may be read by
the next call, and memory may be given back and taken again, without any wait; and an executable,
which has one scratch arena, could not run twice at a time anyway.
"""

from __future__ import annotations

import ctypes
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from ..dialect.errors import DeviceError
from .gpu import Driver, Handle
from .memory import address_of

ALIGNMENT = 256  # bytes, of each piece of memory
SLOT = 16 << 20  # bytes of pinned memory of a slot
KEPT = 2 << 30  # unused bytes that the pool keeps for later allocations
_sessions: dict[tuple[int, int], Session] = {}
_lock = threading.Lock()


class Memory:
    """Bytes of a device. They go back to the pool, in the order of the stream, with this object."""

    def __init__(self, session: Session, address: int, size: int):
        self.session, self.address, self.size = session, address, size
        self.foreign = False  # whether another stream than ours and the default one may use it

    def __del__(self) -> None:
        if self.address:
            self.session.give_back(self.address, self.foreign)


class Session:
    """A driver's device. Only one thread works with it at a time."""

    def __init__(self, driver: Driver, device: int):
        self.driver, self.device = driver, device
        self.facts = driver.facts(device)
        self._lock = threading.RLock()
        self._dropped: deque[tuple[int, bool]] = deque()  # addresses, and whether they are foreign
        self._held: deque[tuple[Handle, Any]] = deque()  # events, and what must stay until then
        self._events: list[Handle] = []  # untimed, free to be used again
        self.kernels: set[str] = set()  # launched since the last wait
        with driver.current(device):
            self.stream = driver.new_stream()
            self._pool = driver.new_pool(device, KEPT)
        self._staging = _Staging(self)

    @contextmanager
    def working(self) -> Iterator[None]:
        """The device is this thread's, and nobody else's, for a while."""
        with self._lock, self.driver.current(self.device):
            self._drain()
            yield

    # --- memory

    def allocate(self, size: int) -> Memory:
        """Uninitialised memory; DeviceError where the device has not so much."""
        rounded = -(-max(size, 1) // ALIGNMENT) * ALIGNMENT
        try:
            address = self.driver.allocate(self._pool, rounded, self.stream)
        except DeviceError:
            # what is free only once the work before is done, or lies in pieces of a wrong size
            self.wait()
            self._drain()
            self.driver.trim(self._pool)
            try:
                address = self.driver.allocate(self._pool, rounded, self.stream)
            except DeviceError as error:
                facts = self.facts
                text = f"{facts.name} ({facts.memory >> 20} MiB): no room for {size} bytes"
                raise DeviceError(f"{text}: {error}") from None
        return Memory(self, address, size)

    def give_back(self, address: int, foreign: bool) -> None:
        """Memory that nobody holds any more; called from anywhere, at any time."""
        self._dropped.append((address, foreign))
        if self._lock.acquire(blocking=False):  # else whoever works will see to it
            try:
                with self.driver.current(self.device):
                    self._drain()
            except Exception:  # the process ends, or the device has failed: it is all gone
                self._dropped.clear()
            finally:
                self._lock.release()

    def _drain(self) -> None:
        """Free what was dropped, and let go what finished work has held."""
        while self._held and self.driver.is_done(self._held[0][0]):
            self._events.append(self._held.popleft()[0])
        waited = False
        while self._dropped:
            address, foreign = self._dropped.popleft()
            if foreign and not waited:  # work that we cannot see may still use it
                self.driver.wait_device()
                waited = True
            self.driver.release(address, self.stream)

    def hold(self, *things: Any) -> None:
        """Keep things alive until the work that is enqueued now is done."""
        event = self.mark()
        self._held.append((event, things))

    def mark(self) -> Handle:
        """An event after all work that is enqueued now."""
        event = self._events.pop() if self._events else self.driver.new_event(timed=False)
        self.driver.record(event, self.stream)
        return event

    def before(self, stream: Handle) -> None:
        """Make another stream wait for all work that is enqueued now."""
        event = self.mark()
        self.driver.stream_waits(stream, event)
        self._held.append((event, ()))

    # --- copies

    def upload(self, address: int, array: np.ndarray) -> None:
        """Copy a row-major array to the device. It may change as soon as this returns."""
        self._staging.upload(address, address_of(array), array.nbytes)

    def download(self, pairs: Sequence[tuple[int, np.ndarray]]) -> None:
        """Copy from the device into row-major arrays, and wait until they are there."""
        try:
            for address, array in pairs:
                self._staging.download(address, address_of(array), array.nbytes)
            self._staging.finish()
        except BaseException:
            self._staging.forget()
            raise
        self.wait()

    def wait(self) -> None:
        """Wait for all work; DeviceError names the kernels that a fault may have come from."""
        try:
            self.driver.wait_stream(self.stream)
        except DeviceError as error:
            raise self.explained(error) from None
        self.kernels.clear()

    def explained(self, error: DeviceError) -> DeviceError:
        """An error that was met in a wait, with the kernels that ran since the last one."""
        ran = sorted(self.kernels)
        if not ran:
            return error
        many = f"{', '.join(ran[:8])}{', ...' if len(ran) > 8 else ''}"
        which = f"kernel {many}" if len(ran) == 1 else f"one of the kernels {many}"
        hint = "" if len(ran) == 1 else "; DODECA_GPU_CHECK=1 waits after each and names it"
        return DeviceError(f"{error}; met after {which}{hint}")


class _Slot:
    def __init__(self, session: Session):
        self.address = session.driver.new_pinned(SLOT)
        self.event = session.driver.new_event(timed=False)
        self.used = 0
        self.coming: list[tuple[int, int, int]] = []  # host address, pinned address, bytes


class _Staging:
    """Two slots of pinned memory in turn: while one is copied by the device, we fill the other.

    They are made when the first copy is.
    """

    def __init__(self, session: Session):
        self._session = session
        self._slots: list[_Slot] = []

    def upload(self, address: int, source: int, size: int) -> None:
        driver, stream, done = self._session.driver, self._session.stream, 0
        while done < size:
            pinned, room = self._room(size - done)
            ctypes.memmove(pinned, source + done, room)
            driver.upload(address + done, pinned, room, stream)
            done += room

    def download(self, address: int, target: int, size: int) -> None:
        driver, stream, done = self._session.driver, self._session.stream, 0
        while done < size:
            pinned, room = self._room(size - done)
            driver.download(pinned, address + done, room, stream)
            self._slots[0].coming.append((target + done, pinned, room))
            done += room

    def _room(self, size: int) -> tuple[int, int]:
        """Pinned memory that nothing uses, as much of it as there is in one slot."""
        if not self._slots:
            self._slots = [_Slot(self._session), _Slot(self._session)]
        if self._slots[0].used == SLOT:
            self._next()
        slot = self._slots[0]
        room = min(size, SLOT - slot.used)
        place = slot.address + slot.used
        slot.used = min(SLOT, slot.used + -(-room // ALIGNMENT) * ALIGNMENT)
        return place, room

    def _next(self) -> None:
        """Turn to the other slot, once its copies are done."""
        self._session.driver.record(self._slots[0].event, self._session.stream)
        self._slots.reverse()
        self._settle(self._slots[0])

    def _settle(self, slot: _Slot) -> None:
        """Wait for a slot's copies, and hand over what came; it is empty then."""
        if slot.used:
            try:
                self._session.driver.wait_event(slot.event)
            except DeviceError as error:
                raise self._session.explained(error) from None
        for target, pinned, size in slot.coming:
            ctypes.memmove(target, pinned, size)
        slot.coming, slot.used = [], 0

    def forget(self) -> None:
        """Hand over nothing more: the arrays that it was for may be gone."""
        for slot in self._slots:
            slot.coming = []

    def finish(self) -> None:
        """Wait for all copies that come, and hand them over, those that began first before."""
        if self._slots and any(slot.coming for slot in self._slots):
            self._settle(self._slots[1])
            self._next()
            self._settle(self._slots[1])


def session_on(driver: Driver, device: int) -> Session:
    """The one session of a driver's device in this process."""
    with _lock:
        key = id(driver), device
        if key not in _sessions:
            _sessions[key] = Session(driver, device)
        return _sessions[key]
