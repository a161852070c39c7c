"""What matrix instructions compute, and which lane holds which element.

In: the registers of all lanes of a warp. Out: those of the result. A fragment is two index arrays,
row and column of every element that a lane holds, in the order of its registers:

    >>> rows, columns = nvidia_a(16, 2)               # A of mma.m16n8k16, 16-bit elements
    >>> rows.shape, int(rows[5, 2]), int(columns[5, 2])
    ((32, 8), 9, 2)

Results are sums in float64 (int64 for integers), rounded once to the accumulator's type: hardware
rounds more often, so compare with a tolerance. Sources: PTX ISA 8.x, "Matrix Fragments for mma" and
ldmatrix; CDNA3 ISA and AMD's matrix instruction calculator; GPUOpen's articles on WMMA for RDNA3
and RDNA4.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace

import ml_dtypes
import numpy as np

from ..dialect.errors import TargetError
from .ir_text import bytes_of
from .operations import Operation, Product, numpy_type

Fragment = tuple[np.ndarray, np.ndarray]
ELEMENTS: dict[str, np.dtype] = {
    "f16": np.dtype(np.float16),
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "tf32": np.dtype(np.float32),
    "xf32": np.dtype(np.float32),
    "f32": np.dtype(np.float32),
    "f64": np.dtype(np.float64),
    "s8": np.dtype(np.int8),
    "u8": np.dtype(np.uint8),
    "i8": np.dtype(np.int8),
    "s32": np.dtype(np.int32),
    "i32": np.dtype(np.int32),
    "e4m3": np.dtype(ml_dtypes.float8_e4m3fn),
    "e5m2": np.dtype(ml_dtypes.float8_e5m2),
    # gfx940 to gfx942 have the FNUZ kinds; gfx12 and gfx950 those of OCP
    "fp8.gfx9": np.dtype(ml_dtypes.float8_e4m3fnuz),
    "bf8.gfx9": np.dtype(ml_dtypes.float8_e5m2fnuz),
    "fp8.gfx12": np.dtype(ml_dtypes.float8_e4m3fn),
    "bf8.gfx12": np.dtype(ml_dtypes.float8_e5m2),
}


# --- fragments ----------------------------------------------------------------------------------


def nvidia_a(k: int, size: int) -> Fragment:
    """A (16, k) of mma.m16n8: rows g and g + 8 by turns, 4 bytes of k in each register."""
    lane, i = np.ogrid[:32, : 16 * k // 32]
    per = 4 // size
    register, j = i // per, i % per
    rows = lane // 4 + 8 * (register % 2) + 0 * j
    return rows, lane % 4 * per + 4 * per * (register // 2) + j


def nvidia_b(k: int, size: int) -> Fragment:
    """B (k, 8) of mma.m16n8."""
    lane, i = np.ogrid[:32, : 8 * k // 32]
    per = 4 // size
    return lane % 4 * per + 4 * per * (i // per) + i % per, lane // 4 + 0 * i


def nvidia_c() -> Fragment:
    """C and D (16, 8) of mma.m16n8."""
    lane, i = np.ogrid[:32, :4]
    return lane // 4 + 8 * (i // 2), lane % 4 * 2 + i % 2


def amd_a(m: int, k: int, wave: int = 64) -> Fragment:
    """A (m, k) of an MFMA of one block, or of WMMA on gfx12: neighbours along k."""
    per = m * k // wave
    lane, j = np.ogrid[:wave, :per]
    return lane % m + 0 * j, per * (lane // m) + j


def amd_c(m: int) -> Fragment:
    """C and D (m, m) of an MFMA: four rows in each group of registers."""
    lane, r = np.ogrid[:64, : m * m // 64]
    groups = 64 // m
    return 4 * groups * (r // 4) + 4 * (lane // m) + r % 4, lane % m + 0 * r


def wmma_a11() -> Fragment:
    """A (16, 16) of WMMA on gfx11: a row in every lane, the upper lanes repeat the lower ones."""
    lane, j = np.ogrid[:32, :16]
    return lane % 16 + 0 * j, j + 0 * lane


def wmma_c11() -> Fragment:
    """C and D (16, 16) of WMMA on gfx11: even rows in the lower lanes, odd ones in the upper."""
    lane, r = np.ogrid[:32, :8]
    return 2 * r + lane // 16, lane % 16 + 0 * r


def wmma_c12() -> Fragment:
    """C and D (16, 16) of WMMA on gfx12."""
    lane, r = np.ogrid[:32, :8]
    return 8 * (lane // 16) + r, lane % 16 + 0 * r


def turned(fragment: Fragment) -> Fragment:
    """B where A is, or the other way round."""
    return fragment[1], fragment[0]


# --- products -----------------------------------------------------------------------------------


def elements(values: Sequence[np.ndarray], dtype: np.dtype) -> np.ndarray:
    """(groups, lanes, elements) of registers, whatever their types in IR are."""
    raw = []
    for value in values:
        value = np.ascontiguousarray(value)
        flat = value.reshape(*value.shape[:2], -1)
        raw.append(flat.view(np.uint8).reshape(*value.shape[:2], -1))
    return np.ascontiguousarray(np.concatenate(raw, axis=-1)).view(dtype)


def matrix(values: np.ndarray, fragment: Fragment, shape: tuple[int, int]) -> np.ndarray:
    """(groups, *shape) of the elements of each lane."""
    full = np.zeros((len(values), *shape), values.dtype)
    full[:, fragment[0], fragment[1]] = values
    return full


def product(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """a @ b + c, rounded once to c's dtype."""
    if c.dtype.kind == "i":
        wide = a.astype(np.int64) @ b.astype(np.int64) + c
        return wide.astype(np.int32)
    with np.errstate(all="ignore"):
        return (a.astype(np.float64) @ b.astype(np.float64) + c.astype(np.float64)).astype(c.dtype)


def registers(values: np.ndarray, kinds: Sequence[str]) -> list[np.ndarray]:
    """Split each lane's elements over results of the IR's types."""
    raw = np.ascontiguousarray(values).view(np.uint8)
    results, at = [], 0
    for kind in kinds:
        dtype = numpy_type(kind)
        part = np.ascontiguousarray(raw[..., at : at + dtype.itemsize])
        results.append(part.view(dtype.base) if dtype.shape else part.view(dtype)[..., 0])
        at += dtype.itemsize
    return results


def _product(
    operation: Operation,
    dtypes: tuple[np.dtype, np.dtype, np.dtype],
    fragments: tuple[Fragment, Fragment, Fragment],
    operands: tuple[slice, slice, slice],
    *,
    short: bool = False,
    step: int = 1,
    first: int = 0,
    repeated: bool = False,
) -> Product:
    """Where the elements of a product are; `operands` say which arguments are A, B and C.

    Of C, every `step`-th element from `first` on belongs to the fragment. `repeated`: the upper
    lanes repeat A and B of the lower ones.
    """
    given = operation.given
    places = []
    for fragment, where, dtype, each, begin in zip(
        fragments, operands, dtypes, (1, 1, step), (0, 0, first), strict=True
    ):
        rows, columns = np.broadcast_arrays(*fragment)
        start = given.offsets[where.start or 0]
        element = np.arange(rows.shape[1]) * each + begin
        full = np.zeros((rows.max() + 1, columns.max() + 1), np.int32)
        full[rows, columns] = (
            (np.arange(len(rows)) << 16)[:, None] + start + element * dtype.itemsize
        )
        places.append(full)
    c_start = given.offsets[operands[2].start]
    return Product(
        places[0], np.ascontiguousarray(places[1].T), places[2], dtypes, short, c_start,
        operation.back.bytes, c_start if repeated else 0,
    )  # fmt: skip


# --- NVIDIA -------------------------------------------------------------------------------------


def _mma(operation: Operation, found: re.Match[str], arguments: Sequence) -> Operation:
    """mma.sync: A is the first registers, then B, then C."""
    k, kinds = int(found[1]), found[2].split(".")
    accumulator = "f32"
    if kinds[0] in ("s8", "u8"):
        a, b, accumulator = kinds[0], kinds[-1], "s32"
    elif len(kinds) == 4:  # d.a.b.c
        a, b, accumulator = kinds[1], kinds[2], kinds[0]
    elif kinds[0] in ("f16", "f32"):  # d.c of float16
        a = b = "f16"
        accumulator = kinds[0]
    else:
        a = b = kinds[0]
    size = ELEMENTS[a].itemsize
    a_registers, b_registers = 16 * k * size // 128, 8 * k * size // 128
    operands = (
        slice(0, a_registers),
        slice(a_registers, a_registers + b_registers),
        slice(a_registers + b_registers, None),
    )
    dtypes = (ELEMENTS[a], ELEMENTS[b], ELEMENTS[accumulator])
    fragments = (nvidia_a(k, size), nvidia_b(k, size), nvidia_c())
    made = _product(operation, dtypes, fragments, operands, short=a == "tf32")
    return replace(operation, product=made, unit=f"mma.m16n8k{k}.{accumulator}.{a}")


# --- AMD ----------------------------------------------------------------------------------------

_MFMA = re.compile(r"(\d+)x\d+x(\d+)\.?(f16|bf16|xf32|f32|i8|fp8|bf8)(?:\.(fp8|bf8))?(?:\.?1k)?")
_MFMA_KNOWN = {  # (m, k, kind): those of one block whose lanes hold neighbours along k
    *((16, 16, kind) for kind in ("f16", "bf16", "i8")),
    *((32, 8, kind) for kind in ("f16", "bf16", "i8")),
    *((16, 32, kind) for kind in ("f16", "bf16", "i8", "fp8", "bf8")),
    *((32, 16, kind) for kind in ("f16", "bf16", "i8", "fp8", "bf8")),
    *((16, 8, kind) for kind in ("xf32", "bf16")),
    *((32, 4, kind) for kind in ("xf32", "bf16")),
    *((16, 4, "f32"), (32, 2, "f32")),
}


def _mfma(operation: Operation, found: re.Match[str], arguments: Sequence) -> Operation:
    accumulator, shape = found[1], _MFMA.fullmatch(found[2])
    if shape is None or (int(shape[1]), int(shape[2]), shape[3]) not in _MFMA_KNOWN:
        raise TargetError(f"simulate: {operation.name} is not simulated")
    m, k, a, b = int(shape[1]), int(shape[2]), shape[3], shape[4] or shape[3]
    if any(value not in ("0", "false") for _, value in arguments[3:]):
        raise TargetError(f"simulate: {operation.name} with cbsz, abid or blgp is not simulated")
    which = "gfx12" if operation.chip == "gfx950" else "gfx9"
    a, b = (f"{kind}.{which}" if kind in ("fp8", "bf8") else kind for kind in (a, b))
    dtypes = (ELEMENTS[a], ELEMENTS[b], ELEMENTS[accumulator])
    if bytes_of(arguments[0][0]) * 64 != m * k * dtypes[0].itemsize:
        raise TargetError(f"simulate: {operation.name}, of several blocks, is not simulated")
    fragments = (amd_a(m, k), turned(amd_a(m, k)), amd_c(m))
    operands = (slice(0, 1), slice(1, 2), slice(2, 3))
    made = _product(operation, dtypes, fragments, operands, short=a == "xf32")
    return replace(operation, product=made, unit=f"mfma.{accumulator}.{found[2]}")


def _wmma(operation: Operation, found: re.Match[str], arguments: Sequence) -> Operation:
    """WMMA of gfx11, where a lane holds a whole row, or of gfx12, where it holds half of one."""
    accumulator, kind, other = found[1], found[2], found[3] or found[2]
    signed: tuple[int, ...] = ()
    first = 0
    if kind == "iu8":
        signed, first = (_flag(arguments[0]), _flag(arguments[2])), 1
        kind, other = ("i8" if one else "u8" for one in signed)
        operands = (slice(1, 2), slice(3, 4), slice(4, 5))
    else:
        operands = (slice(0, 1), slice(1, 2), slice(2, 3))
    kind, other = (f"{one}.gfx12" if one in ("fp8", "bf8") else one for one in (kind, other))
    dtypes = (ELEMENTS[kind], ELEMENTS[other], ELEMENTS[accumulator])
    doubled = bytes_of(arguments[first][0]) == 16 * dtypes[0].itemsize
    narrow = accumulator in ("f16", "bf16")
    upper = _flag(arguments[3]) if narrow else 0
    if upper and not doubled:
        raise TargetError(f"simulate: {operation.name} with op_sel is not simulated")
    a = wmma_a11() if doubled else amd_a(16, 16, 32)
    c = wmma_c11() if doubled else wmma_c12()
    # gfx11 has a 16-bit accumulator in one half of each register, which the last argument picks
    step = 2 if narrow and doubled else 1
    made = _product(
        operation, dtypes, (a, turned(a), c), operands, step=step, first=upper, repeated=doubled
    )
    suffix = "".join(f".{one}" for one in (*signed, upper))
    return replace(operation, product=made, suffix=suffix, unit=f"wmma.{accumulator}.{kind}")


def _flag(argument: tuple[str, str]) -> int:
    return int(argument[1] in ("true", "1"))


MATRIX_ROWS: list[tuple[str, Callable]] = [
    (r"nvvm\.mma\.m16n8k(4|8|16|32)\.row\.col\."
     r"(f16\.f16|f32\.f32|bf16|tf32|[su]8(?:\.[su]8)?|f(?:16|32)\.e\dm\d\.e\dm\d\.f(?:16|32))",
     _mma),
    (r"amdgcn\.mfma\.(f32|i32)\.(\d+x\d+x.*)", _mfma),
    (r"amdgcn\.wmma\.(f32|i32|f16|bf16)\.16x16x16\.(f16|bf16|iu8|fp8|bf8)(?:\.(fp8|bf8))?"
     r"(?:\.tied)?\.v.*", _wmma),
]  # fmt: skip
