"""AMD's driver, through ctypes on libamdhip64: an implementation of `gpu.Driver`.

    driver = HipDriver.open(VENDORS["hip"])
    with driver.current(0):
        stream = driver.new_stream()

`PROTOTYPES` declares each function that is used; the structures are those of ROCm 5.2 and later.
Graphs take kernels of modules since ROCm 6: 5.2 refused them (ROCm/hip issue 2450).
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Sequence
from ctypes import POINTER, c_char_p, c_float, c_int, c_size_t, c_ubyte, c_uint, c_uint64, c_void_p
from dataclasses import dataclass
from typing import Any

from ..dialect.errors import DeviceError, TargetError
from .gpu import Call, DeviceFacts, Handle, Vendor

_NOT_READY = 600  # hipErrorNotReady
_UNITS, _CACHE = 63, 19  # hipDeviceAttributeMultiprocessorCount, hipDeviceAttributeL2CacheSize
_KEPT = 4  # hipMemPoolAttrReleaseThreshold
_PINNED, _ON_DEVICE = 1, 1  # hipMemAllocationTypePinned, hipMemLocationTypeDevice
_UNTIMED = 2  # hipEventDisableTiming
_PROPERTIES = 16384  # bytes: more than the structure has in any version
_DYNAMIC = 3  # the type of an ELF file that is linked


class _Dim3(ctypes.Structure):
    _fields_ = (("x", c_uint), ("y", c_uint), ("z", c_uint))


class KernelNode(ctypes.Structure):
    """hipKernelNodeParams."""

    _fields_ = (
        ("block", _Dim3),
        ("extra", c_void_p),
        ("func", c_void_p),
        ("grid", _Dim3),
        ("params", c_void_p),
        ("shared", c_uint),
    )


class PoolProps(ctypes.Structure):
    """hipMemPoolProps."""

    _fields_ = (
        ("allocation", c_int),
        ("handles", c_int),
        ("location", c_int),
        ("device", c_int),
        ("security", c_void_p),
        ("reserved", c_ubyte * 64),
    )


_HANDLE = POINTER(c_void_p)
PROTOTYPES: dict[str, tuple[Any, ...]] = {
    "hipInit": (c_uint,),
    "hipGetDeviceCount": (POINTER(c_int),),
    "hipDeviceGetName": (c_char_p, c_int, c_int),
    "hipDeviceTotalMem": (POINTER(c_size_t), c_int),
    "hipDeviceGetAttribute": (POINTER(c_int), c_int, c_int),
    "hipSetDevice": (c_int,),
    "hipGetDevice": (POINTER(c_int),),
    "hipDeviceSynchronize": (),
    "hipMemPoolCreate": (_HANDLE, POINTER(PoolProps)),
    "hipMemPoolSetAttribute": (c_void_p, c_int, c_void_p),
    "hipMemPoolTrimTo": (c_void_p, c_size_t),
    "hipMallocFromPoolAsync": (_HANDLE, c_size_t, c_void_p, c_void_p),
    "hipFreeAsync": (c_void_p, c_void_p),
    "hipHostMalloc": (_HANDLE, c_size_t, c_uint),
    "hipMemcpyHtoDAsync": (c_void_p, c_void_p, c_size_t, c_void_p),
    "hipMemcpyDtoHAsync": (c_void_p, c_void_p, c_size_t, c_void_p),
    "hipMemcpyDtoDAsync": (c_void_p, c_void_p, c_size_t, c_void_p),
    "hipMemsetD8Async": (c_void_p, c_ubyte, c_size_t, c_void_p),
    "hipStreamCreateWithFlags": (_HANDLE, c_uint),
    "hipStreamSynchronize": (c_void_p,),
    "hipStreamWaitEvent": (c_void_p, c_void_p, c_uint),
    "hipEventCreateWithFlags": (_HANDLE, c_uint),
    "hipEventDestroy": (c_void_p,),
    "hipEventRecord": (c_void_p, c_void_p),
    "hipEventSynchronize": (c_void_p,),
    "hipEventQuery": (c_void_p,),
    "hipEventElapsedTime": (POINTER(c_float), c_void_p, c_void_p),
    "hipModuleLoadData": (_HANDLE, c_char_p),
    "hipModuleUnload": (c_void_p,),
    "hipModuleGetFunction": (_HANDLE, c_void_p, c_char_p),
    "hipModuleLaunchKernel": (c_void_p, *[c_uint] * 7, c_void_p, c_void_p, c_void_p),
    "hipGraphCreate": (_HANDLE, c_uint),
    "hipGraphDestroy": (c_void_p,),
    "hipGraphAddKernelNode": (_HANDLE, c_void_p, _HANDLE, c_size_t, POINTER(KernelNode)),
    "hipGraphInstantiate": (_HANDLE, c_void_p, _HANDLE, c_char_p, c_size_t),
    "hipGraphExecDestroy": (c_void_p,),
    "hipGraphExecKernelNodeSetParams": (c_void_p, c_void_p, POINTER(KernelNode)),
    "hipGraphLaunch": (c_void_p, c_void_p),
}


@dataclass
class _Graph:
    graph: Handle
    executable: Handle
    nodes: list[Handle]


class _Current:
    """This thread's device, and the one that it had before."""

    def __init__(self, driver: HipDriver, device: int):
        self._driver, self._device, self._before = driver, device, device

    def __enter__(self) -> None:
        before = c_int()
        self._driver.do("hipGetDevice", ctypes.byref(before))
        self._before = before.value
        if self._before != self._device:
            self._driver.do("hipSetDevice", self._device)

    def __exit__(self, *_: object) -> None:
        if self._before != self._device:
            self._driver.do("hipSetDevice", self._before)


class HipDriver:
    """`library` is what ctypes makes of libamdhip64."""

    def __init__(self, vendor: Vendor, library: Any):
        self.vendor = vendor
        self._library = library
        for name, types in PROTOTYPES.items():
            try:
                function = getattr(library, name)
            except AttributeError:
                text = f"hip: AMD's driver ({vendor.library}) is too old: it has no {name}"
                raise TargetError(text) from None
            function.argtypes, function.restype = list(types), c_int
        for name in ("hipGetErrorName", "hipGetErrorString"):
            function = getattr(library, name)
            function.argtypes, function.restype = [c_int], c_char_p
        try:
            self.do("hipInit", 0)
        except DeviceError as error:
            raise TargetError(f"hip: AMD's driver is here, but does not start: {error}") from None

    @classmethod
    def open(cls, vendor: Vendor) -> HipDriver:
        for name in vendor.files:
            try:
                return cls(vendor, ctypes.CDLL(name))
            except OSError:
                continue
        raise TargetError(f"hip: AMD's driver ({vendor.library}) is not on this machine")

    def do(self, name: str, *arguments: Any, of: str = "") -> None:
        """Call a function of the driver."""
        status = getattr(self._library, name)(*arguments)
        if status:
            raise self._failed(name, status, of)

    def _made(self, name: str, *arguments: Any, of: str = "") -> int:
        """Call a function whose first argument is where to put a handle or an address."""
        made = c_void_p()
        self.do(name, ctypes.byref(made), *arguments, of=of)
        return made.value or 0

    def _failed(self, name: str, status: int, of: str) -> DeviceError:
        word = self._library.hipGetErrorName(status) or b"?"
        said = self._library.hipGetErrorString(status) or b"?"
        about = f" ({of})" if of else ""
        return DeviceError(f"{name}{about}: {word.decode()}: {said.decode()}")

    # --- devices

    def devices(self) -> int:
        count = c_int()
        status = self._library.hipGetDeviceCount(ctypes.byref(count))
        return 0 if status else count.value  # without a device the status is an error

    def facts(self, device: int) -> DeviceFacts:
        name, memory = ctypes.create_string_buffer(256), c_size_t()
        self.do("hipDeviceGetName", name, 256, device)
        self.do("hipDeviceTotalMem", ctypes.byref(memory), device)
        units, cache = (self._attribute(kind, device) for kind in (_UNITS, _CACHE))
        return DeviceFacts(name.value.decode(), self._chip(device), units, memory.value, cache)

    def _attribute(self, kind: int, device: int) -> int:
        value = c_int()
        self.do("hipDeviceGetAttribute", ctypes.byref(value), kind, device)
        return value.value

    def _chip(self, device: int) -> str:
        """The chip's name: the one text of its kind in the properties, whatever their layout.

        ROCm 6 moved the fields and gave the function a new name.
        """
        properties = ctypes.create_string_buffer(_PROPERTIES)
        for name in ("hipGetDevicePropertiesR0600", "hipGetDeviceProperties"):
            function = getattr(self._library, name, None)
            if function is not None:
                function.argtypes, function.restype = [c_char_p, c_int], c_int
                self.do(name, properties, device)
                break
        found = re.search(rb"gfx[0-9a-f]{3,5}(?=[:\0])", properties.raw)
        return found[0].decode() if found else "an unknown chip"

    def current(self, device: int) -> _Current:
        return _Current(self, device)

    def wait_device(self) -> None:
        self.do("hipDeviceSynchronize")

    # --- memory

    def new_pool(self, device: int, kept: int) -> Handle:
        wanted = PoolProps(allocation=_PINNED, location=_ON_DEVICE, device=device)
        pool = self._made("hipMemPoolCreate", ctypes.byref(wanted))
        threshold = c_uint64(kept)
        self.do("hipMemPoolSetAttribute", pool, _KEPT, ctypes.byref(threshold))
        return pool

    def allocate(self, pool: Handle, size: int, stream: Handle) -> int:
        return self._made("hipMallocFromPoolAsync", size, pool, stream, of=f"{size} bytes")

    def release(self, address: int, stream: Handle) -> None:
        self.do("hipFreeAsync", address, stream)

    def trim(self, pool: Handle) -> None:
        self.do("hipMemPoolTrimTo", pool, 0)

    def new_pinned(self, size: int) -> int:
        return self._made("hipHostMalloc", size, 0, of=f"{size} bytes")

    def upload(self, address: int, source: int, size: int, stream: Handle) -> None:
        self.do("hipMemcpyHtoDAsync", address, source, size, stream)

    def download(self, target: int, address: int, size: int, stream: Handle) -> None:
        self.do("hipMemcpyDtoHAsync", target, address, size, stream)

    def copy(self, target: int, source: int, size: int, stream: Handle) -> None:
        self.do("hipMemcpyDtoDAsync", target, source, size, stream)

    def fill(self, address: int, byte: int, size: int, stream: Handle) -> None:
        self.do("hipMemsetD8Async", address, byte, size, stream)

    # --- streams and events

    def new_stream(self) -> Handle:
        return self._made("hipStreamCreateWithFlags", 0)

    def wait_stream(self, stream: Handle) -> None:
        self.do("hipStreamSynchronize", stream)

    def new_event(self, timed: bool) -> Handle:
        return self._made("hipEventCreateWithFlags", 0 if timed else _UNTIMED)

    def end_event(self, event: Handle) -> None:
        self.do("hipEventDestroy", event)

    def record(self, event: Handle, stream: Handle) -> None:
        self.do("hipEventRecord", event, stream)

    def wait_event(self, event: Handle) -> None:
        self.do("hipEventSynchronize", event)

    def is_done(self, event: Handle) -> bool:
        status = self._library.hipEventQuery(event)
        if status not in (0, _NOT_READY):
            raise self._failed("hipEventQuery", status, "")
        return status == 0

    def stream_waits(self, stream: Handle, event: Handle) -> None:
        self.do("hipStreamWaitEvent", stream, event, 0)

    def seconds(self, first: Handle, last: Handle) -> float:
        taken = c_float()
        self.do("hipEventElapsedTime", ctypes.byref(taken), first, last)
        return taken.value * 1e-3

    # --- code

    def load(self, image: bytes, chip: str, kernel: str) -> Handle:
        """A code object as it is; an object file is linked first."""
        if int.from_bytes(image[16:18], "little") != _DYNAMIC:
            from .toolchain import link_amdgpu

            image = link_amdgpu(image)
        return self._made("hipModuleLoadData", image, of=f"kernel {kernel}")

    def unload(self, module: Handle) -> None:
        self.do("hipModuleUnload", module)

    def function(self, module: Handle, kernel: str) -> Handle:
        return self._made("hipModuleGetFunction", module, kernel.encode(), of=f"kernel {kernel}")

    def allow_shared(self, function: Handle, size: int, kernel: str) -> None:
        """Nothing: a launch may ask for all that a compute unit has.

        hipFuncSetAttribute takes functions of the host alone, which a module's are not.
        """

    def launch(self, call: Call, stream: Handle) -> None:
        self.do(
            "hipModuleLaunchKernel", call.function, call.blocks, 1, 1, call.block, 1, 1,
            call.shared, stream, call.params, None, of=f"kernel {call.kernel}",
        )  # fmt: skip

    # --- graphs

    def new_graph(self, calls: Sequence[Call]) -> _Graph:
        graph = self._made("hipGraphCreate", 0)
        nodes: list[Handle] = []
        for call in calls:
            before = (c_void_p * 1)(*nodes[-1:])
            nodes.append(
                self._made(
                    "hipGraphAddKernelNode", graph, before if nodes else None, len(nodes[-1:]),
                    ctypes.byref(_node(call)), of=f"kernel {call.kernel}",
                )
            )  # fmt: skip
        return _Graph(graph, self._made("hipGraphInstantiate", graph, None, None, 0), nodes)

    def update(self, graph: _Graph, position: int, call: Call) -> None:
        node = ctypes.byref(_node(call))
        self.do(
            "hipGraphExecKernelNodeSetParams", graph.executable, graph.nodes[position], node,
            of=f"kernel {call.kernel}",
        )  # fmt: skip

    def replay(self, graph: _Graph, stream: Handle) -> None:
        self.do("hipGraphLaunch", graph.executable, stream)

    def end_graph(self, graph: _Graph) -> None:
        self.do("hipGraphExecDestroy", graph.executable)
        self.do("hipGraphDestroy", graph.graph)


def _node(call: Call) -> KernelNode:
    return KernelNode(
        block=_Dim3(call.block, 1, 1),
        func=call.function,
        grid=_Dim3(call.blocks, 1, 1),
        params=call.params,
        shared=call.shared,
    )
