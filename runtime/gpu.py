"""The GPUs of this machine, of two vendors through one interface.

    driver = open_driver("cuda")        # TargetError says in one sentence what is missing
    driver.facts(0)                     # DeviceFacts(name="NVIDIA H100 ...", chip="sm_90", ...)
    device_for(driver, "cuda:sm_90a")   # 0, the first device that runs such code
    device_target("cuda")               # "cuda:sm_90a", the best target for the device that is here

What differs between vendors stands in a row of `VENDORS` and in the row's implementation of
`Driver` (`gpu_cuda.py`, `gpu_hip.py`); nothing else asks who made the device. Handles are plain
integers, and all that is asynchronous is in the order of a stream.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any, Protocol

from ..dialect.errors import TargetError
from ..passes.targets import TARGETS

Handle = int  # of a pool, a stream, an event, a module or a function


@dataclass(frozen=True)
class Vendor:
    """What differs between two makers of GPUs, apart from the calls themselves."""

    family: str  # of targets: "cuda", "hip"
    name: str
    library: str  # of the driver, as users know it
    files: tuple[str, ...]  # the names that the library may have
    package: str  # of Python, that the implementation needs; "" for none
    extra: str  # of dodeca, that installs it
    implementation: tuple[str, str]  # module and class
    dlpack: int  # DLPack's type of its devices
    runs: Callable[[str, str, bool], bool]  # code's chip, device's chip, whether it is still text


@dataclass(frozen=True)
class DeviceFacts:
    """A device. `chip` is as in targets: "sm_90", "gfx942"."""

    name: str
    chip: str
    units: int  # multiprocessors, compute units
    memory: int  # bytes
    cache: int  # bytes of the last cache


# --- what runs where ----------------------------------------------------------------------------


def _cuda_version(chip: str) -> tuple[int, str]:
    found = re.fullmatch(r"sm_(\d+)([a-z]?)", chip)
    return (int(found[1]), found[2]) if found else (0, "")


def _cuda_runs(code: str, device: str, text: bool) -> bool:
    """PTX runs on what is newer, a cubin within its generation; code for "a" on that chip alone."""
    (wants, variant), (has, _) = _cuda_version(code), _cuda_version(device)
    if variant == "a":
        return wants == has
    same = wants // 10 == has // 10
    return 0 < wants <= has and (same or (text and variant == ""))


def _hip_runs(code: str, device: str, text: bool) -> bool:
    return code == device


VENDORS: dict[str, Vendor] = {
    row.family: row
    for row in (
        Vendor(
            "cuda", "NVIDIA", "libcuda", ("libcuda.so.1",), "cuda.bindings.driver", "cuda",
            ("gpu_cuda", "CudaDriver"), 2, _cuda_runs,
        ),
        Vendor(
            "hip", "AMD", "libamdhip64",
            tuple(f"libamdhip64.so{end}" for end in ("", ".7", ".6", ".5")), "", "hip",
            ("gpu_hip", "HipDriver"), 10, _hip_runs,
        ),
    )
}  # fmt: skip


# --- the interface ------------------------------------------------------------------------------


class Call:
    """A kernel's launch as drivers take it: an array of pointers to arguments, each a pointer.

    A driver copies the values when it is called, so they may change right after.
    """

    def __init__(
        self, kernel: str, function: Handle, blocks: int, block: int, shared: int, count: int
    ):
        self.kernel, self.function = kernel, function
        self.blocks, self.block, self.shared = blocks, block, shared
        self.pointers = (ctypes.c_uint64 * max(count, 1))()
        start = ctypes.addressof(self.pointers)
        self._params = (ctypes.c_void_p * max(count, 1))(*(start + 8 * i for i in range(count)))
        self.params = ctypes.addressof(self._params)  # what a driver calls void **kernelParams


class Driver(Protocol):
    """A vendor's driver. Every method but the first two needs a current device.

    DeviceError: the call failed; its message names the driver's function and says what it was for.
    """

    vendor: Vendor

    def devices(self) -> int: ...
    def facts(self, device: int) -> DeviceFacts: ...
    def current(self, device: int) -> AbstractContextManager[Any]:
        """Makes a device this thread's until the end of a `with`; what was there before returns."""
        ...

    def wait_device(self) -> None: ...

    # memory: of the device in the order of a stream, of the host pinned
    def new_pool(self, device: int, kept: int) -> Handle:
        """A pool of the device's memory that keeps so many unused bytes for later."""
        ...

    def allocate(self, pool: Handle, size: int, stream: Handle) -> int: ...
    def release(self, address: int, stream: Handle) -> None: ...
    def trim(self, pool: Handle) -> None: ...
    def new_pinned(self, size: int) -> int: ...
    def upload(self, address: int, source: int, size: int, stream: Handle) -> None: ...
    def download(self, target: int, address: int, size: int, stream: Handle) -> None: ...
    def copy(self, target: int, source: int, size: int, stream: Handle) -> None: ...
    def fill(self, address: int, byte: int, size: int, stream: Handle) -> None: ...

    # streams and events
    def new_stream(self) -> Handle:
        """A stream that waits for the default stream's earlier work, and whose later work waits
        for it: so arrays of libraries that use the default stream may come and go."""
        ...

    def wait_stream(self, stream: Handle) -> None: ...
    def new_event(self, timed: bool) -> Handle: ...
    def end_event(self, event: Handle) -> None: ...
    def record(self, event: Handle, stream: Handle) -> None: ...
    def wait_event(self, event: Handle) -> None: ...
    def is_done(self, event: Handle) -> bool: ...
    def stream_waits(self, stream: Handle, event: Handle) -> None: ...
    def seconds(self, first: Handle, last: Handle) -> float: ...

    # code
    def load(self, image: bytes, chip: str, kernel: str) -> Handle:
        """The module of a kernel's binary, as `Kernel.binary` has it, or already linked."""
        ...

    def unload(self, module: Handle) -> None: ...
    def function(self, module: Handle, kernel: str) -> Handle: ...
    def allow_shared(self, function: Handle, size: int, kernel: str) -> None: ...
    def launch(self, call: Call, stream: Handle) -> None: ...

    # graphs
    def new_graph(self, calls: Sequence[Call]) -> Any:
        """Launches after each other, as one thing to replay."""
        ...

    def update(self, graph: Any, position: int, call: Call) -> None:
        """Give a launch of a graph its call's present arguments, from the next replay on."""
        ...

    def replay(self, graph: Any, stream: Handle) -> None: ...
    def end_graph(self, graph: Any) -> None: ...


# --- finding them -------------------------------------------------------------------------------


def open_driver(target: str) -> Driver:
    """The driver for a target or family; TargetError says in one sentence what is missing."""
    vendor = VENDORS.get(target.split(":")[0])
    if vendor is None:
        raise TargetError(f"no device runs the target {target!r}")
    if not any(_loads(name) for name in vendor.files):
        chips = ", ".join(row.name for row in TARGETS.values() if row.family == vendor.family)
        instead = "use simulate(...) to run it on this CPU"
        if target == vendor.family:
            instead = f"to compile for a GPU that is not here, name it ({chips})"
        missing = f"{target}: {vendor.name}'s driver ({vendor.library}) is not on this machine"
        raise TargetError(f"{missing}; {instead}")
    return _opened(vendor.family)


def _loads(library: str) -> bool:
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True


@cache
def _opened(family: str) -> Driver:
    """The one driver of a family in this process."""
    vendor = VENDORS[family]
    if vendor.package:
        try:
            import_module(vendor.package)
        except ImportError as error:
            name = ".".join(vendor.package.split(".")[:2]).replace(".", "-")
            text = f"{family}: the Python package {name} is missing: "
            raise TargetError(f"{text}pip install 'dodeca[{vendor.extra}]'") from error
    module, name = vendor.implementation
    driver: Driver = getattr(import_module(f".{module}", __package__), name).open(vendor)
    if not driver.devices():
        raise TargetError(f"{family}: {vendor.name}'s driver is here, but it finds no device")
    return driver


def chip_of(target: str) -> str:
    """The chip of a target: "sm_90a" of "cuda:sm_90a"."""
    return target.partition(":")[2]


def device_for(driver: Driver, target: str, texts: bool = True) -> int:
    """The first device that runs code for a target; `texts`: none of it is assembled yet."""
    chip = chip_of(target)
    devices = [driver.facts(i) for i in range(driver.devices())]
    for number, facts in enumerate(devices):
        if driver.vendor.runs(chip, facts.chip, texts):
            return number
    here = ", ".join(f"{facts.name} ({facts.chip})" for facts in devices)
    best = best_target(driver.vendor, devices[0].chip) if devices else None
    hint = f"; compile for {best!r}" if best else ""
    raise TargetError(f"{target}: code for {chip} does not run on this machine's {here}{hint}")


def best_target(vendor: Vendor, chip: str) -> str | None:
    """The target whose code runs on a chip and knows most of it; None if there is none."""
    rows = [row for row in TARGETS.values() if row.family == vendor.family]
    able = [row for row in rows if vendor.runs(row.chip, chip, True)]
    return max(able, key=lambda row: _cuda_version(row.chip)).name if able else None


def device_target(family: str) -> str:
    """The target for the first device of a family; TargetError if there is no such device."""
    driver = open_driver(family)
    facts = driver.facts(0)
    best = best_target(driver.vendor, facts.chip)
    if best is None:
        known = ", ".join(row.chip for row in TARGETS.values() if row.family == family)
        text = f"{family}: dodeca makes no code for this machine's {facts.name} ({facts.chip})"
        raise TargetError(f"{text}; it knows {known}")
    return best
