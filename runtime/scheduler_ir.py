"""The scheduler of simulated threads, as LLVM IR.

In: the records of `fibers` (`{S.name}` is where a field of the state lies, `{T.name}` the offset of
a field of a thread's record, `{A.name}` of one in the log). Out: `sim.go`, which runs blocks and
comes back when it is done or Python is needed:

    why = sim.go()      # FINISHED, BLOCKED, FAILED, LOG_IS_FULL or BLOCK_ENDED

Each thread has a stack of its own and runs until it waits: at a barrier of the block, where it
meets its warp, or where it asks Python for something. What most kernels do needs no Python: a round
runs every thread that can run; then a barrier at which all threads stand opens, and warps whose
threads stand at the same collective go on. If nothing can go on, `sim.go` returns BLOCKED.

What threads of a warp tell each other goes through two slots of their records, by turns: a thread
that has read the others' values may publish its next one while they still read, but not the one
after, since for that all of them have to meet again.
"""

from __future__ import annotations

# Callee-saved registers of the System V ABI; rounding modes are never changed.
_SAVED = ("rbp", "rbx", "r12", "r13", "r14", "r15")
_MOVES = "; ".join(
    [
        *(f"pushq %{one}" for one in _SAVED),
        *("movq %rsp, (%rdi)", "movq %rsi, %rsp"),
        *(f"popq %{one}" for one in reversed(_SAVED)),
        "retq",
    ]
)
SWITCH = f"""
define void @sim.switch(ptr %from, ptr %to) naked noinline {{
  call void asm sideeffect "{_MOVES}", ""()
  unreachable
}}
"""

SCHEDULER = r"""
@sim.state = global [SIZE_OF_STATE x i8] zeroinitializer, align 64
declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)

define ptr @sim.address() {
  ret ptr @sim.state
}

define ptr @sim.thread() {
  %t = load ptr, ptr {S.current}
  ret ptr %t
}

; The present thread stops here until somebody makes it ready.
define void @sim.wait(i32 %state, i32 %kind, i64 %mask, i32 %site) noinline {
  %t = load ptr, ptr {S.current}
  %state.at = getelementptr i8, ptr %t, i64 {T.state}
  store i32 %state, ptr %state.at
  %kind.at = getelementptr i8, ptr %t, i64 {T.kind}
  store i32 %kind, ptr %kind.at
  %mask.at = getelementptr i8, ptr %t, i64 {T.mask}
  store i64 %mask, ptr %mask.at
  %site.at = getelementptr i8, ptr %t, i64 {T.site}
  store i32 %site, ptr %site.at
  %main = load ptr, ptr {S.main}
  call void @sim.switch(ptr %t, ptr %main)
  ret void
}

define void @sim.fail(i64 %failure, ptr %at, i64 %bytes, i32 %site) noinline {
  store i64 %failure, ptr {S.failure}
  store ptr %at, ptr {S.failed_at}
  store i64 %bytes, ptr {S.failed_bytes}
  %wide = sext i32 %site to i64
  store i64 %wide, ptr {S.failed_site}
  %t = load ptr, ptr {S.current}
  %main = load ptr, ptr {S.main}
  call void @sim.switch(ptr %t, ptr %main)
  ret void
}

; Show a value to the warp, and meet it.
define void @sim.publish(i32 %kind, i64 %mask, i64 %value, i32 %site) {
  %t = load ptr, ptr {S.current}
  %turn.at = getelementptr i8, ptr %t, i64 {T.turn}
  %turn = load i32, ptr %turn.at
  %other = xor i32 %turn, 1
  store i32 %other, ptr %turn.at
  %slots = getelementptr i8, ptr %t, i64 {T.slots}
  %slot = getelementptr i64, ptr %slots, i32 %other
  store i64 %value, ptr %slot
  call void @sim.wait(i32 IN_WARP, i32 %kind, i64 %mask, i32 %site)
  ret void
}

; What a lane of the warp has shown where the warp met last.
define i64 @sim.peek(i32 %lane) {
  %t = load ptr, ptr {S.current}
  %turn.at = getelementptr i8, ptr %t, i64 {T.turn}
  %turn = load i32, ptr %turn.at
  %first.at = getelementptr i8, ptr %t, i64 {T.first}
  %first = load i32, ptr %first.at
  %number = add i32 %first, %lane
  %threads = load ptr, ptr {S.threads}
  %offset = mul i32 %number, SIZE_OF_THREAD
  %one = getelementptr i8, ptr %threads, i32 %offset
  %slots = getelementptr i8, ptr %one, i64 {T.slots}
  %slot = getelementptr i64, ptr %slots, i32 %turn
  %value = load i64, ptr %slot
  ret i64 %value
}

define internal void @body() noreturn {
  %kernel = load ptr, ptr {S.kernel}
  %table = load ptr, ptr {S.table}
  call void %kernel(ptr %table)
  call void @sim.wait(i32 DONE, i32 0, i64 0, i32 0)
  unreachable
}

; All threads of all blocks, one after the other, in one fiber: they never wait.
define internal void @alone() noreturn {
entry:
  %kernel = load ptr, ptr {S.kernel}
  %table = load ptr, ptr {S.table}
  %t = load ptr, ptr {S.current}
  %n = load i64, ptr {S.count}
  %reverse = load i64, ptr {S.reverse}
  %backwards = icmp ne i64 %reverse, 0
  %first = load i64, ptr {S.block}
  %last = load i64, ptr {S.last}
  %step = load i64, ptr {S.step}
  br label %blocks
blocks:
  %b = phi i64 [ %first, %entry ], [ %b.next, %block.end ]
  %over = icmp eq i64 %b, %last
  br i1 %over, label %out, label %block.begin
block.begin:
  store i64 %b, ptr {S.block}
  call void @place(ptr %t, i64 %b)
  %shared = load ptr, ptr {S.shared}
  %bytes = load i64, ptr {S.shared_bytes}
  %any = icmp ne i64 %bytes, 0
  br i1 %any, label %poison, label %head
poison:
  call void @llvm.memset.p0.i64(ptr %shared, i8 -1, i64 %bytes, i1 false)
  br label %head
head:
  %i = phi i64 [ 0, %block.begin ], [ 0, %poison ], [ %next, %run ]
  %more = icmp ult i64 %i, %n
  br i1 %more, label %run, label %block.end
run:
  %up = add i64 %i, 1
  %down = sub i64 %n, %up
  %number = select i1 %backwards, i64 %down, i64 %i
  call void @name(ptr %t, i64 %number)
  store i64 0, ptr {S.touched}
  call void %kernel(ptr %table)
  %next = add i64 %i, 1
  br label %head
block.end:
  %window = load i64, ptr {S.window}
  %window.next = add i64 %window, 1
  store i64 %window.next, ptr {S.window}
  %b.next = add i64 %b, %step
  br label %blocks
out:
  call void @sim.wait(i32 DONE, i32 0, i64 0, i32 0)
  unreachable
}

; Which block a thread is of, and which thread of it.
define internal void @place(ptr %t, i64 %block) {
  %nx = load i32, ptr {S.nctaid}
  %ny.at = getelementptr i32, ptr {S.nctaid}, i64 1
  %ny = load i32, ptr %ny.at
  %b = trunc i64 %block to i32
  %x = urem i32 %b, %nx
  %rest = udiv i32 %b, %nx
  %y = urem i32 %rest, %ny
  %z = udiv i32 %rest, %ny
  %x.at = getelementptr i8, ptr %t, i64 {T.ctaid}
  store i32 %x, ptr %x.at
  %y.at = getelementptr i32, ptr %x.at, i64 1
  store i32 %y, ptr %y.at
  %z.at = getelementptr i32, ptr %x.at, i64 2
  store i32 %z, ptr %z.at
  ret void
}

define internal void @name(ptr %t, i64 %number) {
entry:
  %n = trunc i64 %number to i32
  %nx = load i32, ptr {S.ntid}
  %x.at = getelementptr i8, ptr %t, i64 {T.tid}
  %y.at = getelementptr i32, ptr %x.at, i64 1
  %z.at = getelementptr i32, ptr %x.at, i64 2
  %line = icmp ult i32 %n, %nx
  br i1 %line, label %place, label %divide
divide:
  %ny.at = getelementptr i32, ptr {S.ntid}, i64 1
  %ny = load i32, ptr %ny.at
  %x.part = urem i32 %n, %nx
  %rest = udiv i32 %n, %nx
  %y.part = urem i32 %rest, %ny
  %z.part = udiv i32 %rest, %ny
  br label %place
place:
  %x = phi i32 [ %n, %entry ], [ %x.part, %divide ]
  %y = phi i32 [ 0, %entry ], [ %y.part, %divide ]
  %z = phi i32 [ 0, %entry ], [ %z.part, %divide ]
  store i32 %x, ptr %x.at
  store i32 %y, ptr %y.at
  store i32 %z, ptr %z.at
  %number.at = getelementptr i8, ptr %t, i64 {T.number}
  store i32 %n, ptr %number.at
  %warp = load i32, ptr {S.warp}
  %less = sub i32 %warp, 1
  %lane = and i32 %n, %less
  %lane.at = getelementptr i8, ptr %t, i64 {T.lane}
  store i32 %lane, ptr %lane.at
  %first = sub i32 %n, %lane
  %first.at = getelementptr i8, ptr %t, i64 {T.first}
  store i32 %first, ptr %first.at
  ret void
}

; A fresh stack, of which the first thing that `sim.switch` pops leads to a function. The top of a
; stack stands in the thread's record: the records themselves are laid out by Python.
define internal void @prepare(ptr %t, ptr %function) {
  %top.at = getelementptr i8, ptr %t, i64 {T.top}
  %top = load ptr, ptr %top.at
  %return = getelementptr i8, ptr %top, i64 -8
  store i64 0, ptr %return
  %entry.at = getelementptr i8, ptr %top, i64 -16
  store ptr %function, ptr %entry.at
  %sp = getelementptr i8, ptr %top, i64 -64
  store ptr %sp, ptr %t
  %state.at = getelementptr i8, ptr %t, i64 {T.state}
  store i32 0, ptr %state.at
  %epoch.at = getelementptr i8, ptr %t, i64 {T.epoch}
  store i64 0, ptr %epoch.at
  %copied.at = getelementptr i8, ptr %t, i64 {T.copied}
  store i64 0, ptr %copied.at
  ret void
}

define internal void @begin() {
entry:
  %threads = load ptr, ptr {S.threads}
  %alone = load i64, ptr {S.alone}
  %shared = load ptr, ptr {S.shared}
  %bytes = load i64, ptr {S.shared_bytes}
  call void @llvm.memset.p0.i64(ptr %shared, i8 -1, i64 %bytes, i1 false)
  %one = icmp ne i64 %alone, 0
  br i1 %one, label %single, label %all
single:
  call void @prepare(ptr %threads, ptr @alone)
  ret void
all:
  %n = load i64, ptr {S.count}
  %b = load i64, ptr {S.block}
  br label %head
head:
  %i = phi i64 [ 0, %all ], [ %next, %each ]
  %more = icmp ult i64 %i, %n
  br i1 %more, label %each, label %out
each:
  %t = getelementptr [SIZE_OF_THREAD x i8], ptr %threads, i64 %i
  call void @prepare(ptr %t, ptr @body)
  call void @place(ptr %t, i64 %b)
  call void @name(ptr %t, i64 %i)
  %next = add i64 %i, 1
  br label %head
out:
  ret void
}

; Run every thread that can run, once. 0: all has gone well.
define internal i32 @round(i64 %n) {
entry:
  %threads = load ptr, ptr {S.threads}
  %reverse = load i64, ptr {S.reverse}
  %backwards = icmp ne i64 %reverse, 0
  br label %head
head:
  %i = phi i64 [ 0, %entry ], [ %up, %skip ], [ %up, %ran ]
  %more = icmp ult i64 %i, %n
  br i1 %more, label %look, label %fine
look:
  %up = add i64 %i, 1
  %down = sub i64 %n, %up
  %number = select i1 %backwards, i64 %down, i64 %i
  %t = getelementptr [SIZE_OF_THREAD x i8], ptr %threads, i64 %number
  %state.at = getelementptr i8, ptr %t, i64 {T.state}
  %state = load i32, ptr %state.at
  %ready = icmp eq i32 %state, 0
  br i1 %ready, label %run, label %skip
skip:
  br label %head
run:
  store ptr %t, ptr {S.current}
  store i64 0, ptr {S.touched}
  %sp = load ptr, ptr %t
  call void @sim.switch(ptr {S.main}, ptr %sp)
  %failure = load i64, ptr {S.failure}
  %failed = icmp ne i64 %failure, 0
  br i1 %failed, label %fail, label %went
went:
  %after = load i32, ptr %state.at
  %still = icmp eq i32 %after, 0
  br i1 %still, label %full, label %ran
ran:
  br label %head
fine:
  ret i32 0
fail:
  ret i32 FAILED
full:
  ret i32 LOG_IS_FULL
}

; Whether all threads stand at one barrier, each warp at one instruction; then they go on.
define internal i1 @open(i64 %n) {
entry:
  %threads = load ptr, ptr {S.threads}
  %kind.at = getelementptr i8, ptr %threads, i64 {T.kind}
  %kind = load i32, ptr %kind.at
  br label %head
head:
  %i = phi i64 [ 0, %entry ], [ %next, %same ]
  %more = icmp ult i64 %i, %n
  br i1 %more, label %look, label %all
look:
  %t = getelementptr [SIZE_OF_THREAD x i8], ptr %threads, i64 %i
  %state.at = getelementptr i8, ptr %t, i64 {T.state}
  %state = load i32, ptr %state.at
  %waits = icmp eq i32 %state, AT_BARRIER
  %kind.of = getelementptr i8, ptr %t, i64 {T.kind}
  %its = load i32, ptr %kind.of
  %like = icmp eq i32 %its, %kind
  %mask.at = getelementptr i8, ptr %t, i64 {T.mask}
  %mask = load i64, ptr %mask.at
  %plain = icmp eq i64 %mask, 0
  %first.at = getelementptr i8, ptr %t, i64 {T.first}
  %first = load i32, ptr %first.at
  %leader = getelementptr [SIZE_OF_THREAD x i8], ptr %threads, i32 %first
  %site.of = getelementptr i8, ptr %leader, i64 {T.site}
  %expected = load i32, ptr %site.of
  %site.at = getelementptr i8, ptr %t, i64 {T.site}
  %site = load i32, ptr %site.at
  %together = icmp eq i32 %site, %expected
  %a = and i1 %waits, %like
  %b = and i1 %together, %plain
  %c = and i1 %a, %b
  br i1 %c, label %same, label %no
same:
  %next = add i64 %i, 1
  br label %head
all:
  %window = load i64, ptr {S.window}
  %window.next = add i64 %window, 1
  store i64 %window.next, ptr {S.window}
  br label %free
free:
  %j = phi i64 [ 0, %all ], [ %j.next, %free ]
  %u = getelementptr [SIZE_OF_THREAD x i8], ptr %threads, i64 %j
  %freed = getelementptr i8, ptr %u, i64 {T.state}
  store i32 0, ptr %freed
  %row = getelementptr i8, ptr %u, i64 {T.row}
  store i32 0, ptr %row
  %j.next = add i64 %j, 1
  %again = icmp ult i64 %j.next, %n
  br i1 %again, label %free, label %yes
yes:
  ret i1 true
no:
  ret i1 false
}

; Let each warp go on of which all threads stand at the same collective. Whether one did.
define internal i1 @meet(i64 %n) {
entry:
  %threads = load ptr, ptr {S.threads}
  %warp = load i64, ptr {S.warp}
  br label %warps
warps:
  %first = phi i64 [ 0, %entry ], [ %end, %tail ]
  %went = phi i1 [ false, %entry ], [ %went.now, %tail ]
  %any = icmp ult i64 %first, %n
  br i1 %any, label %warp.begin, label %out
warp.begin:
  %up = add i64 %first, %warp
  %end = call i64 @llvm.umin.i64(i64 %up, i64 %n)
  %lanes = sub i64 %end, %first
  %shift = sub i64 64, %lanes
  %existing = lshr i64 -1, %shift
  %leader = getelementptr [SIZE_OF_THREAD x i8], ptr %threads, i64 %first
  %kind.at = getelementptr i8, ptr %leader, i64 {T.kind}
  %kind = load i32, ptr %kind.at
  br label %head
head:
  %i = phi i64 [ %first, %warp.begin ], [ %next, %same ]
  %more = icmp ult i64 %i, %end
  br i1 %more, label %look, label %free
look:
  %t = getelementptr [SIZE_OF_THREAD x i8], ptr %threads, i64 %i
  %state.at = getelementptr i8, ptr %t, i64 {T.state}
  %state = load i32, ptr %state.at
  %waits = icmp eq i32 %state, IN_WARP
  %kind.of = getelementptr i8, ptr %t, i64 {T.kind}
  %its = load i32, ptr %kind.of
  %like = icmp eq i32 %its, %kind
  %mask.at = getelementptr i8, ptr %t, i64 {T.mask}
  %mask = load i64, ptr %mask.at
  %covered = and i64 %mask, %existing
  %whole = icmp eq i64 %covered, %existing
  %a = and i1 %waits, %like
  %b = and i1 %a, %whole
  %next = add i64 %i, 1
  br i1 %b, label %same, label %tail
same:
  br label %head
free:
  %j = phi i64 [ %first, %head ], [ %j.next, %free ]
  %u = getelementptr [SIZE_OF_THREAD x i8], ptr %threads, i64 %j
  %freed = getelementptr i8, ptr %u, i64 {T.state}
  store i32 0, ptr %freed
  %active.at = getelementptr i8, ptr %u, i64 {T.active}
  store i64 %existing, ptr %active.at
  %j.next = add i64 %j, 1
  %again = icmp ult i64 %j.next, %end
  br i1 %again, label %free, label %tail
tail:
  %went.now = phi i1 [ %went, %look ], [ true, %free ]
  br label %warps
out:
  ret i1 %went
}

define internal i1 @ended(i64 %n) {
entry:
  %threads = load ptr, ptr {S.threads}
  br label %head
head:
  %i = phi i64 [ 0, %entry ], [ %next, %look ]
  %more = icmp ult i64 %i, %n
  br i1 %more, label %look, label %yes
look:
  %t = getelementptr [SIZE_OF_THREAD x i8], ptr %threads, i64 %i
  %state.at = getelementptr i8, ptr %t, i64 {T.state}
  %state = load i32, ptr %state.at
  %done = icmp eq i32 %state, DONE
  %next = add i64 %i, 1
  br i1 %done, label %head, label %no
yes:
  ret i1 true
no:
  ret i1 false
}

; Blocks from `block` to `last`, by `step`; comes back where Python is needed, and is called again.
define i32 @sim.go() {
entry:
  %alone = load i64, ptr {S.alone}
  %single = icmp ne i64 %alone, 0
  %threads = load i64, ptr {S.count}
  %n = select i1 %single, i64 1, i64 %threads
  %running = load i64, ptr {S.running}
  %inside = icmp ne i64 %running, 0
  br i1 %inside, label %rounds, label %next.block
next.block:
  %b = load i64, ptr {S.block}
  %last = load i64, ptr {S.last}
  %over = icmp eq i64 %b, %last
  br i1 %over, label %finished, label %start
start:
  call void @begin()
  store i64 1, ptr {S.running}
  br label %rounds
rounds:
  %why = call i32 @round(i64 %n)
  %bad = icmp ne i32 %why, 0
  br i1 %bad, label %back, label %look
look:
  %met = call i1 @meet(i64 %n)
  br i1 %met, label %rounds, label %barrier
barrier:
  %opened = call i1 @open(i64 %n)
  br i1 %opened, label %rounds, label %end
end:
  %done = call i1 @ended(i64 %n)
  br i1 %done, label %block.end, label %blocked
block.end:
  %window = load i64, ptr {S.window}
  %window.next = add i64 %window, 1
  store i64 %window.next, ptr {S.window}
  store i64 0, ptr {S.running}
  br i1 %single, label %finished, label %advance
advance:
  %now = load i64, ptr {S.block}
  %step = load i64, ptr {S.step}
  %then = add i64 %now, %step
  store i64 %then, ptr {S.block}
  %watched = load i64, ptr {S.watched}
  %told = icmp ne i64 %watched, 0
  br i1 %told, label %ended.block, label %next.block
ended.block:
  ret i32 BLOCK_ENDED
finished:
  ret i32 FINISHED
back:
  ret i32 %why
blocked:
  ret i32 BLOCKED
}
declare i64 @llvm.umin.i64(i64, i64)
"""
