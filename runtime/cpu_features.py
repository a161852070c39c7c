"""Which features of a CPU compiled code relies on, and which of them a machine lacks.

>>> missing_features(CpuNeeds("x86_64", "znver4", ("avx2", "avx512f")))   # on a CPU without AVX-512
['avx512f']

Names are LLVM's. What this machine has is read from Linux, without LLVM, so that a saved executable
can be checked where there is no compiler.
"""

from __future__ import annotations

import platform
from dataclasses import dataclass
from functools import cache

# Features that code generation never uses by itself: instructions for systems, secrets and random
# numbers, and such that LLVM emits for intrinsics alone.
_NEVER_USED = {
    "64bit", "adx", "aes", "clflushopt", "clwb", "clzero", "cmpccxadd", "crc32", "enqcmd",
    "fsgsbase", "fxsr", "hreset", "invpcid", "kl", "lwp", "movdir64b", "movdiri", "movrs",
    "mwaitx", "pclmul", "pconfig", "pku", "prefetchi", "prfchw", "ptwrite", "raoint", "rdpid",
    "rdpru", "rdrnd", "rdseed", "rtm", "serialize", "sgx", "sha", "sha512", "shstk", "sm3", "sm4",
    "tsxldtrk", "uintr", "usermsr", "vaes", "vpclmulqdq", "waitpkg", "wbnoinvd", "widekl",
    "xsave", "xsavec", "xsaveopt", "xsaves", "amx-avx512", "amx-bf16", "amx-complex", "amx-fp16",
    "amx-fp8", "amx-int8", "amx-movrs", "amx-tf32", "amx-tile", "amx-transpose",
}  # fmt: skip
_X86 = {  # LLVM's name: Linux's, where it is not the same with "_" for "." and "-"
    "sse3": "pni",
    "bmi": "bmi1",
    "lzcnt": "abm",
    "sahf": "lahf_lm",
    "avx512vbmi2": "avx512_vbmi2",
    "avx512vnni": "avx512_vnni",
    "avx512bitalg": "avx512_bitalg",
    "avx512vpopcntdq": "avx512_vpopcntdq",
    "avx512vp2intersect": "avx512_vp2intersect",
    "avx512bf16": "avx512_bf16",
    "avx512fp16": "avx512_fp16",
    "avxvnni": "avx_vnni",
    "avxvnniint8": "avx_vnni_int8",
    "avxvnniint16": "avx_vnni_int16",
    "avxifma": "avx_ifma",
    "avxneconvert": "avx_ne_convert",
}
_ARM = {
    "fp-armv8": "fp",
    "neon": "asimd",
    "fullfp16": "asimdhp",
    "dotprod": "asimddp",
    "lse": "atomics",
    "rdm": "asimdrdm",
    "rcpc": "lrcpc",
    "fp16fml": "asimdfhm",
    "complxnum": "fcma",
    "jsconv": "jscvt",
}


@dataclass(frozen=True)
class CpuNeeds:
    """The kind of CPU that code was compiled for, and what it must be able to do."""

    architecture: str  # "x86_64"
    core: str  # LLVM's name of the core that the code is tuned for; others may run it
    features: tuple[str, ...]  # LLVM's names, sorted


def this_architecture() -> str:
    """This machine's architecture, by one name for each."""
    machine = platform.machine()
    return {"AMD64": "x86_64", "arm64": "aarch64"}.get(machine, machine)


@cache
def host_flags() -> frozenset[str]:
    """What Linux says that this CPU can do; empty if it does not say."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            for line in file:
                name, _, flags = line.partition(":")
                if name.strip() in ("flags", "Features"):
                    return frozenset(flags.split())
    except OSError:
        pass
    return frozenset()


def linux_flag(feature: str) -> str:
    """Linux's name of a feature that LLVM names."""
    known = _X86 if this_architecture() == "x86_64" else _ARM
    return known.get(feature, feature.replace(".", "_").replace("-", "_"))


def host_needs() -> CpuNeeds:
    """What code compiled for this machine relies on. What Linux does not know cannot be checked."""
    import llvmlite.binding as llvm

    features = sorted(
        name
        for name, has in llvm.get_host_cpu_features().items()
        if has and name not in _NEVER_USED and linux_flag(name) in host_flags()
    )
    return CpuNeeds(this_architecture(), llvm.get_host_cpu_name(), tuple(features))


def missing_features(needs: CpuNeeds) -> list[str]:
    """The features that this machine lacks; it must be of the architecture."""
    return [name for name in needs.features if linux_flag(name) not in host_flags()]
