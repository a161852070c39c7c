"""What machine this is, and what is missing to run on another: for reports and error messages."""

from __future__ import annotations

import ctypes
import platform
from dataclasses import dataclass
from functools import cache

import llvmlite.binding as llvm

from ..dialect.errors import TargetError

_DRIVERS = {"cuda": "libcuda.so.1", "hip": "libamdhip64.so"}
_VENDORS = {"cuda": "NVIDIA", "hip": "AMD"}


@dataclass(frozen=True)
class CpuIdentity:
    """The CPU that this process runs on. Two equal ones may share tuning results."""

    model: str  # as the operating system names it
    architecture: str  # LLVM's name of the core: "znver4", "sapphirerapids"
    features: tuple[str, ...]  # LLVM's names of what it can do, sorted


@cache
def cpu_identity() -> CpuIdentity:
    """This machine's CPU."""
    model = platform.processor() or platform.machine()
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            model = next(
                (x.split(":")[1].strip() for x in file if x.startswith("model name")), model
            )
    except OSError:
        pass
    features = (name for name, has in llvm.get_host_cpu_features().items() if has)
    return CpuIdentity(model, llvm.get_host_cpu_name(), tuple(sorted(features)))


def no_launch(target: str) -> TargetError:
    """The error of a call that this process cannot carry out on a GPU target, in one sentence."""
    kind = target.split(":")[0]
    if kind not in _DRIVERS:
        return TargetError(f"no device runs the target {target!r}")
    driver, instead = _DRIVERS[kind], "use simulate(...) to run it on this CPU"
    try:
        ctypes.CDLL(driver)
    except OSError:
        vendor = _VENDORS[kind]
        return TargetError(
            f"{target}: {vendor}'s driver ({driver}) is not on this machine; {instead}"
        )
    return TargetError(f"{target}: dodeca does not launch kernels on a GPU yet; {instead}")
