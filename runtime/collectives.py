"""What threads of a block do together: which function stands for which intrinsic.

In: a call in a kernel, with its types. Out: how it is written for the host. There are three kinds:
a value (a thread's own lane), a function in LLVM IR that meets the warp and looks at what the
others have shown (shuffles, votes), or an `Operation`, which Python does in numpy when all have
asked:

    made = collective(Call("nvvm.shfl.sync.bfly.f32", "float", [...], wave=32, checked=True), [])
    made.key, made.body          # "sim.nvvm.shfl.sync.bfly.f32", "define internal float @..."
"""

from __future__ import annotations

import re

from .amd_calls import AMD_ROWS
from .fibers import ASKS, THREAD, offset_of
from .host_calls import Body, Call, Made
from .nvidia_calls import NVIDIA_ROWS
from .operations import Operation, operation_for

_NOTHING = [  # what has no meaning where memory is in order and nothing runs ahead
    r"nvvm\.membar\..*",
    r"nvvm\.fence\..*",
    r"nvvm\.prefetch.*",
    r"nvvm\.cp\.async\.bulk\.prefetch.*",
    r"nvvm\.wgmma\.fence.*",
    r"nvvm\.setmaxnreg.*",
    r"nvvm\.mbarrier\.inval.*",
    r"nvvm\.griddepcontrol.*",
    r"amdgcn\.s\.(?:waitcnt.*|wait\..*|setprio.*|sleep|nop|sched.*)",
    r"amdgcn\.(?:sched\..*|iglp\.opt)",
]


def collective(call: Call, operations: list[Operation]) -> Made | None:
    """How a call is written for the host; None if nobody knows it."""
    if any(re.fullmatch(pattern, call.name) for pattern in _NOTHING):
        return Made("nothing")
    for pattern, write in (*NVIDIA_ROWS, *AMD_ROWS):
        found = re.fullmatch(pattern, call.name)
        if found:
            return write(Body(call, f"sim.{call.name}"), found)
    operation = operation_for(call.name, call.result, call.arguments, call.chip)
    return None if operation is None else _asked(call, operation, operations)


def _asked(call: Call, operation: Operation, operations: list[Operation]) -> Made:
    """Lay the arguments out, ask, and read the results; one operation a function."""
    body = Body(call, f"sim.{call.name}{operation.suffix}")
    number = next((i for i, one in enumerate(operations) if one.key == body.key), len(operations))
    if number == len(operations):
        operations.append(operation.named(body.key))
    exchange = offset_of(THREAD, "exchange")
    thread = body.let("call ptr @sim.thread()")
    at = body.let(f"getelementptr i8, ptr {thread}, i64 {exchange}")
    given = body.let(f"load ptr, ptr {at}")
    for (kind, _), offset, position in zip(
        call.arguments, operation.given.offsets, range(len(call.arguments)), strict=True
    ):
        place = body.let(f"getelementptr i8, ptr {given}, i64 {offset}")
        value = f"%a{position}"
        if kind == "i1":
            kind, value = "i8", body.let(f"zext i1 {value} to i8")
        body.do(f"store {kind} {value}, ptr {place}, align 1")
    body.lines += operation.touches(body.let) if call.checked else []
    if operation.product is not None:
        body.do(f"call void @sim.matrix(i32 {number}, i32 %site)")
    else:
        body.do(f"call void @sim.wait(i32 {ASKS}, i32 {number}, i64 0, i32 %site)")
    if call.result == "void":
        return body.done(sites=operation.sites)
    value = "poison"
    for index, (kind, offset) in enumerate(
        zip(operation.back.kinds, operation.back.offsets, strict=True)
    ):
        place = body.let(f"getelementptr i8, ptr {given}, i64 {operation.back_at + offset}")
        stored = "i8" if kind == "i1" else kind
        member = body.let(f"load {stored}, ptr {place}, align 1")
        if kind == "i1":
            member = body.let(f"trunc i8 {member} to i1")
        if not call.result.startswith("{"):
            value = member
        else:
            value = body.let(f"insertvalue {call.result} {value}, {kind} {member}, {index}")
    return body.done(value, sites=operation.sites)
