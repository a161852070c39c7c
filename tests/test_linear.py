"""Layouts of tiles in the threads of a block, against brute force and the simulator's tables."""

from itertools import product

import numpy as np
import pytest
from dodeca.passes.blocks.linear import (
    REGISTER,
    Bits,
    Layout,
    block_layouts,
    filled,
    run,
    spots,
    thread_mask,
)
from dodeca.passes.blocks.matrix import INSTRUCTIONS, Instruction, matrix_layouts, places
from dodeca.passes.blocks.staging import BANKS, CHUNK, swapped_number, swizzle
from dodeca.runtime import matrix_units as units
from hypothesis import example, given, settings
from hypothesis import strategies as st

R = REGISTER


@st.composite
def bits_of(draw: st.DrawFn, most: int = 7) -> Bits:
    """Bits of an axis: each from a register or a thread's bit of its own."""
    count = draw(st.integers(0, most))
    threads = draw(st.permutations(range(8)))
    return tuple(draw(st.sampled_from((R, bit))) for bit in threads[:count])


def position(bits: Bits, register: int, thread: int) -> int:
    """Bit by bit: the next bit of the register's number, or one of the thread's."""
    total = 0
    for k, source in enumerate(bits):
        if source == R:
            total |= (register & 1) << k
            register >>= 1
        else:
            total |= (thread >> source & 1) << k
    return total


# --- one axis -----------------------------------------------------------------------------------


@given(bits_of(), st.integers(0, 255))
def test_spots_are_the_places_of_a_thread(bits: Bits, thread: int) -> None:
    first = position(bits, 0, thread)
    found = [position(bits, register, thread) - first for register in range(1 << bits.count(R))]
    assert spots(bits) == tuple(found)


@given(bits_of())
def test_a_run_is_as_long_as_neighbours_go(bits: Bits) -> None:
    have = {position(bits, register, 0) for register in range(1 << bits.count(R))}
    length = run(bits)
    assert set(range(length)) <= have and length not in have
    for place in have:  # each place is in a whole run
        assert set(range(place // length * length, (place // length + 1) * length)) <= have


@given(bits_of(), st.integers(1, 1000), st.lists(st.integers(8, 12), unique=True))
def test_filled_has_every_place(bits: Bits, size: int, threads: list[int]) -> None:
    found = filled(bits, size, threads)
    assert found[: len(bits)] == bits
    assert 1 << len(found) >= size
    assert len(found) == len(bits) or 1 << len(found) < 2 * size  # and no more than it needs
    more = found[len(bits) :]
    used = [source for source in more if source != R]
    assert used == threads[: len(used)]
    assert more == (R,) * (len(more) - len(used)) + tuple(used)  # registers lie below threads
    assert R not in more or used == threads


@given(st.lists(bits_of(), max_size=3))
def test_a_mask_has_the_bits_of_threads_that_move_something(layouts: list[Bits]) -> None:
    mask = thread_mask(layouts)
    for bit in range(8):
        moves = any(position(bits, 0, 1 << bit) != position(bits, 0, 0) for bits in layouts)
        assert (mask >> bit & 1) == moves


# --- tiles --------------------------------------------------------------------------------------

SIZES = st.dictionaries(st.sampled_from("abc"), st.integers(1, 12), min_size=1, max_size=3)


@given(SIZES, st.sampled_from("abc"), st.sampled_from((1, 2, 4, 8)), st.sampled_from((32, 64, 128)))
@settings(max_examples=40, deadline=None)
@example({"a": 16, "b": 64}, "b", 8, 128)
def test_every_place_of_a_tile_is_held_by_as_many_threads(
    sizes: dict[str, int], nearest: str, lanes: int, threads: int
) -> None:
    near = [name for name in sizes if name == nearest]
    layouts = block_layouts(sizes, near, lanes, threads)
    assert layouts.keys() == sizes.keys()
    registers = [range(1 << bits.count(R)) for bits in layouts.values()]
    held: dict[tuple[int, ...], set[int]] = {}
    for thread in range(threads):
        for at in product(*registers):
            place = tuple(
                position(bits, n, thread) for bits, n in zip(layouts.values(), at, strict=True)
            )
            holders = held.setdefault(place, set())
            assert thread not in holders  # once in each thread
            holders.add(thread)
    padded = [1 << (n - 1).bit_length() for n in sizes.values()]
    assert len(held) == np.prod(padded)
    assert all(place in held for place in np.ndindex(*(sizes[name] for name in layouts)))
    mask = thread_mask(list(layouts.values()))
    for holders in held.values():  # those whose numbers differ in bits that say nothing
        assert len(holders) == threads >> mask.bit_count()
        assert len({thread & mask for thread in holders}) == 1


@given(st.integers(8, 300), st.integers(1, 40), st.sampled_from((2, 4, 8)))
def test_neighbouring_threads_have_neighbouring_runs(size: int, rows: int, lanes: int) -> None:
    """Along the near axis a warp reads one piece of memory, as far as there is one."""
    bits = block_layouts({"row": rows, "near": size}, ["near"], lanes, 128)["near"]
    first = [position(bits, 0, thread) for thread in range(32)]
    padded = 1 << (size - 1).bit_length()
    assert run(bits) >= lanes
    assert first == [thread * lanes % padded for thread in range(32)]


@given(st.lists(bits_of(4), min_size=1, max_size=3), st.integers(0, 255))
def test_a_layout_is_made_of_the_bits_of_its_axes(layouts: list[Bits], thread: int) -> None:
    made = Layout.of(dict(zip("abc", layouts, strict=False)))
    counts = [1 << bits.count(R) for bits in layouts]
    assert made.registers == np.prod(counts)
    for register, at in enumerate(np.ndindex(*counts)):  # the last axis fastest
        expected = tuple(position(b, n, thread) for b, n in zip(layouts, at, strict=True))
        assert made.at(register, thread) == expected


@given(bits_of(4), st.integers(0, 15), st.integers(0, 15), st.integers(0, 255), st.integers(0, 255))
def test_a_layout_is_linear(bits: Bits, r: int, s: int, t: int, u: int) -> None:
    """Also with a swizzle, where two bits of a position come from one source."""
    made = Layout.of({"row": bits, "column": (R, *bits)})
    both = zip(made.at(r, t), made.at(s, u), strict=True)
    assert made.at(r ^ s, t ^ u) == tuple(x ^ y for x, y in both)


# --- matrix instructions ------------------------------------------------------------------------

SIZE = {"float16": 2, "bfloat16": 2, "int8": 1, "float32": 4}


def _tables(row: Instruction) -> tuple[units.Fragment, units.Fragment, units.Fragment]:
    """What the simulator knows of an instruction: A (m, k), B (k, n) and C (m, n)."""
    m, _, k = row.shape
    if row.family == "mma":
        size = SIZE[row.dtype]
        return units.nvidia_a(k, size), units.nvidia_b(k, size), units.nvidia_c()
    if row.family.startswith("mfma"):
        return units.amd_a(m, k), units.turned(units.amd_a(m, k)), units.amd_c(m)
    if row.family == "wmma":
        return units.wmma_a11(), units.turned(units.wmma_a11()), units.wmma_c11()
    return units.amd_a(16, 16, 32), units.turned(units.amd_a(16, 16, 32)), units.wmma_c12()


def _held(own: Bits, along: Bits, lanes: int) -> np.ndarray:
    """(lanes, elements, 2): where each element of a fragment lies on its own axis and the other."""
    return np.array(
        [
            [(position(own, o, lane), position(along, d, lane)) for o, d in places(own, along)]
            for lane in range(lanes)
        ]
    )


@pytest.mark.parametrize("row", INSTRUCTIONS, ids=lambda row: f"{row.family} {row.dtype}")
def test_fragments_are_those_of_the_hardware(row: Instruction) -> None:
    a, b, c = (np.stack(np.broadcast_arrays(*table), axis=-1) for table in _tables(row))
    lanes = len(a)
    first, second = _held(row.rows, row.depth, lanes), _held(row.own, row.depth, lanes)
    result = _held(row.rows, row.columns, lanes)
    if not row.rows_first:  # our rows are its columns
        first, second, result = second, first, result[..., ::-1]
    np.testing.assert_array_equal(first, a)
    np.testing.assert_array_equal(second, b[..., ::-1])
    np.testing.assert_array_equal(result, c)
    m, n, k = row.shape
    assert (a.max((0, 1)) == (m - 1, k - 1)).all() and (b.max((0, 1)) == (k - 1, n - 1)).all()


@pytest.mark.parametrize("row", INSTRUCTIONS, ids=lambda row: f"{row.family} {row.dtype}")
def test_a_result_is_an_operand_where_lanes_have_the_same_bits(row: Instruction) -> None:
    """A lane has of a result's columns as many places as it needs of the depth, and lanes that need
    the same places have the same ones."""
    size = 1 << max(len(row.columns), len(row.depth))
    needed, have = filled(row.depth, size), filled(row.columns, size)
    lanes = 64 if row.family.startswith("mfma") else 32

    def places_of(bits: Bits, lane: int) -> frozenset[int]:
        return frozenset(position(bits, n, lane) for n in range(1 << bits.count(R)))

    groups = {(places_of(needed, lane), places_of(have, lane)) for lane in range(lanes)}
    pairs = len({first for first, _ in groups}), len({second for _, second in groups})
    alike = pairs == (len(groups), len(groups))
    assert alike == (
        row.family != "wmma"
    )  # on gfx11 each lane has all of the depth: lanes exchange


# --- swizzles -----------------------------------------------------------------------------------


def _phases(rows: Bits, columns: Bits, pitch: int, size: int, masks: tuple[int, ...], warp: int):
    """The banks that the lanes of each phase ask for, a set of words for each."""
    width = min(run(columns) * size, CHUNK)
    together = BANKS // width
    for start in range(0, warp, together):
        asked: dict[int, set[int]] = {}
        for lane in range(start, start + together):
            row, column = position(rows, 0, lane), position(columns, 0, lane)
            byte = (row * pitch + (column ^ swapped_number(row, masks))) * size
            for word in range(byte // 4, -(-(byte + width) // 4)):
                asked.setdefault(word % (BANKS // 4), set()).add(word)
        yield asked


@given(st.sampled_from((1, 2, 4)), st.integers(3, 5), st.integers(4, 7))
def test_lanes_that_read_rows_of_16_bytes_use_all_banks(size: int, high: int, wide: int) -> None:
    """Rows in the lanes' upper bits, 16 bytes of the depth in the lower ones: as for mma.sync."""
    lanes = (CHUNK // size).bit_length() - 1
    columns: Bits = filled((*(R,) * lanes, 0, 1), 1 << wide)
    rows: Bits = filled((2, 3, 4), 1 << high)
    pitch = 1 << len(columns)
    masks = swizzle(rows, columns, pitch, size, False)
    for asked in _phases(rows, columns, pitch, size, masks, 32):
        assert all(len(words) == 1 for words in asked.values())


@given(bits_of(), st.integers(1, 3), st.integers(4, 8))
def test_a_swizzle_moves_chunks_within_their_row(rows: Bits, lanes: int, wide: int) -> None:
    """Each row keeps its elements, 16 bytes stay together: nothing is lost, whatever it gains."""
    columns: Bits = (*(R,) * lanes, *(R,) * (wide - lanes))
    masks = swizzle(rows, columns, 1 << wide, 2, False)
    chunk = CHUNK // 2
    for row in range(1 << len(rows)):
        moved = [column ^ swapped_number(row, masks) for column in range(1 << wide)]
        assert sorted(moved) == list(range(1 << wide))
        assert all(moved[n] % chunk == n % chunk for n in range(1 << wide))


@pytest.mark.parametrize("wide", [5, 6, 7, 8])
def test_rows_of_turned_squares_lie_in_different_banks(wide: int) -> None:
    """ldmatrix: eight lanes name eight rows of 16 bytes."""
    rows: Bits = (R, 0, 1, R, R, R)  # the depth, as a fragment has it
    columns: Bits = (2, 3, 4, *(R,) * (wide - 3))
    masks = swizzle(rows, columns, 1 << wide, 2, True)
    for first in range(0, 64, 8):
        for column in range(0, 1 << wide, 8):
            banks = {
                ((row << wide) + (column ^ swapped_number(row, masks))) * 2 % BANKS // CHUNK
                for row in range(first, first + 8)
            }
            assert len(banks) == 8


@given(st.sampled_from((1, 2, 4, 8)), st.integers(0, 5), st.integers(0, 5))
def test_no_row_of_a_product_is_in_two_warps(warps: int, high: int, wide: int) -> None:
    """Unless it is alone, a product's rows have all warps, as far as there are rows for them."""

    class Axis:
        def __init__(self, name: str):
            self.name = name

    class Product:
        instruction, rows, columns = INSTRUCTIONS[0], Axis("row"), Axis("column")

    sizes = {"row": 16 << high, "column": 8 << wide}
    found = matrix_layouts([Product], sizes, warps, 32, False)  # pyright: ignore[reportArgumentType]
    assert [1 << len(found[name]) for name in sizes] == list(sizes.values())
    assert not thread_mask([found["column"]]) & ~31
    assert thread_mask([found["row"]]) >> 5 == min(warps, 1 << high) - 1 << (
        max(0, warps.bit_length() - 1 - high)
    )
    alone = matrix_layouts([Product], sizes, warps, 32, True)  # pyright: ignore[reportArgumentType]
    bits = [source for name in sizes for source in alone[name] if source >= 5]
    assert len(bits) == len(set(bits)) == min(warps.bit_length() - 1, high + wide)
