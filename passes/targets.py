"""The table of targets: one row says everything that differs between two targets.

>>> find_target("cuda:sm_80").triple
'nvptx64-nvidia-cuda'
"""

from __future__ import annotations

import difflib
import os
from dataclasses import dataclass, replace
from functools import cache

import llvmlite.binding as llvm

from ..dialect.errors import TargetError


@dataclass(frozen=True)
class Target:
    """A machine to compile for. Rates are rough and per unit; they rank candidates, no more."""

    name: str
    family: str  # "cpu", "cuda" or "hip"
    triple: str
    chip: str
    features: str = ""
    vector_bytes: int = 4  # width of a vector register of one program
    registers: int = 16  # vector registers of one program
    units: int = 1  # programs that run at the same time
    rate: float = 1e9  # vector instructions a second of one unit
    bandwidth: float = 20e9  # bytes a second from memory
    cache_bandwidth: float = 30e9  # bytes a second from the last cache, for one unit
    near: float = 256e3  # bytes that stay in a unit's own cache
    cache: float = 16e6  # bytes that stay in the last cache
    launch: float = 2e-6  # seconds to start a kernel
    block: int = 1  # threads of a block

    @property
    def is_gpu(self) -> bool:
        return self.family != "cpu"

    def lanes(self, bits: int) -> int:
        """Elements of this width in a vector register."""
        return max(1, self.vector_bytes * 8 // bits)


def _gpu(family: str, chip: str, units: int, bandwidth: float, features: str = "") -> Target:
    triple = {"cuda": "nvptx64-nvidia-cuda", "hip": "amdgcn-amd-amdhsa"}[family]
    return Target(
        f"{family}:{chip}", family, triple, chip, features, units=units, rate=0.5e9,
        bandwidth=bandwidth, launch=4e-6, block=128,
    )  # fmt: skip


_ROWS = [
    Target("cpu", "cpu", "", "", rate=8e9, registers=16),
    _gpu("cuda", "sm_80", 6912, 1.5e12, "+ptx80"),
    _gpu("cuda", "sm_90", 16896, 3.3e12, "+ptx80"),
    _gpu("hip", "gfx942", 19456, 5.3e12),
    _gpu("hip", "gfx1100", 6144, 0.96e12),
]
TARGETS: dict[str, Target] = {row.name: row for row in _ROWS}


def find_target(name: str) -> Target:
    """The row of a target; TargetError lists the known ones."""
    if name in TARGETS:
        return _host() if name == "cpu" else TARGETS[name]
    known = ", ".join(TARGETS)
    if name in ("cuda", "hip"):
        driver = {"cuda": "libcuda", "hip": "libamdhip64"}[name]
        raise TargetError(
            f"target {name!r} means the device that is there, but no driver ({driver}) was found; "
            f"name a chip instead: {known}"
        )
    near = difflib.get_close_matches(name, TARGETS, 1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise TargetError(f"unknown target {name!r}{hint} (known: {known})")


@cache
def _host() -> Target:
    """The CPU row with this machine's triple, features, vector width and cores."""
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
    )
