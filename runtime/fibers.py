"""Threads of a block as fibers: the records that numpy and LLVM IR share, and their memory.

In: a `STATE` record that says what to launch, and the kernel as a function of its table of
arguments. Out: a reason to come back, and the records of all threads, for numpy to look at.

    state["kernel"] = ...                   # and the rest of `STATE`
    while (why := sim.go()) != FINISHED:
        ...                                 # BLOCKED: every thread waits; look at its `THREAD`

The scheduler itself is in `scheduler_ir`.
"""

from __future__ import annotations

import mmap
import platform
import re
from functools import cache

import numpy as np

from ..dialect.errors import TargetError
from .access_ir import ACCESS_IR
from .matrix_ir import BFLOAT, BYTE, FLOAT, HALF, INTEGER, MATRIX_IR, PLAN, SCRATCH, TF32
from .scheduler_ir import SCHEDULER, SWITCH
from .warp_ir import WARP_IR

FINISHED, BLOCKED, FAILED, LOG_IS_FULL, BLOCK_ENDED = range(5)  # why `sim.go` returns
READY, AT_BARRIER, IN_WARP, DONE, ASKS = range(5)  # what a thread does
STACK = 32 << 10  # bytes of a thread, beside what the kernel's own frames take
ARENA = 256 << 10  # bytes: the most shared memory of a block, and its alignment (see `arena`)
EXCHANGE = 2048  # bytes that a thread and Python can give each other, each way

THREAD = np.dtype(
    [
        *(("sp", "u8"), ("state", "i4"), ("kind", "i4"), ("mask", "u8"), ("active", "u8")),
        *(("site", "i4"), ("turn", "i4"), ("tid", "i4", 3), ("ctaid", "i4", 3)),
        *(("lane", "i4"), ("first", "i4"), ("number", "i4"), ("pad", "i4")),
        *(("epoch", "i4"), ("row", "i4"), ("slots", "u8", 2), ("exchange", "u8"), ("copies", "u8")),
        *(("copied", "i4"), ("groups", "i4"), ("top", "u8"), ("room", "u1", 120)),
    ],
    align=True,
)
STATE = np.dtype(
    [
        *(("kernel", "u8"), ("table", "u8"), ("threads", "u8"), ("main", "u8"), ("current", "u8")),
        *(("block", "i8"), ("last", "i8"), ("step", "i8"), ("running", "i8"), ("count", "i8")),
        *(("warp", "i8"), ("reverse", "i8"), ("window", "i8"), ("watched", "i8")),
        *(("ntid", "i4", 4), ("nctaid", "i4", 4), ("log", "u8"), ("logged", "i8"), ("room", "i8")),
        *(("shared", "u8"), ("shared_bytes", "i8"), ("ranges", "u8"), ("range_count", "i8")),
        *(("failure", "i8"), ("failed_at", "u8"), ("failed_site", "i8"), ("failed_bytes", "i8")),
        *(("alone", "i8"), ("implicit", "u8"), ("dispatch", "u8")),
        *(("resources", "u8"), ("resource_count", "i8"), ("plans", "u8"), ("scratch", "u8")),
        ("touched", "i8"),
    ],
    align=True,
)
RANGE = np.dtype([("begin", "u8"), ("end", "u8"), ("logged", "i8"), ("what", "i8")])
ACCESS = np.dtype(
    [
        *(("address", "u8"), ("site", "i4"), ("window", "i4"), ("block", "i4")),
        *(("thread", "u2"), ("bytes", "u2"), ("epoch", "i4"), ("row", "i4")),
    ]
)
OUTSIDE, TOO_MANY_COPIES, TOO_MANY_RESOURCES, MISSING, DIFFERS, MISALIGNED, ENDLESS = range(
    1, 8
)  # failures
PATIENCE = 1 << 26  # accesses of a thread without waiting: it waits for what cannot come
RESOURCES = 256  # descriptors of buffers in a launch
COPIES = 64  # asynchronous copies of a thread that may be on their way
COPY_BYTES = 32  # a record of one: to, of (8 bytes each), bytes, bytes given, site, group


def offset_of(record: np.dtype, name: str) -> int:
    """Where a field of a record lies."""
    return (record.fields or {})[name][1]  # pyright: ignore


def scheduler() -> str:
    """The scheduler and what warps do, as LLVM IR for this CPU; TargetError on other ones."""
    if platform.machine() not in ("x86_64", "AMD64"):
        raise TargetError(
            f"simulate: threads that wait for each other need an x86-64 CPU; this one is "
            f"{platform.machine()}"
        )
    text = SWITCH + SCHEDULER + ACCESS_IR + WARP_IR + MATRIX_IR
    for record, letter in ((THREAD, "T"), (STATE, "S"), (ACCESS, "A"), (PLAN, "P")):
        for name, (_, offset, *_) in (record.fields or {}).items():
            place = f"getelementptr (i8, ptr @sim.state, i64 {offset})"
            text = text.replace(f"{{{letter}.{name}}}", place if letter == "S" else str(offset))
    numbers = {
        "SIZE_OF_STATE": STATE.itemsize, "SIZE_OF_THREAD": THREAD.itemsize, "COPIES": COPIES,
        "TOO_MANY_COPIES": TOO_MANY_COPIES, "TOO_MANY_RESOURCES": TOO_MANY_RESOURCES,
        "RESOURCES": RESOURCES, "MISSING": MISSING, "DIFFERS": DIFFERS, "MISALIGNED": MISALIGNED,
        "ENDLESS": ENDLESS, "PATIENCE": PATIENCE,
        "HALF": HALF,
        "BFLOAT": BFLOAT, "FLOAT": FLOAT, "TF32": TF32, "INTEGER": INTEGER, "BYTE": BYTE,
        "TWO_WAYS": 2 * EXCHANGE, "RESULTS": EXCHANGE, "HALF_OF_SCRATCH": SCRATCH // 2,
        "SIZE_OF_PLAN": PLAN.itemsize, "OUTSIDE": OUTSIDE, "AT_BARRIER": AT_BARRIER,
        "IN_WARP": IN_WARP, "DONE": DONE, "ASKS": ASKS, "FINISHED": FINISHED, "BLOCKED": BLOCKED,
        "FAILED": FAILED, "BLOCK_ENDED": BLOCK_ENDED, "LOG_IS_FULL": LOG_IS_FULL,
    }  # fmt: skip
    return re.sub(rf"\b({'|'.join(numbers)})\b", lambda found: str(numbers[found[1]]), text)


@cache
def arena() -> np.ndarray:
    """Memory for the shared arrays of a block, one for this process.

    It lies in the first 2 GB, so that a pointer survives as the 32 bits that it has on a device,
    and at a multiple of its size, so that the 18 bits in the descriptors of matrix units say where.
    """
    below_2_gb = 0x40  # MAP_32BIT of Linux on x86-64
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | below_2_gb
    memory = np.frombuffer(mmap.mmap(-1, 2 * ARENA, flags=flags), np.uint8)
    if memory.ctypes.data >> 32:
        raise TargetError("simulate: this system gives no memory below 4 GB for shared arrays")
    skip = -memory.ctypes.data % ARENA
    return memory[skip : skip + ARENA]
