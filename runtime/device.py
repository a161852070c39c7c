"""What machine this is, as a target and for reports, and what is missing to run on another."""

from __future__ import annotations

import difflib
import os
import platform
from dataclasses import dataclass, replace
from functools import cache

from ..dialect.errors import TargetError
from ..passes.targets import TARGETS, Target


@dataclass(frozen=True)
class CpuIdentity:
    """The CPU that this process runs on. Two equal ones may share tuning results."""

    model: str  # as the operating system names it
    architecture: str  # LLVM's name of the core: "znver4", "sapphirerapids"
    features: tuple[str, ...]  # LLVM's names of what it can do, sorted


@cache
def cpu_identity() -> CpuIdentity:
    """This machine's CPU; without LLVM, neither the core's name nor its features are known."""
    model = platform.processor() or platform.machine()
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            model = next(
                (x.split(":")[1].strip() for x in file if x.startswith("model name")), model
            )
    except OSError:
        pass
    try:
        import llvmlite.binding as llvm  # a saved executable runs without it
    except ImportError:
        return CpuIdentity(model, platform.machine(), ())
    features = (name for name, has in llvm.get_host_cpu_features().items() if has)
    return CpuIdentity(model, llvm.get_host_cpu_name(), tuple(sorted(features)))


def no_launch(target: str, what: str = "launch kernels") -> TargetError:
    """The error of what this process cannot do on a target, in one sentence."""
    kind = target.split(":")[0]
    if kind == "cpu":
        return TargetError(f"{target}: code for another CPU; to run here, compile for 'cpu'")
    from .gpu import open_driver

    try:
        open_driver(target)
    except TargetError as error:
        return error
    return TargetError(f"{target}: dodeca does not {what} on a GPU yet")


def find_target(name: str) -> Target:
    """The row of a target; TargetError lists the known ones.

    "cuda" and "hip" alone are the device that is there.
    """
    if name in ("cuda", "hip"):
        from .gpu import device_target

        name = device_target(name)
    if name in TARGETS:
        return _host() if name == "cpu" else TARGETS[name]
    known = ", ".join(TARGETS)
    near = difflib.get_close_matches(name, TARGETS, 1, cutoff=0.4)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise TargetError(f"unknown target {name!r}{hint} (known: {known})")


@cache
def _host() -> Target:
    """The CPU row with this machine's triple, features, vector width and cores."""
    import llvmlite.binding as llvm  # a saved executable runs without it

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    have = llvm.get_host_cpu_features()
    wide, middle = have.get("avx512f", False), have.get("avx2", False)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    features = have.flatten() + (",-prefer-256-bit" if wide else "")
    return replace(
        TARGETS["cpu"],
        triple=llvm.get_process_triple(),
        chip=llvm.get_host_cpu_name(),
        features=features,
        vector_bytes=64 if wide else 32 if middle else 16,
        registers=32 if wide else 16,
        units=cores or 1,
        pairs=middle,
    )
