"""Which lane gives to which: AMD's lane permutations that an instruction's constants choose.

    >>> dpp_sources(0x111, 32)[:4]            # row_shr:1
    [255, 0, 1, 2]

255 names no lane. Sources: the CDNA3 and RDNA3 ISA guides, "DPP" and "DS_SWIZZLE_B32".
"""

from __future__ import annotations

from ..dialect.errors import TargetError

NONE = 255
_QUAD = range(4)


def dpp_sources(control: int, wave: int) -> list[int]:
    """The lane that each lane reads for a `dpp_ctrl`."""
    return [_dpp(control, lane, wave) for lane in range(wave)]


def _dpp(control: int, lane: int, wave: int) -> int:
    row, within, count = lane & ~15, lane & 15, control & 15
    mode = control & ~15
    if control <= 0xFF:  # quad_perm
        return lane & ~3 | control >> 2 * (lane & 3) & 3
    if mode in (0x100, 0x110):  # row_shl reads from above, row_shr from below
        source = within + count if mode == 0x100 else within - count
        return row + source if 0 <= source < 16 else NONE
    if mode == 0x120:  # row_ror
        return row + (within - count) % 16
    if mode == 0x150:  # row_share, row_newbcast
        return row + count
    if mode == 0x160:  # row_xmask
        return row + (within ^ count)
    rest = {
        0x130: lane + 1 if lane + 1 < wave else NONE,  # wave_shl:1
        0x134: (lane + 1) % wave,  # wave_rol:1
        0x138: lane - 1 if lane else NONE,  # wave_shr:1
        0x13C: (lane - 1) % wave,  # wave_ror:1
        0x140: row + 15 - within,  # row_mirror
        0x141: lane & ~7 | 7 - (lane & 7),  # row_half_mirror
        0x142: row - 1 if row else NONE,  # row_bcast:15
        0x143: 31 if lane >= 32 else NONE,  # row_bcast:31
    }
    if control not in rest:
        raise TargetError(f"simulate: the DPP control {control:#x} is not simulated")
    return rest[control]


def swizzle_sources(offset: int, wave: int) -> list[int]:
    """The lane that each lane reads for the offset of ds_swizzle_b32."""
    if offset >= 0xC000:
        raise TargetError(f"simulate: the swizzle {offset:#x} (rotate or FFT) is not simulated")
    if offset & 0x8000:  # any lane of the quad
        return [lane & ~3 | offset >> 2 * (lane & 3) & 3 for lane in range(wave)]
    keep, put, flip = offset & 31, offset >> 5 & 31, offset >> 10 & 31
    return [lane & 32 | ((lane & 31 & keep | put) ^ flip) for lane in range(wave)]


def swap_sources(row: int, wave: int) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """(lane, operand) that each lane of the two results of v_permlane16_swap (32) reads.

    The odd rows of the first operand change places with the even rows of the second.
    """
    first = [(lane - row, 1) if lane & row else (lane, 0) for lane in range(wave)]
    second = [(lane, 1) if lane & row else (lane + row, 0) for lane in range(wave)]
    return first, second
