"""The table of targets: one row says everything that differs between two targets.

>>> TARGETS["cuda:sm_80"].triple
'nvptx64-nvidia-cuda'
"""

from __future__ import annotations

from dataclasses import dataclass


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
    warp: int = 1  # threads that run in step
    matrix: str = ""  # families of matrix instructions
    pairs: bool = False  # whether it adds up products of bytes in pairs

    @property
    def is_gpu(self) -> bool:
        return self.family != "cpu"

    def lanes(self, bits: int) -> int:
        """Elements of this width in a vector register."""
        return max(1, self.vector_bytes * 8 // bits)


def _cpu(chip: str, triple: str, vector_bytes: int, registers: int, features: str = "") -> Target:
    """Of another machine: code for it is compiled here, and runs there."""
    return Target(
        f"cpu:{chip}", "cpu", triple, chip, features, vector_bytes, registers, units=8, rate=8e9,
        pairs=triple.startswith("x86"),
    )  # fmt: skip


def _gpu(
    family: str, chip: str, units: int, bandwidth: float, matrix: str, features: str = ""
) -> Target:
    triple = {"cuda": "nvptx64-nvidia-cuda", "hip": "amdgcn-amd-amdhsa"}[family]
    return Target(
        f"{family}:{chip}", family, triple, chip, features, units=units, rate=0.5e9,
        bandwidth=bandwidth, cache_bandwidth=3 * bandwidth / units, launch=4e-6,
        warp=64 if chip.startswith("gfx9") else 32, matrix=matrix,
    )  # fmt: skip


_ROWS = [
    Target("cpu", "cpu", "", "", rate=8e9, registers=16),
    _cpu("haswell", "x86_64-unknown-linux-gnu", 32, 16),
    _cpu("sapphirerapids", "x86_64-unknown-linux-gnu", 64, 32, "-prefer-256-bit"),
    _cpu("neoverse-n1", "aarch64-unknown-linux-gnu", 16, 32),
    _gpu("cuda", "sm_80", 6912, 1.5e12, "mma", "+ptx80"),
    _gpu("cuda", "sm_86", 10496, 0.94e12, "mma", "+ptx80"),
    _gpu("cuda", "sm_89", 16384, 1.0e12, "mma", "+ptx80"),
    _gpu("cuda", "sm_90", 16896, 3.3e12, "mma", "+ptx80"),
    _gpu("cuda", "sm_90a", 16896, 3.3e12, "mma", "+ptx80"),
    _gpu("cuda", "sm_100a", 18944, 8.0e12, "mma", "+ptx86"),
    _gpu("cuda", "sm_120", 21760, 1.8e12, "mma", "+ptx87"),
    _gpu("hip", "gfx90a", 6656, 1.6e12, "mfma"),
    _gpu("hip", "gfx942", 19456, 5.3e12, "mfma mfma3"),
    _gpu("hip", "gfx950", 16384, 8.0e12, "mfma mfma3"),
    _gpu("hip", "gfx1100", 6144, 0.96e12, "wmma"),
    _gpu("hip", "gfx1201", 4096, 0.64e12, "wmma12"),
]
TARGETS: dict[str, Target] = {row.name: row for row in _ROWS}
