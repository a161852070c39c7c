"""A driver without a device, for tests: it keeps a list of calls, and its memory is the host's.

    driver = HostDriver(exe.program)
    runner = GpuRunner(exe.program, weights, driver)
    runner.call([x]); driver.named("launch")

As on a device, nothing that is put on a stream happens before somebody waits: what reads too early
reads rubbish. A launch runs the kernel's device code in the SIMT simulator. Memory that was given
back is overwritten, and then given out again.
"""

from __future__ import annotations

import ctypes
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from dodeca.dialect.errors import DeviceError
from dodeca.runtime.gpu import VENDORS, Call, DeviceFacts, Vendor
from dodeca.runtime.gpu_array import DeviceArray
from dodeca.runtime.gpu_session import session_on
from dodeca.runtime.memory import address_of, aligned
from dodeca.runtime.program import Buffer, Program
from dodeca.runtime.simt import device_kernel

LAUNCH, FILL = 10e-6, 100e-6  # seconds that things take on the device
RUBBISH = 0xEE


class HostDriver:
    """`chips` are the devices; `memory` is what each has; `fail` maps a method to its error."""

    def __init__(
        self,
        *programs: Program,
        family: str = "cuda",
        chips: Sequence[str] = ("sm_90",),
        memory: int = 1 << 30,
        vendor: Vendor | None = None,
    ):
        self.vendor = vendor or VENDORS[family]
        self.kernels = {name: k for program in programs for name, k in program.kernels.items()}
        self.chips, self.memory = chips, memory
        self.log: list[tuple[Any, ...]] = []
        self.fail: dict[str, DeviceError] = {}
        self.depth = 0  # how often a device is current
        self.clock = 0.0
        self.used = 0
        self._names: dict[int, str] = {}  # of kernels, by handle of a module or function
        self._pieces: dict[int, np.ndarray] = {}  # all memory ever given out
        self._free: dict[int, list[int]] = {}  # by size
        self._queues: dict[int, deque[Callable[[], None]]] = {}
        self._events: dict[int, tuple[bool, float, int]] = {}  # done, when, its stream
        self._next = 1000

    def named(self, name: str) -> list[tuple[Any, ...]]:
        """The calls of a method, without its name."""
        return [call[1:] for call in self.log if call[0] == name]

    def _did(self, name: str, *details: Any) -> None:
        assert self.depth or name in ("devices", "facts"), f"{name}: no device is current"
        self.log.append((name, *details))
        if name in self.fail:
            raise self.fail[name]

    def _handle(self) -> int:
        self._next += 1
        return self._next

    def _put(self, stream: int, work: Callable[[], None]) -> None:
        self._queues[stream].append(work)

    # --- devices

    def devices(self) -> int:
        return len(self.chips)

    def facts(self, device: int) -> DeviceFacts:
        return DeviceFacts(f"Fake {device}", self.chips[device], 4, self.memory, 1 << 20)

    @contextmanager
    def current(self, device: int):
        self.depth += 1
        try:
            yield
        finally:
            self.depth -= 1

    def wait_device(self) -> None:
        self._did("wait_device")
        for stream in self._queues:
            self._run(stream)

    # --- memory

    def new_pool(self, device: int, kept: int) -> int:
        self._did("new_pool", device, kept)
        return self._handle()

    def allocate(self, pool: int, size: int, stream: int) -> int:
        self._did("allocate", size)
        assert size and stream in self._queues
        if self.used + size > self.memory:
            raise DeviceError(f"cuMemAllocFromPoolAsync ({size} bytes): out of memory")
        self.used += size
        if self._free.get(size):
            return self._free[size].pop()
        piece = aligned(size, 256)
        piece[:] = RUBBISH
        self._pieces[address_of(piece)] = piece
        return address_of(piece)

    def release(self, address: int, stream: int) -> None:
        self._did("release", address)
        piece = self._pieces[address]
        self.used -= piece.nbytes

        def work() -> None:
            piece[:] = RUBBISH

        self._put(stream, work)
        self._free.setdefault(piece.nbytes, []).append(address)

    def trim(self, pool: int) -> None:
        self._did("trim")

    def new_pinned(self, size: int) -> int:
        self._did("new_pinned", size)
        piece = aligned(size, 256)
        self._pieces[address_of(piece)] = piece
        return address_of(piece)

    def _move(self, name: str, target: int, source: int, size: int, stream: int) -> None:
        self._did(name, target, source, size)
        assert size and stream in self._queues
        self._put(stream, lambda: ctypes.memmove(target, source, size))

    def upload(self, address: int, source: int, size: int, stream: int) -> None:
        self._move("upload", address, source, size, stream)

    def download(self, target: int, address: int, size: int, stream: int) -> None:
        self._move("download", target, address, size, stream)

    def copy(self, target: int, source: int, size: int, stream: int) -> None:
        self._move("copy", target, source, size, stream)

    def fill(self, address: int, byte: int, size: int, stream: int) -> None:
        self._did("fill", address, byte, size)

        def work() -> None:
            ctypes.memset(address, byte, size)
            self.clock += FILL

        self._put(stream, work)

    # --- streams and events

    def new_stream(self) -> int:
        self._did("new_stream")
        stream = self._handle()
        self._queues[stream] = deque()
        return stream

    def _run(self, stream: int, until: int = 0) -> None:
        queue = self._queues[stream]
        while queue and not (until and self._events[until][0]):
            queue.popleft()()

    def wait_stream(self, stream: int) -> None:
        self._did("wait_stream")
        self._run(stream)

    def new_event(self, timed: bool) -> int:
        self._did("new_event", timed)
        event = self._handle()
        self._events[event] = (True, 0.0, 0)
        return event

    def end_event(self, event: int) -> None:
        self._did("end_event", event)
        del self._events[event]

    def record(self, event: int, stream: int) -> None:
        self._did("record", event)
        self._events[event] = (False, 0.0, stream)

        def work() -> None:
            self._events[event] = (True, self.clock, stream)

        self._put(stream, work)

    def wait_event(self, event: int) -> None:
        self._did("wait_event", event)
        self._run(self._events[event][2], event)

    def is_done(self, event: int) -> bool:
        return self._events[event][0]

    def stream_waits(self, stream: int, event: int) -> None:
        self._did("stream_waits", stream, event)
        if stream in self._queues:
            self._put(stream, lambda: self._run(self._events[event][2], event))

    def seconds(self, first: int, last: int) -> float:
        done = [self._events[event] for event in (first, last)]
        assert all(event[0] for event in done), "an event is read before it happened"
        return done[1][1] - done[0][1]

    # --- code

    def load(self, image: bytes, chip: str, kernel: str) -> int:
        self._did("load", kernel, chip, len(image))
        return self._called(kernel)

    def _called(self, kernel: str) -> int:
        handle = self._handle()
        self._names[handle] = kernel
        return handle

    def unload(self, module: int) -> None:
        self._did("unload", self._names.pop(module))

    def function(self, module: int, kernel: str) -> int:
        self._did("function", kernel)
        assert self._names[module] == kernel
        return self._called(kernel)

    def allow_shared(self, function: int, size: int, kernel: str) -> None:
        self._did("allow_shared", kernel, size)

    def launch(self, call: Call, stream: int) -> None:
        values = _values(call)
        self._did("launch", call.kernel, call.blocks, call.block, call.shared, *values)
        self._launch(call, values, stream)

    def _launch(self, call: Call, values: Sequence[int], stream: int) -> None:
        kernel = self.kernels[self._names[call.function]]
        assert call.blocks, "a driver refuses a grid of no blocks"
        assert (kernel.name, kernel.blocks) == (call.kernel, call.blocks)
        values = list(values)

        def work() -> None:
            sizes = [Buffer(*one, "scratch").bytes for one in kernel.arguments]
            code = device_kernel(kernel.name, kernel.llvm_ir, len(sizes), kernel.target, True)
            code.launch(
                (call.blocks, 1, 1),
                (call.block, 1, 1),
                list(zip(values, sizes, strict=True)),
                shared_bytes=call.shared,
            )
            self.clock += LAUNCH

        self._put(stream, work)

    # --- graphs

    def new_graph(self, calls: Sequence[Call]) -> list[tuple[Call, list[int]]]:
        self._did("new_graph", *(call.kernel for call in calls))
        return [(call, _values(call)) for call in calls]

    def update(self, graph: list[tuple[Call, list[int]]], position: int, call: Call) -> None:
        self._did("update", position)
        assert graph[position][0].kernel == call.kernel
        graph[position] = call, _values(call)

    def replay(self, graph: list[tuple[Call, list[int]]], stream: int) -> None:
        self._did("replay")
        for call, values in graph:
            self._launch(call, values, stream)

    def end_graph(self, graph: Any) -> None:
        self._did("end_graph")


def _values(call: Call) -> list[int]:
    """A call's arguments as a driver finds them: through the array of pointers to them."""
    count = len(call.pointers)
    places = (ctypes.c_void_p * count).from_address(call.params)
    return [ctypes.c_uint64.from_address(place).value for place in places if place]


class Foreign:
    """An array of another library on the fake device, that knows on which streams it was wanted."""

    def __init__(self, driver: HostDriver, array: np.ndarray, dtype: str, offset: int = 0):
        self.session = session_on(driver, 0)
        with self.session.working():
            memory = self.session.allocate(array.nbytes + offset)
        memory.address += offset
        self.inner = DeviceArray(memory, Buffer(array.shape, dtype, "input"))
        self.memory, self.base = memory, memory.address - offset
        ctypes.memmove(memory.address, address_of(array), array.nbytes)
        self.streams: list[int | None] = []

    def __del__(self) -> None:
        self.memory.address = self.base

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.inner.__dlpack_device__()

    def __dlpack__(self, stream: int | None = None) -> Any:
        self.streams.append(stream)
        return self.inner.__dlpack__()
