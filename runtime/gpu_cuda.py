"""NVIDIA's driver, through the package cuda-bindings: an implementation of `gpu.Driver`.

    driver = CudaDriver.open(VENDORS["cuda"])
    with driver.current(0):
        stream = driver.new_stream()

Each function of the package gives a status and values. A device's primary context is used, which is
the one that PyTorch and CuPy use, so arrays need no translation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from ..dialect.errors import CompileError, DeviceError, TargetError
from .gpu import Call, DeviceFacts, Handle, Vendor

_LOG = 8192  # bytes of what the driver's assembler says
_PLAIN_SHARED = 48 << 10  # bytes of dynamic shared memory that need no attribute


@dataclass
class _Graph:
    graph: Handle
    executable: Handle
    nodes: list[Any]


class _Current:
    """A context on this thread's stack of contexts."""

    def __init__(self, driver: CudaDriver, context: Handle):
        self._driver, self._context = driver, context

    def __enter__(self) -> None:
        self._driver.do("cuCtxPushCurrent", self._context)

    def __exit__(self, *_: object) -> None:
        self._driver.do("cuCtxPopCurrent")


class CudaDriver:
    """`cuda` is the module cuda.bindings.driver."""

    def __init__(self, vendor: Vendor, cuda: Any):
        self.vendor = vendor
        self._cuda = cuda
        self._success = cuda.CUresult.CUDA_SUCCESS
        self._contexts: dict[int, Handle] = {}
        try:
            self.do("cuInit", 0)
        except DeviceError as error:
            text = "cuda: NVIDIA's driver is here, but does not start"
            raise TargetError(f"{text}: {error}") from None

    @classmethod
    def open(cls, vendor: Vendor) -> CudaDriver:
        return cls(vendor, import_module(vendor.package))

    def do(self, name: str, *arguments: Any, of: str = "") -> Any:
        """Call a function of the driver: its value, if it has one."""
        status, *values = getattr(self._cuda, name)(*arguments)
        if status != self._success:
            raise self._failed(name, status, of)
        return values[0] if values else None

    def _failed(self, name: str, status: Any, of: str) -> DeviceError:
        texts = (self._cuda.cuGetErrorName(status)[1], self._cuda.cuGetErrorString(status)[1])
        words = [text.decode() if isinstance(text, bytes) else str(text) for text in texts]
        about = f" ({of})" if of else ""
        return DeviceError(f"{name}{about}: {words[0]}: {words[1]}")

    # --- devices

    def devices(self) -> int:
        return int(self.do("cuDeviceGetCount"))

    def facts(self, device: int) -> DeviceFacts:
        handle, cuda = self.do("cuDeviceGet", device), self._cuda
        kinds = cuda.CUdevice_attribute

        def attribute(name: str) -> int:
            kind = getattr(kinds, f"CU_DEVICE_ATTRIBUTE_{name}")
            return int(self.do("cuDeviceGetAttribute", kind, handle))

        major = attribute("COMPUTE_CAPABILITY_MAJOR")
        return DeviceFacts(
            name=self.do("cuDeviceGetName", 256, handle).split(b"\0")[0].decode(),
            chip=f"sm_{major}{attribute('COMPUTE_CAPABILITY_MINOR')}",
            units=attribute("MULTIPROCESSOR_COUNT"),
            memory=int(self.do("cuDeviceTotalMem", handle)),
            cache=attribute("L2_CACHE_SIZE"),
        )

    def current(self, device: int) -> _Current:
        if device not in self._contexts:
            handle = self.do("cuDeviceGet", device)
            self._contexts[device] = int(self.do("cuDevicePrimaryCtxRetain", handle))
        return _Current(self, self._contexts[device])

    def wait_device(self) -> None:
        self.do("cuCtxSynchronize")

    # --- memory

    def new_pool(self, device: int, kept: int) -> Handle:
        cuda = self._cuda
        wanted = cuda.CUmemPoolProps()
        wanted.allocType = cuda.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        wanted.handleTypes = cuda.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_NONE
        wanted.location.type = cuda.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        wanted.location.id = device
        pool = int(self.do("cuMemPoolCreate", wanted))
        threshold = cuda.CUmemPool_attribute.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD
        self.do("cuMemPoolSetAttribute", pool, threshold, cuda.cuuint64_t(kept))
        return pool

    def allocate(self, pool: Handle, size: int, stream: Handle) -> int:
        return int(self.do("cuMemAllocFromPoolAsync", size, pool, stream, of=f"{size} bytes"))

    def release(self, address: int, stream: Handle) -> None:
        self.do("cuMemFreeAsync", address, stream)

    def trim(self, pool: Handle) -> None:
        self.do("cuMemPoolTrimTo", pool, 0)

    def new_pinned(self, size: int) -> int:
        return int(self.do("cuMemHostAlloc", size, 0, of=f"{size} bytes"))

    def upload(self, address: int, source: int, size: int, stream: Handle) -> None:
        self.do("cuMemcpyHtoDAsync", address, source, size, stream)

    def download(self, target: int, address: int, size: int, stream: Handle) -> None:
        self.do("cuMemcpyDtoHAsync", target, address, size, stream)

    def copy(self, target: int, source: int, size: int, stream: Handle) -> None:
        self.do("cuMemcpyDtoDAsync", target, source, size, stream)

    def fill(self, address: int, byte: int, size: int, stream: Handle) -> None:
        self.do("cuMemsetD8Async", address, byte, size, stream)

    # --- streams and events

    def new_stream(self) -> Handle:
        return int(self.do("cuStreamCreate", self._cuda.CUstream_flags.CU_STREAM_DEFAULT.value))

    def wait_stream(self, stream: Handle) -> None:
        self.do("cuStreamSynchronize", stream)

    def new_event(self, timed: bool) -> Handle:
        flags = self._cuda.CUevent_flags
        chosen = flags.CU_EVENT_DEFAULT if timed else flags.CU_EVENT_DISABLE_TIMING
        return int(self.do("cuEventCreate", chosen.value))

    def end_event(self, event: Handle) -> None:
        self.do("cuEventDestroy", event)

    def record(self, event: Handle, stream: Handle) -> None:
        self.do("cuEventRecord", event, stream)

    def wait_event(self, event: Handle) -> None:
        self.do("cuEventSynchronize", event)

    def is_done(self, event: Handle) -> bool:
        (status,) = self._cuda.cuEventQuery(event)
        if status == self._cuda.CUresult.CUDA_ERROR_NOT_READY:
            return False
        if status != self._success:
            raise self._failed("cuEventQuery", status, "")
        return True

    def stream_waits(self, stream: Handle, event: Handle) -> None:
        self.do("cuStreamWaitEvent", stream, event, 0)

    def seconds(self, first: Handle, last: Handle) -> float:
        return float(self.do("cuEventElapsedTime", first, last)) * 1e-3

    # --- code

    def load(self, image: bytes, chip: str, kernel: str) -> Handle:
        """A cubin as it is; PTX through the driver's assembler, or ptxas if that is too old."""
        if image[:4] == b"\x7fELF":
            return int(self.do("cuModuleLoadData", image, of=f"kernel {kernel}"))
        cuda, options = self._cuda, self._cuda.CUjit_option
        log = bytearray(_LOG)
        kinds = [options.CU_JIT_ERROR_LOG_BUFFER, options.CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES]
        values = [log, _LOG]
        status, module = cuda.cuModuleLoadDataEx(image + b"\0", len(kinds), kinds, values)
        if status == cuda.CUresult.CUDA_ERROR_UNSUPPORTED_PTX_VERSION:
            return self._assembled(image, chip, kernel)
        if status != self._success:
            said = log.partition(b"\0")[0].decode(errors="replace").strip()
            error = self._failed("cuModuleLoadDataEx", status, f"kernel {kernel}")
            raise DeviceError(f"{error}\n{said}".rstrip())
        return int(module)

    def _assembled(self, image: bytes, chip: str, kernel: str) -> Handle:
        from .toolchain import assemble_ptx

        try:
            cubin, _ = assemble_ptx(image.decode(), chip)
        except (TargetError, CompileError) as error:
            text = f"kernel {kernel}: this driver is too old for its PTX; install a newer driver"
            raise DeviceError(f"{text} ({error})") from error
        return int(self.do("cuModuleLoadData", cubin, of=f"kernel {kernel}"))

    def unload(self, module: Handle) -> None:
        self.do("cuModuleUnload", module)

    def function(self, module: Handle, kernel: str) -> Handle:
        found = self.do("cuModuleGetFunction", module, kernel.encode(), of=f"kernel {kernel}")
        return int(found)

    def allow_shared(self, function: Handle, size: int, kernel: str) -> None:
        if size > _PLAIN_SHARED:
            kinds = self._cuda.CUfunction_attribute
            kind = kinds.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            about = f"kernel {kernel}, {size} bytes of shared memory"
            self.do("cuFuncSetAttribute", function, kind, size, of=about)

    def launch(self, call: Call, stream: Handle) -> None:
        self.do(
            "cuLaunchKernel", call.function, call.blocks, 1, 1, call.block, 1, 1, call.shared,
            stream, call.params, 0, of=f"kernel {call.kernel}",
        )  # fmt: skip

    # --- graphs

    def new_graph(self, calls: Sequence[Call]) -> _Graph:
        graph = self.do("cuGraphCreate", 0)
        nodes: list[Any] = []
        for call in calls:
            about = f"kernel {call.kernel}"
            before, node = nodes[-1:], self._node(call)
            nodes.append(
                self.do("cuGraphAddKernelNode", graph, before, len(before), node, of=about)
            )
        return _Graph(int(graph), int(self.do("cuGraphInstantiate", graph, 0)), nodes)

    def _node(self, call: Call) -> Any:
        node = self._cuda.CUDA_KERNEL_NODE_PARAMS()
        node.func = self._cuda.CUfunction(call.function)
        node.gridDimX, node.gridDimY, node.gridDimZ = call.blocks, 1, 1
        node.blockDimX, node.blockDimY, node.blockDimZ = call.block, 1, 1
        node.sharedMemBytes = call.shared
        node.kernelParams = call.params
        node.extra = 0
        return node

    def update(self, graph: _Graph, position: int, call: Call) -> None:
        node = self._node(call)
        self.do(
            "cuGraphExecKernelNodeSetParams", graph.executable, graph.nodes[position], node,
            of=f"kernel {call.kernel}",
        )  # fmt: skip

    def replay(self, graph: _Graph, stream: Handle) -> None:
        self.do("cuGraphLaunch", graph.executable, stream)

    def end_graph(self, graph: _Graph) -> None:
        self.do("cuGraphExecDestroy", graph.executable)
        self.do("cuGraphDestroy", graph.graph)
