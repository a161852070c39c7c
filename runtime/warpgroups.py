"""wgmma: products of a warpgroup whose operands are described in shared memory.

In: the text of the inline assembly that MLIR makes of `nvvm.wgmma.mma_async`, and its operands.
Out: the accumulators, at once: a value of IR cannot come late. What comes late is the reading: the
tiles are noted as read when the product is issued and again when its group has been waited for, so
whoever writes into them in between is in a race, or seen because the bytes have changed.

    wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {$0, ...}, $descA, $descB, p, 1, 1, 0, 0;

Operands lie K-major or, of 16-bit elements, MN-major, in any of the four swizzles. Sources: PTX ISA
8.x, "Asynchronous warpgroup-level matrix instructions": fragments and matrix descriptors; for the
canonical layouts also the comments in CUTLASS's `mma_traits_sm90_gmma.hpp`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ..dialect.errors import Error
from .async_copies import swizzled
from .matrix_units import ELEMENTS, elements, matrix, nvidia_a, product, registers
from .operations import Operation

_SWIZZLE = {0: 0, 1: 128, 2: 64, 3: 32}  # bits 62 and 63 of a descriptor
_TF32 = 0xFFFFE000


def tile_addresses(
    descriptor: int, base: int, rows: int, row_bytes: int, turned: bool = False
) -> np.ndarray:
    """Addresses of the 16-byte pieces (rows, row_bytes / 16) of an operand.

    The rows of a K-major one are its rows; those of a `turned` one (MN-major) are places of K.
    """
    start = (descriptor & 0x3FFF) << 4
    leading, stride = (descriptor >> 16 & 0x3FFF) << 4, (descriptor >> 32 & 0x3FFF) << 4
    if descriptor >> 49 & 7:
        raise Error("a matrix descriptor with a base offset is not simulated")
    swizzle = _SWIZZLE[descriptor >> 62 & 3]
    row, piece = np.ogrid[:rows, : row_bytes // 16]
    if turned:
        if not swizzle:
            return base + start + row // 8 * leading + row % 8 * 16 + piece * stride
        wide = swizzle // 16
        offset = row // 8 * stride + row % 8 * swizzle + piece // wide * leading + piece % wide * 16
        return base + swizzled(start + offset, swizzle)
    if not swizzle:  # groups of 8 rows by 16 bytes, one after the other
        return base + start + row // 8 * stride + row % 8 * 16 + piece * leading
    offset = row // 8 * stride + row % 8 * swizzle + piece * 16
    if row_bytes > swizzle:
        raise Error(f"rows of {row_bytes} bytes with a swizzle of {swizzle}")
    return base + swizzled(start + offset, swizzle)


def warpgroup_c(n: int) -> tuple[np.ndarray, np.ndarray]:
    """D (64, n): rows and columns of the elements of 128 threads."""
    thread, i = np.ogrid[:128, : n // 2]
    lane = thread % 32
    return 16 * (thread // 32) + lane // 4 + 8 * (i % 4 // 2), 8 * (i // 4) + 2 * (lane % 4) + i % 2


def _operand(
    block: Any, lanes: np.ndarray, descriptors: np.ndarray, shape: tuple[int, int],
    dtype: np.dtype, turned: bool, own: bool,
) -> np.ndarray:  # fmt: skip
    """(groups, rows, k) of shared memory; `own`: each warp reads its quarter of the rows.

    `turned`: it lies MN-major. The reading is noted for the first thread of each warp, and kept for
    the wait.
    """
    out = []
    lines, length = (shape[1], shape[0]) if turned else shape
    for group, descriptor in zip(lanes, descriptors, strict=True):
        if not (descriptor == descriptor[0]).all():
            raise Error("the threads of a warpgroup have different matrix descriptors")
        number = int(np.uint64(descriptor[0]))
        places = tile_addresses(number, block.base, lines, length * dtype.itemsize, turned)
        site = int(block.threads["site"][group[0]])
        block.check(places.reshape(-1)[[0, -1]], 16, group[:2], site)
        raw = block.gather(places, 16)
        for warp in range(4):
            part = np.s_[:]
            if own:
                quarter = places.shape[int(turned)] // 4
                part = np.s_[quarter * warp : quarter * (warp + 1)]
                part = np.s_[:, part] if turned else part
            kept = places[part].reshape(-1), raw[part].reshape(-1, 16), site
            thread = int(group[32 * warp])
            block.note(kept[0], 16, thread, site)
            block.memory.setdefault(("wgmma", thread), []).append(kept)
        values = np.ascontiguousarray(raw.reshape(lines, -1)).view(dtype)
        out.append(values.T if turned else values)
    return np.stack(out)


def _wgmma(operation: Operation, found: re.Match[str], arguments: Sequence) -> Operation:
    n, k, accumulator, a_kind, b_kind = int(found[1]), int(found[2]), *found.group(3, 4, 5)
    count = len(operation.back.kinds)
    from_registers = arguments[count][0] != "i64"
    a_count = 4 if from_registers else 1
    numbers = [int(value) for _, value in arguments[count + a_count + 1 :]]
    turned = [False, False, *(bool(one) for one in numbers[3:])][-2:]  # A's, if any, and B's
    keep, sign = numbers[0], numbers[1] * numbers[2]
    a_dtype, b_dtype = ELEMENTS[a_kind], ELEMENTS[b_kind]
    fragment = warpgroup_c(n)

    def run(block: Any, lanes: np.ndarray, given: list[np.ndarray]) -> list[np.ndarray]:
        old = matrix(elements(given[:count], ELEMENTS[accumulator]), fragment, (64, n))
        if from_registers:
            a = _rows_of_warps(elements(given[count : count + 4], a_dtype), k, a_dtype.itemsize)
        else:
            a = _operand(block, lanes, given[count], (64, k), a_dtype, turned[0], True)
        b = _operand(block, lanes, given[count + a_count], (n, k), b_dtype, turned[1], False)
        b = b.swapaxes(1, 2)
        if a_kind == "tf32":
            a, b = (
                (x.view(np.uint32) & np.uint32(_TF32)).view(np.float32)
                for x in (a, np.ascontiguousarray(b))
            )
        signed = a if sign == 1 else -a
        full = product(signed, b, old if keep else np.zeros_like(old))
        return registers(full[:, fragment[0], fragment[1]], operation.back.kinds)

    unit = f"wgmma.m64n{n}k{k}.{accumulator}.{a_kind}"
    return replace(
        operation, scope="warpgroup", run=run, unit=unit, sites=("load",),
        suffix=f".{a_count}.{keep}.{sign}.{turned[0]:d}{turned[1]:d}",
    )  # fmt: skip


def _rows_of_warps(values: np.ndarray, k: int, size: int) -> np.ndarray:
    """A (64, k) of registers: the fragment of mma.m16n8 in each of the four warps."""
    rows, columns = nvidia_a(k, size)
    warp = np.arange(128) // 32
    place = rows[np.arange(128) % 32] + 16 * warp[:, None], columns[np.arange(128) % 32]
    return matrix(values, place, (64, k))


def _commit(operation: Operation, found: re.Match[str], arguments: Sequence) -> Operation:
    def run(block: Any, lanes: np.ndarray, given: list[np.ndarray]) -> list[np.ndarray]:
        for group in lanes:
            key = int(group[0])
            reads = block.memory.pop(("wgmma", key), [])
            block.memory.setdefault(("groups", key), []).append(reads)
        return []

    return replace(operation, run=run)


def _wait(operation: Operation, found: re.Match[str], arguments: Sequence) -> Operation:
    pending = int(arguments[0][1])

    def run(block: Any, lanes: np.ndarray, given: list[np.ndarray]) -> list[np.ndarray]:
        for group in lanes:
            key = int(group[0])
            groups = block.memory.setdefault(("groups", key), [])
            while len(groups) > pending:
                for places, values, site in groups.pop(0):
                    block.note(places, 16, key, site)
                    if not np.array_equal(block.gather(places, 16), values):
                        raise Error("a tile was overwritten while a wgmma still read it")
            block.clocks.meet(group)
        return []

    return replace(operation, run=run, suffix=f".{pending}")


WARPGROUP_ROWS: list[tuple[str, Callable]] = [
    (r"asm\.wgmma\.m64n(\d+)k(\d+)\.(f32|f16|s32)\.(f16|bf16|tf32|e4m3|e5m2|s8|u8)"
     r"\.(f16|bf16|tf32|e4m3|e5m2|s8|u8)", _wgmma),
    (r"nvvm\.wgmma\.commit_group\.sync\.aligned", _commit),
    (r"nvvm\.wgmma\.wait_group\.sync\.aligned", _wait),
]  # fmt: skip
