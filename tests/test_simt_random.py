"""The race detector and the counters against plain models of them, on random kernels."""

import itertools

import numpy as np
import pytest
from dodeca.dialect.errors import Error
from simt_kernels import kernel, run
from simt_mutants import BARRIER, Lines, shared

THREADS, WORDS = 64, 6
SYNC = "call void @llvm.nvvm.bar.warp.sync(i32 -1)"


def random_steps(rng):
    """Steps of a kernel: a barrier, a warp barrier, or an access of some threads to some bytes."""
    steps = []
    for _ in range(rng.integers(2, 7)):
        kind = rng.choice(
            ["barrier", "sync", "load", "store", "atomic"], p=[0.2, 0.2, 0.2, 0.3, 0.1]
        )
        if kind in ("barrier", "sync"):
            steps.append((kind, 0, None))
            continue
        size = int(rng.choice([1, 2, 4])) if kind != "atomic" else 4
        # few threads, and mostly words of their own, so that about half of all kernels race
        takes_part = rng.random(THREADS) < rng.choice([0.02, 0.1])
        spread = rng.choice([WORDS, 400])
        place = rng.integers(0, spread, THREADS) * 4 // size * size
        steps.append((str(kind), size, np.where(takes_part, place, -1).astype(np.int32)))
    return steps


def races(steps):
    """Whether two accesses of different threads to a byte, one of them plain and one a write, are
    not ordered: all pairs, by what each thread knows of the others after each step."""
    know = np.zeros((THREADS, THREADS), int)  # of whom it knows how many steps are over
    events = []
    for number, (kind, size, place) in enumerate(steps, 1):
        if kind == "barrier":
            know[:] = number
        elif kind == "sync":
            for warp in range(0, THREADS, 32):
                part = slice(warp, warp + 32)
                known = know[part].max(0)
                known[part] = number
                know[part] = known
        else:
            for thread in np.flatnonzero(place >= 0):
                where = range(place[thread], place[thread] + size)
                events.append((number, thread, kind, set(where), know[thread].copy()))
    for a, b in itertools.combinations(events, 2):
        if a[1] == b[1] or not a[3] & b[3] or {a[2], b[2]} in ({"load"}, {"atomic"}):
            continue
        if not (b[4][a[1]] >= a[0] or a[4][b[1]] >= b[0]):
            return True
    return False


def built(steps):
    f, tables = Lines(), ""
    for number, (kind, size, place) in enumerate(steps):
        if kind in ("barrier", "sync"):
            f.do(BARRIER["cuda"] if kind == "barrier" else SYNC)
            continue
        entries = ", ".join(f"i32 {x}" for x in place)
        tables += f"@t{number} = internal addrspace(4) constant [{THREADS} x i32] [{entries}]\n"
        at = f.load("i32", f"@t{number}", "%t", 4)
        f.do(f"br i1 {f.let(f'icmp sge i32 {at}, 0')}, label %do{number}, label %done{number}")
        f.label(f"do{number}")
        pointer, of = f.at("i8", "@s", at, 3), f"i{8 * size}"
        if kind == "load":
            f.let(f"load volatile {of}, ptr addrspace(3) {pointer}, align {size}")
        elif kind == "store":
            f.do(f"store {of} 1, ptr addrspace(3) {pointer}, align {size}")
        else:
            f.let(f"atomicrmw add ptr addrspace(3) {pointer}, i32 1 monotonic, align 4")
        f.do(f"br label %done{number}")
        f.label(f"done{number}")
    return kernel("cuda:sm_80", f.text, 0, shared("s", 512) + tables)


@pytest.mark.parametrize("seed", range(60))
def test_races_of_random_kernels(seed):
    steps = random_steps(np.random.default_rng(seed))
    expected = races(steps)
    for reverse in (False, True):
        try:
            run(built(steps), "cuda:sm_80", [], threads=THREADS, reverse=reverse)
            found = False
        except Error as error:
            assert "a race on byte" in str(error)
            found = True
        assert found == expected, steps


def test_about_half_of_them_race():
    count = sum(races(random_steps(np.random.default_rng(seed))) for seed in range(60))
    assert 15 < count < 45


# The lanes that shared memory takes together, by the size of an access. Reads of 16 bytes on CDNA:
# AMD's blog on bank conflicts in CK-Tile has lanes 0-3 with 20-23, and so on, then the upper half.
IN_ORDER = {
    size: [range(first, first + count) for first in range(0, 64, count)]
    for size, count in ((2, 32), (4, 32), (8, 16), (16, 8))
}
_PAIRS = ((0, 20), (4, 16), (8, 28), (12, 24))
CDNA_READS = IN_ORDER | {
    16: [[*range(h + a, h + a + 4), *range(h + b, h + b + 4)] for h in (0, 32) for a, b in _PAIRS]
}
CASES = [("cuda:sm_80", False), ("hip:gfx942", False), ("hip:gfx942", True), ("hip:gfx950", True)]


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("size", [2, 4, 8, 16])
@pytest.mark.parametrize("target, writes", CASES)
def test_counts_of_random_addresses(seed, size, target, writes):
    """Sectors and bank conflicts of 64 threads, of which some take no part."""
    rng = np.random.default_rng(seed)
    place = rng.permutation(500)[:64] * size if writes else rng.integers(0, 100, 64) * size
    place[rng.random(64) < 0.2] = -1
    f = Lines()
    entries = ", ".join(f"i32 {x}" for x in place)
    at = f.load("i32", "@table", "%t", 4)
    f.do(f"br i1 {f.let(f'icmp sge i32 {at}, 0')}, label %go, label %done")
    f.label("go")
    kind = {2: "half", 4: "float", 8: "<2 x float>", 16: "<4 x float>"}[size]
    shared_at, global_at = f.at("i8", "@s", at, 3), f.at("i8", "%p0", at)
    for pointer, space in ((shared_at, 3), (global_at, 1)):
        if writes:
            f.do(f"store {kind} zeroinitializer, ptr addrspace({space}) {pointer}, align {size}")
        else:
            f.let(f"load {kind}, ptr addrspace({space}) {pointer}, align {size}")
    f.do("br label %done")
    f.label("done")
    before = f"@table = internal addrspace(4) constant [64 x i32] [{entries}]\n" + shared("s", 2000)
    memory = np.zeros(2048 + 32, np.float32)
    memory = memory[-memory.ctypes.data % 128 // 4 :][:2048]
    counts = run(kernel(target, f.text, 1, before), target, [memory], threads=64, counting=True)
    wave, unit = (32, 32) if target == "cuda:sm_80" else (64, 64)
    banks = 64 if target == "hip:gfx950" else 32
    sectors = cycles = ideal = 0
    for first in range(0, 64, wave):
        there = [int(x) for x in place[first : first + wave] if x >= 0]
        sectors += len({(x + byte) // unit for x in there for byte in range(size)})
        ideal += -(-len(set(there)) * size // unit)
    phases = CDNA_READS[size] if target == "hip:gfx942" and not writes else IN_ORDER[size]
    if banks == 64:  # twice as many lanes at once
        phases = [[*a, *b] for a, b in zip(phases[::2], phases[1::2], strict=True)]
    for lanes in phases:
        words = {int(x + byte) // 4 for x in place[lanes] if x >= 0 for byte in range(size)}
        cycles += max(sum(word % banks == bank for word in words) for bank in range(banks))
    in_global = counts.global_store if writes else counts.global_load
    in_shared = counts.shared_store if writes else counts.shared_load
    assert (in_global.sectors, in_global.ideal) == (sectors, ideal)
    assert (in_shared.cycles, in_shared.requests) == (cycles, 64 // wave)
