"""What CUDA's threads tell each other, as functions for the host: one row a family of intrinsics.

    (r"nvvm\\.activemask", _active)       # pattern, and what writes the function

Sources: PTX ISA 8.x: shfl.sync, vote.sync, match.sync, redux.sync, elect.sync, barrier, cp.async.
"""

from __future__ import annotations

import re

from .block_barriers import ARRIVES, SINGLY
from .fibers import ASKS, AT_BARRIER
from .host_calls import Body, Made, Write, combiner
from .warp_ir import SHUFFLES


def _shuffle(body: Body, found: re.Match[str]) -> Made:
    how = SHUFFLES.index(found[1])
    kind = body.call.arguments[1][0]
    value = body.bits(kind, "%a1")
    both = body.let(
        f"call {{ i64, i1 }} @sim.shfl(i32 {how}, i64 {value}, i32 %a0, i32 %a2, i32 %a3, "
        f"i32 {body.kind}, i32 %site)"
    )
    got = body.of_bits(kind, body.let(f"extractvalue {{ i64, i1 }} {both}, 0"))
    if not found[3]:
        return body.done(got)
    return body.done(body.pair(got, body.let(f"extractvalue {{ i64, i1 }} {both}, 1")))


def _vote(body: Body, found: re.Match[str]) -> Made:
    mask = body.let("zext i32 %a0 to i64")
    bits = body.let(f"call i64 @sim.ballot(i1 %a1, i64 {mask}, i32 {body.kind}, i32 %site)")
    if found[1] == "ballot":
        return body.done(body.let(f"trunc i64 {bits} to i32"))
    active = body.let("call i64 @sim.active()")
    none = body.let(f"icmp eq i64 {bits}, 0")
    every = body.let(f"icmp eq i64 {bits}, {active}")
    return body.done(
        {
            "all": lambda: every,
            "any": lambda: body.let(f"xor i1 {none}, true"),
            "uni": lambda: body.let(f"or i1 {none}, {every}"),
        }[found[1]]()
    )


def _match(body: Body, found: re.Match[str]) -> Made:
    mask = body.let("zext i32 %a0 to i64")
    value = body.bits(body.call.arguments[1][0], "%a1")
    body.do(f"call void @sim.publish(i32 {body.kind}, i64 {mask}, i64 {value}, i32 %site)")
    same = body.let(f"call i64 @sim.equal(i64 {value})")
    narrow = body.let(f"trunc i64 {same} to i32")
    if found[1] == "any":
        return body.done(narrow)
    active = body.let("call i64 @sim.active()")
    every = body.let(f"icmp eq i64 {same}, {active}")
    return body.done(body.pair(body.let(f"select i1 {every}, i32 {narrow}, i32 0"), every))


def _redux(body: Body, found: re.Match[str]) -> Made:
    operation, absolute = found[1], bool(found[2])
    nan = found[3] or ""
    kind = body.call.arguments[0][0]
    value = "%a0"
    if absolute:
        value = body.let("call float @llvm.fabs.f32(float %a0)")
    bits = body.bits(kind, value)
    mask = body.let("zext i32 %a1 to i64")
    combine = f"{body.key}.combine"
    folded = body.let(
        f'call i64 @sim.fold(i64 {bits}, ptr @"{combine}", i64 {mask}, i32 {body.kind}, i32 %site)'
    )
    return body.done(body.of_bits(kind, folded), combiner(combine, operation + nan))


def _warp_sync(body: Body, found: re.Match[str]) -> Made:
    mask = body.let("zext i32 %a0 to i64")
    if body.call.checked:  # Python notes what is ordered by it
        body.do(f"call void @sim.wait(i32 {ASKS}, i32 -1, i64 {mask}, i32 %site)")
    else:
        body.do(f"call void @sim.publish(i32 {body.kind}, i64 {mask}, i64 0, i32 %site)")
    return body.done()


def _elect(body: Body, found: re.Match[str]) -> Made:
    mask = body.let("zext i32 %a0 to i64")
    body.do(f"call void @sim.publish(i32 {body.kind}, i64 {mask}, i64 0, i32 %site)")
    first = body.let("call i32 @llvm.cttz.i32(i32 %a0, i1 false)")
    lane = body.let("call i32 @sim.lane()")
    return body.done(body.pair(first, body.let(f"icmp eq i32 {first}, {lane}")))


def _active(body: Body, found: re.Match[str]) -> Made:
    body.do(f"call void @sim.publish(i32 {body.kind}, i64 4294967295, i64 0, i32 %site)")
    active = body.let("call i64 @sim.active()")
    return body.done(body.let(f"trunc i64 {active} to i32"))


def _barrier(body: Body, found: re.Match[str]) -> Made:
    """sync or arrive; for all, or for a count of threads; aligned ones: warps stay together."""
    how, aligned, counted = found[1], found[2], found[3] == "count"
    mask = "0"
    if counted:
        mask = body.let("zext i32 %a1 to i64")
        if how == "arrive":
            mask = body.let(f"or i64 {mask}, {ARRIVES}")
    if not aligned:
        mask = body.let(f"or i64 {mask}, {SINGLY}")
    body.do(f"call void @sim.wait(i32 {AT_BARRIER}, i32 %a0, i64 {mask}, i32 %site)")
    return body.done()


def _copy(body: Body, found: re.Match[str]) -> Made:
    size = int(found[1])
    given = "%a2" if found[2] else str(size)
    if body.call.checked:
        how = size | (size - 1) << 32  # both sides lie at a multiple of the size
        wide = str(how)
        if found[2]:
            wide = body.let(f"zext i32 {given} to i64")
            wide = body.let(f"or i64 {wide}, {(size - 1) << 32}")
        body.do(f"call void @sim.touch(ptr %a1, i64 {wide}, i32 %site)")
        body.do(f"call void @sim.touch(ptr %a0, i64 {how}, i32 %late)")
    body.lines.insert(0, "  %late = add i32 %site, 1")
    body.do(f"call void @sim.copy(ptr %a0, ptr %a1, i32 {size}, i32 {given}, i32 %late)")
    return body.done(sites=("load", "async"))


def _commit(body: Body, found: re.Match[str]) -> Made:
    body.do("call void @sim.commit()")
    return body.done()


def _land(body: Body, found: re.Match[str]) -> Made:
    pending = "-1" if found[1] == "all" else "%a0"
    body.do(f"call void @sim.land(i32 {pending}, i1 {str(body.call.checked).lower()})")
    return body.done()


_SPECIAL = {  # registers: a field of the thread's record, and what to do with it
    "laneid": "{lane}",
    "warpsize": "{wave}",
}


def _special(body: Body, found: re.Match[str]) -> Made:
    name = found[1]
    if name == "warpsize":
        return Made("value", body=f"add i32 {body.call.wave}, 0")
    lane = body.let("call i32 @sim.lane()")
    one = {"eq": "1", "lt": "1", "le": "2", "gt": "2", "ge": "1"}
    if name == "laneid":
        return body.done(lane, sites=())
    which = name.removeprefix("lanemask.")
    base = body.let(f"zext i32 {lane} to i64")
    bit = body.let(f"shl i64 {one[which]}, {base}")
    if which == "eq":
        mask = bit
    elif which in ("lt", "le"):
        mask = body.let(f"sub i64 {bit}, 1")
    else:
        mask = body.let(f"sub i64 0, {bit}")
    return body.done(body.let(f"trunc i64 {mask} to i32"), sites=())


def _matrices(body: Body, found: re.Match[str]) -> Made:
    """ldmatrix and stmatrix: lane i has 4 bytes of row i / 4 of each 8x8 matrix, or of its column
    if they are turned; the address of row r of matrix m is in lane 8 m + r."""
    loads, count, turned = found[1] == "ld", int(found[2]), bool(found[3])
    bits = body.let("ptrtoint ptr %a0 to i64")
    if body.call.checked:
        lane = body.let("call i32 @sim.lane()")
        has = body.let(f"icmp ult i32 {lane}, {8 * count}")
        body.lines += [f"  br i1 {has}, label %touch, label %meet", "touch:"]
        body.do(f"call void @sim.touch(ptr %a0, i64 {16 | 15 << 32}, i32 %site)")
        body.lines += ["  br label %meet", "meet:"]
    body.do(f"call void @sim.meet_whole(i64 {bits}, i32 %site)")
    lane = body.let("call i32 @sim.lane()")
    quarter, within = body.let(f"lshr i32 {lane}, 2"), body.let(f"and i32 {lane}, 3")
    values = [_pieces(body, loads, m, turned, quarter, within) for m in range(count)]
    body.do("call void @sim.meet_whole(i64 0, i32 %site)")
    if not loads:
        return body.done(sites=("store",))
    if count == 1:
        return body.done(values[0], sites=("load",))
    result = "poison"
    for i, value in enumerate(values):
        result = body.let(f"insertvalue {body.call.result} {result}, i32 {value}, {i}")
    return body.done(result, sites=("load",))


def _pieces(body: Body, loads: bool, m: int, turned: bool, quarter: str, within: str) -> str:
    """The two elements of one matrix that a lane has: a word of a row, or halves of two rows."""
    if not turned:
        row = body.let(f"call i64 @sim.peek(i32 {body.let(f'add i32 {quarter}, {8 * m}')})")
        offset = body.let(f"zext i32 {body.let(f'shl i32 {within}, 2')} to i64")
        at = body.let(f"inttoptr i64 {body.let(f'add i64 {row}, {offset}')} to ptr")
        if loads:
            return body.let(f"load i32, ptr {at}, align 1")
        body.do(f"store i32 %a{m + 1}, ptr {at}, align 1")
        return ""
    halves = []
    offset = body.let(f"zext i32 {body.let(f'shl i32 {quarter}, 1')} to i64")
    for j in range(2):
        number = body.let(f"add i32 {body.let(f'shl i32 {within}, 1')}, {8 * m + j}")
        row = body.let(f"call i64 @sim.peek(i32 {number})")
        at = body.let(f"inttoptr i64 {body.let(f'add i64 {row}, {offset}')} to ptr")
        if loads:
            halves.append(body.let(f"zext i16 {body.let(f'load i16, ptr {at}, align 1')} to i32"))
        else:
            part = body.let(f"lshr i32 %a{m + 1}, {16 * j}")
            body.do(f"store i16 {body.let(f'trunc i32 {part} to i16')}, ptr {at}, align 1")
    if not loads:
        return ""
    return body.let(f"or i32 {halves[0]}, {body.let(f'shl i32 {halves[1]}, 16')}")


NVIDIA_ROWS: list[tuple[str, Write]] = [
    (r"nvvm\.shfl\.sync\.(up|down|bfly|idx)\.(i32|f32)(p?)", _shuffle),
    (r"nvvm\.vote\.(all|any|uni|ballot)\.sync", _vote),
    (r"nvvm\.match\.(any|all)\.sync\.i(?:32|64)p?", _match),
    (r"nvvm\.redux\.sync\.(u?min|u?max|add|and|or|xor|fmin|fmax)(\.abs)?(\.NaN)?", _redux),
    (r"nvvm\.bar\.warp\.sync", _warp_sync),
    (r"nvvm\.elect\.sync", _elect),
    (r"nvvm\.activemask", _active),
    (r"nvvm\.barrier\.cta\.(sync|arrive)(\.aligned)?\.(all|count)", _barrier),
    (r"nvvm\.cp\.async\.c[ag]\.shared\.global\.(4|8|16)(\.s)?", _copy),
    (r"nvvm\.(ld|st)matrix\.sync\.aligned\.m8n8\.x([124])(\.trans)?\.b16\.p0", _matrices),
    (r"nvvm\.cp\.async\.commit\.group", _commit),
    (r"nvvm\.cp\.async\.wait\.(group|all)", _land),
    (r"nvvm\.read\.ptx\.sreg\.(laneid|warpsize|lanemask\.(?:eq|lt|le|gt|ge))", _special),
]
