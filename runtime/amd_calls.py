"""What AMD's lanes tell each other, and its buffers, as functions for the host.

    (r"amdgcn\\.ds\\.swizzle", _swizzle)       # pattern, and what writes the function

Lanes meet at one instruction, as a wave does; a lane that is elsewhere is an error, except one that
has left. Sources: CDNA3 and RDNA3 ISA guides (DPP, ds_swizzle, ds_permute, v_permlane, buffers).
"""

from __future__ import annotations

import re

from .block_barriers import ARRIVES, HALF
from .fibers import ARENA, ASKS, AT_BARRIER, STATE, offset_of
from .host_calls import Body, Made, Write, combiner
from .ir_text import bytes_of
from .lane_maps import dpp_sources, swap_sources, swizzle_sources


def _table(body: Body, sources: list[int]) -> str:
    """A constant table of lanes: the IR of it, named after the function."""
    entries = ", ".join(f"i8 {lane}" for lane in sources)
    return f'@"{body.key}.lanes" = internal constant [{len(sources)} x i8] [{entries}]\n'


def _permuted(body: Body, sources: list[int], value: int, otherwise: str) -> Made:
    kind = body.call.arguments[value][0]
    bits = body.bits(kind, f"%a{value}")
    got = body.let(
        f'call i64 @sim.permute(ptr @"{body.key}.lanes", i64 {bits}, i64 {otherwise}, i64 -1, '
        f"i32 %site, i32 %site)"
    )
    return body.done(body.of_bits(kind, got), _table(body, sources))


def _dpp(body: Body, found: re.Match[str]) -> Made:
    call, old = body.call, found[1] == "update"
    control, rows, banks, bound = (call.number(i + old) for i in range(1, 5))
    body.key = f"{body.key}.{control}.{rows}.{banks}.{bound}"
    kept = body.bits(call.arguments[0][0], "%a0") if old else "-1"
    sources = dpp_sources(control, call.wave)
    # what is not written keeps the old value; what reads beyond gets 0 if bounds are controlled
    written = [rows >> (i // 16) % 4 & banks >> i // 4 % 4 & 1 for i in range(call.wave)]
    bits = body.bits(call.arguments[int(old)][0], f"%a{int(old)}")
    got = body.let(
        f'call i64 @sim.permute(ptr @"{body.key}.lanes", i64 {bits}, '
        f"i64 {'0' if bound else kept}, i64 -1, i32 %site, i32 %site)"
    )
    lane = body.let("call i32 @sim.lane()")
    at = body.let(f'getelementptr i8, ptr @"{body.key}.written", i32 {lane}')
    flag = body.let(f"load i8, ptr {at}")
    yes = body.let(f"icmp ne i8 {flag}, 0")
    chosen = body.let(f"select i1 {yes}, i64 {got}, i64 {kept}")
    flags = ", ".join(f"i8 {int(bool(one))}" for one in written)
    extra = f'@"{body.key}.written" = internal constant [{call.wave} x i8] [{flags}]\n'
    return body.done(body.of_bits(call.result, chosen), _table(body, sources) + extra)


def _swizzle(body: Body, found: re.Match[str]) -> Made:
    offset = body.call.number(1)
    body.key = f"{body.key}.{offset}"
    return _permuted(body, swizzle_sources(offset, body.call.wave), 0, "0")


def _halves(body: Body, found: re.Match[str]) -> Made:
    wave = body.call.wave
    return _permuted(body, [i ^ 32 if wave == 64 else i for i in range(wave)], 0, "-1")


def _swap(body: Body, found: re.Match[str]) -> Made:
    """permlane16.swap and permlane32.swap: rows of one register against rows of another."""
    lower, upper = body.let("zext i32 %a0 to i64"), body.let("zext i32 %a1 to i64")
    both = body.let(f"or i64 {lower}, {body.let(f'shl i64 {upper}, 32')}")
    first, second = swap_sources(int(found[1]), body.call.wave)
    values = []
    for number in range(2):
        name = f"{body.key}.{number}"
        got = body.let(
            f'call i64 @sim.permute(ptr @"{name}.lanes", i64 {both}, i64 -1, i64 -1, '
            f"i32 %site, i32 %site)"
        )
        lane = body.let("call i32 @sim.lane()")
        at = body.let(f'getelementptr i8, ptr @"{name}.halves", i32 {lane}')
        shift = body.let(f"zext i8 {body.let(f'load i8, ptr {at}')} to i64")
        part = body.let(f"lshr i64 {got}, {shift}")
        values.append(body.let(f"trunc i64 {part} to i32"))
    extra = ""
    for number, sources in enumerate((first, second)):
        lanes = ", ".join(f"i8 {lane}" for lane, _ in sources)
        halves = ", ".join(f"i8 {32 * half}" for _, half in sources)
        size = len(sources)
        extra += f'@"{body.key}.{number}.lanes" = internal constant [{size} x i8] [{lanes}]\n'
        extra += f'@"{body.key}.{number}.halves" = internal constant [{size} x i8] [{halves}]\n'
    return body.done(body.pair(*values), extra)


def _first_lane(body: Body, found: re.Match[str]) -> Made:
    return _read(body, "-1", "-1")


def _read_lane(body: Body, found: re.Match[str]) -> Made:
    return _read(body, body.let(f"and i32 %a1, {body.call.wave - 1}"), "-1")


def _read(body: Body, lane: str, otherwise: str, value: int = 0) -> Made:
    kind = body.call.arguments[value][0]
    bits = body.bits(kind, f"%a{value}")
    got = body.let(
        f"call i64 @sim.read(i32 {lane}, i64 {bits}, i64 {otherwise}, i64 -1, i32 %site, i32 %site)"
    )
    return body.done(body.of_bits(kind, got))


def _write_lane(body: Body, found: re.Match[str]) -> Made:
    lane = body.let("call i32 @sim.lane()")
    goal = body.let(f"and i32 %a1, {body.call.wave - 1}")
    own, kind = body.let(f"icmp eq i32 {lane}, {goal}"), body.call.result
    return body.done(body.let(f"select i1 {own}, {kind} %a0, {kind} %a2"), sites=())


def _backwards(body: Body, found: re.Match[str]) -> Made:
    index = body.let("lshr i32 %a0, 2")
    return _read(body, body.let(f"and i32 {index}, {body.call.wave - 1}"), "0", 1)


def _forwards(body: Body, found: re.Match[str]) -> Made:
    index = body.let("lshr i32 %a0, 2")
    goal = body.let(f"and i32 {index}, {body.call.wave - 1}")
    upper = body.let(f"shl i64 {body.let(f'zext i32 {goal} to i64')}, 32")
    both = body.let(f"or i64 {upper}, {body.let('zext i32 %a1 to i64')}")
    got = body.let(f"call i64 @sim.push(i64 {both}, i32 %site, i32 %site)")
    return body.done(body.let(f"trunc i64 {got} to i32"))


def _permlane(body: Body, found: re.Match[str]) -> Made:
    """permlane16 picks a lane of its own row, permlanex16 of the other row of the pair."""
    lane = body.let("call i32 @sim.lane()")
    low, high = body.let("zext i32 %a2 to i64"), body.let("zext i32 %a3 to i64")
    choices = body.let(f"or i64 {low}, {body.let(f'shl i64 {high}, 32')}")
    within = body.let(f"and i32 {lane}, 15")
    shift = body.let(f"zext i32 {body.let(f'shl i32 {within}, 2')} to i64")
    choice = body.let(f"trunc i64 {body.let(f'lshr i64 {choices}, {shift}')} to i32")
    row = body.let(f"and i32 {lane}, 48")
    if found[1]:
        row = body.let(f"xor i32 {row}, 16")
    source = body.let(f"or i32 {row}, {body.let(f'and i32 {choice}, 15')}")
    bound = body.call.number(5)
    body.key += f".{bound}"
    otherwise = "0" if bound else body.bits(body.call.arguments[0][0], "%a0")
    return _read(body, source, otherwise, 1)


def _count_below(body: Body, found: re.Match[str]) -> Made:
    """mbcnt: set bits of a mask below this lane, in the lower or upper 32 lanes, plus a base."""
    lane = body.let("call i32 @sim.lane()")
    wide = body.let(f"zext i32 {lane} to i64")
    below = body.let(f"sub i64 {body.let(f'shl i64 1, {wide}')}, 1")
    half = body.let(f"lshr i64 {below}, {0 if found[1] == 'lo' else 32}")
    masked = body.let(f"and i32 {body.let(f'trunc i64 {half} to i32')}, %a0")
    count = body.let(f"call i32 @llvm.ctpop.i32(i32 {masked})")
    return body.done(body.let(f"add i32 {count}, %a1"), sites=())


def _amd_ballot(body: Body, found: re.Match[str]) -> Made:
    bits = body.let("call i64 @sim.ballot(i1 %a0, i64 -1, i32 %site, i32 %site)")
    return body.done(body.of_bits(body.call.result, bits))


def _wave_reduce(body: Body, found: re.Match[str]) -> Made:
    kind = body.call.arguments[0][0]
    bits, combine = body.bits(kind, "%a0"), f"{body.key}.combine"
    folded = body.let(
        f'call i64 @sim.fold(i64 {bits}, ptr @"{combine}", i64 -1, i32 %site, i32 %site)'
    )
    return body.done(body.of_bits(kind, folded), combiner(combine, found[1]))


def _wave_barrier(body: Body, found: re.Match[str]) -> Made:
    body.do(f"call void @sim.wait(i32 {AT_BARRIER}, i32 0, i64 0, i32 %site)")
    return body.done()


def _wave_sync(body: Body, found: re.Match[str]) -> Made:
    """What a wave does in memory before this, its lanes see after it."""
    if body.call.checked:  # Python notes what is ordered by it
        body.do(f"call void @sim.wait(i32 {ASKS}, i32 -1, i64 -1, i32 %site)")
    else:
        body.do("call void @sim.publish(i32 %site, i64 -1, i64 0, i32 %site)")
    return body.done()


def _is_shared(body: Body, found: re.Match[str]) -> Made:
    state = body.let("call ptr @sim.address()")
    at = body.let(f"getelementptr i8, ptr {state}, i64 {offset_of(STATE, 'shared')}")
    start, address = body.let(f"load i64, ptr {at}"), body.let("ptrtoint ptr %a0 to i64")
    inside = body.let(f"icmp ult i64 {body.let(f'sub i64 {address}, {start}')}, {ARENA}")
    if found[1] == "global":
        inside = body.let(f"xor i1 {inside}, true")
    return body.done(inside, sites=())


def _signal(body: Body, found: re.Match[str]) -> Made:
    mask = HALF | (ARRIVES if found[1] == "signal" else 0)
    number = "%a0" if found[1] == "signal" else body.let("sext i16 %a0 to i32")
    body.do(f"call void @sim.wait(i32 {AT_BARRIER}, i32 {number}, i64 {mask}, i32 %site)")
    return body.done()


def _wave_size(body: Body, found: re.Match[str]) -> Made:
    return Made("value", body=f"add i32 {body.call.wave}, 0")


def _resource(body: Body, found: re.Match[str]) -> Made:
    """A descriptor of a buffer: on the host, a pointer to where its start and its size are kept."""
    size = "%a2"
    if body.call.arguments[2][0] != "i64":
        size = body.let("zext i32 %a2 to i64")
    return body.done(body.let(f"call ptr @sim.resource(ptr %a0, i64 {size}, i32 %site)"))


def _buffer(body: Body, found: re.Match[str]) -> Made:
    """raw.ptr.buffer.load and .store: what lies beyond the buffer reads as 0 and is not written."""
    is_load = found[1] == "load"
    kind = body.call.result if is_load else body.call.arguments[0][0]
    size, first = bytes_of(kind), 0 if is_load else 1
    place = body.let(f"alloca {kind}, align 16")
    if not is_load:
        body.do(f"store {kind} %a0, ptr {place}, align 16")
    body.do(
        f"call void @sim.buffer(i1 {str(is_load).lower()}, ptr {place}, ptr %a{first}, "
        f"i32 %a{first + 1}, i32 %a{first + 2}, i64 {size}, i1 {str(body.call.checked).lower()}, "
        "i32 %site)"
    )
    value = body.let(f"load {kind}, ptr {place}, align 16") if is_load else ""
    return body.done(value, sites=(found[1],))


def _to_shared(body: Body, found: re.Match[str]) -> Made:
    """load.to.lds: lane i's bytes go behind each other, from the first lane's pointer on."""
    size, offset = body.call.number(2), body.call.number(3)
    body.key += f".{size}.{offset}"
    bits = body.let("ptrtoint ptr %a1 to i64")
    base = body.let(f"call i64 @sim.read(i32 -1, i64 {bits}, i64 -1, i64 -1, i32 %site, i32 %site)")
    lane = body.let(f"zext i32 {body.let('call i32 @sim.lane()')} to i64")
    moved = body.let(f"add i64 {body.let(f'mul i64 {lane}, {size}')}, {offset}")
    to = body.let(f"inttoptr i64 {body.let(f'add i64 {base}, {moved}')} to ptr")
    of = body.let(f"getelementptr i8, ptr %a0, i64 {offset}")
    if body.call.checked:
        body.do(f"call void @sim.touch(ptr {of}, i64 {size}, i32 %site)")
        body.do(f"call void @sim.touch(ptr {to}, i64 {size}, i32 {body.let('add i32 %site, 1')})")
    value = body.let(f"load i{8 * size}, ptr {of}, align 1")
    body.do(f"store i{8 * size} {value}, ptr {to}, align 1")
    return body.done(sites=("load", "store"))


AMD_ROWS: list[tuple[str, Write]] = [
    (r"amdgcn\.(update|mov)\.dpp(?:\..*)?", _dpp),
    (r"amdgcn\.ds\.swizzle", _swizzle),
    (r"amdgcn\.ds\.bpermute", _backwards),
    (r"amdgcn\.ds\.permute", _forwards),
    (r"amdgcn\.readfirstlane(?:\..*)?", _first_lane),
    (r"amdgcn\.readlane(?:\..*)?", _read_lane),
    (r"amdgcn\.writelane(?:\..*)?", _write_lane),
    (r"amdgcn\.permlane(x?)16(?:\.[if]\d+)?", _permlane),
    (r"amdgcn\.permlane64(?:\..*)?", _halves),
    (r"amdgcn\.permlane(16|32)\.swap", _swap),
    (r"amdgcn\.mbcnt\.(lo|hi)", _count_below),
    (r"amdgcn\.ballot(?:\.i\d+)?", _amd_ballot),
    (r"amdgcn\.wave\.reduce\.(\w+)\.(?:i32|f32)", _wave_reduce),
    (r"amdgcn\.wave\.barrier", _wave_sync),
    (r"(?:nvvm\.isspacep|amdgcn\.is)\.(shared|global)", _is_shared),
    (r"amdgcn\.s\.barrier", _wave_barrier),
    (r"amdgcn\.s\.barrier\.(signal|wait)", _signal),
    (r"amdgcn\.wavefrontsize", _wave_size),
    (r"amdgcn\.make\.buffer\.rsrc\.p0\.p0", _resource),
    (r"amdgcn\.raw\.ptr\.buffer\.(load|store)\.\w+", _buffer),
    (r"amdgcn\.(?:global\.load\.lds|load\.to\.lds(?:\.p0)?)", _to_shared),
]
