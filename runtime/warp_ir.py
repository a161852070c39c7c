"""What the threads of a warp tell each other, as LLVM IR beside the scheduler.

Every function here shows a value to the warp, waits until the warp has met (`sim.publish`), and
then looks at what the others have shown:

    %bits = call i64 @sim.ballot(i1 %bit, i64 %mask, i32 %kind, i32 %site)

A lane that is not there (it has left, or the mask leaves it out) shows nothing: who reads it gets
all ones, a NaN, or 0 where the hardware says so.
"""

from __future__ import annotations

SHUFFLES = ("up", "down", "bfly", "idx")  # the number that `sim.shfl` takes

WARP_IR = r"""
define i32 @sim.lane() {
  %t = load ptr, ptr {S.current}
  %at = getelementptr i8, ptr %t, i64 {T.lane}
  %lane = load i32, ptr %at
  ret i32 %lane
}

define i64 @sim.active() {
  %t = load ptr, ptr {S.current}
  %at = getelementptr i8, ptr %t, i64 {T.active}
  %active = load i64, ptr %at
  ret i64 %active
}

define i1 @sim.is_active(i32 %lane) {
  %active = call i64 @sim.active()
  %wide = zext i32 %lane to i64
  %there = icmp ult i32 %lane, 64
  %within = and i64 %wide, 63
  %shifted = lshr i64 %active, %within
  %bit = trunc i64 %shifted to i1
  %both = and i1 %bit, %there
  ret i1 %both
}

define i64 @sim.take(i32 %lane, i64 %otherwise) {
  %is = call i1 @sim.is_active(i32 %lane)
  br i1 %is, label %yes, label %no
yes:
  %value = call i64 @sim.peek(i32 %lane)
  ret i64 %value
no:
  ret i64 %otherwise
}

; PTX ISA, shfl.sync: 0 up, 1 down, 2 bfly, 3 idx.
define { i64, i1 } @sim.shfl(i32 %how, i64 %value, i32 %mask, i32 %b, i32 %c, i32 %kind,
                             i32 %site) {
  %wide = zext i32 %mask to i64
  call void @sim.publish(i32 %kind, i64 %wide, i64 %value, i32 %site)
  %lane = call i32 @sim.lane()
  %bval = and i32 %b, 31
  %cval = and i32 %c, 31
  %upper = lshr i32 %c, 8
  %segment = and i32 %upper, 31
  %open = xor i32 %segment, 31
  %least = and i32 %lane, %segment
  %clamped = and i32 %cval, %open
  %most = or i32 %least, %clamped
  %up = sub i32 %lane, %bval
  %down = add i32 %lane, %bval
  %bfly = xor i32 %lane, %bval
  %within = and i32 %bval, %open
  %idx = or i32 %least, %within
  %is.up = icmp eq i32 %how, 0
  %is.down = icmp eq i32 %how, 1
  %is.bfly = icmp eq i32 %how, 2
  %j2 = select i1 %is.bfly, i32 %bfly, i32 %idx
  %j1 = select i1 %is.down, i32 %down, i32 %j2
  %j = select i1 %is.up, i32 %up, i32 %j1
  %p.up = icmp sge i32 %j, %most
  %p.rest = icmp sle i32 %j, %most
  %p = select i1 %is.up, i1 %p.up, i1 %p.rest
  %source = select i1 %p, i32 %j, i32 %lane
  %got = call i64 @sim.take(i32 %source, i64 -1)
  %r0 = insertvalue { i64, i1 } poison, i64 %got, 0
  %r1 = insertvalue { i64, i1 } %r0, i1 %p, 1
  ret { i64, i1 } %r1
}

; The value of the lane that a table names for each lane; 255 names none.
define i64 @sim.permute(ptr %table, i64 %value, i64 %otherwise, i64 %mask, i32 %kind, i32 %site) {
  call void @sim.publish(i32 %kind, i64 %mask, i64 %value, i32 %site)
  %lane = call i32 @sim.lane()
  %at = getelementptr i8, ptr %table, i32 %lane
  %narrow = load i8, ptr %at
  %source = zext i8 %narrow to i32
  %got = call i64 @sim.take(i32 %source, i64 %otherwise)
  ret i64 %got
}

; The value of any lane. -1: the first that is there.
define i64 @sim.read(i32 %source, i64 %value, i64 %otherwise, i64 %mask, i32 %kind, i32 %site) {
  call void @sim.publish(i32 %kind, i64 %mask, i64 %value, i32 %site)
  %active = call i64 @sim.active()
  %first = call i64 @llvm.cttz.i64(i64 %active, i1 false)
  %narrow = trunc i64 %first to i32
  %any = icmp eq i32 %source, -1
  %lane = select i1 %any, i32 %narrow, i32 %source
  %got = call i64 @sim.take(i32 %lane, i64 %otherwise)
  ret i64 %got
}

; What the last lane whose upper half names this one has in its lower half; 0 if none does.
define i64 @sim.push(i64 %both, i32 %kind, i32 %site) {
entry:
  call void @sim.publish(i32 %kind, i64 -1, i64 %both, i32 %site)
  %lane = call i32 @sim.lane()
  br label %head
head:
  %i = phi i32 [ 0, %entry ], [ %next, %tail ]
  %kept = phi i64 [ 0, %entry ], [ %now, %tail ]
  %more = icmp ult i32 %i, 64
  br i1 %more, label %look, label %out
look:
  %is = call i1 @sim.is_active(i32 %i)
  br i1 %is, label %take, label %tail
take:
  %shown = call i64 @sim.peek(i32 %i)
  %upper = lshr i64 %shown, 32
  %goal = trunc i64 %upper to i32
  %mine = icmp eq i32 %goal, %lane
  %lower = and i64 %shown, 4294967295
  %chosen = select i1 %mine, i64 %lower, i64 %kept
  br label %tail
tail:
  %now = phi i64 [ %kept, %look ], [ %chosen, %take ]
  %next = add i32 %i, 1
  br label %head
out:
  ret i64 %kept
}

; A bit for each lane that is there and shows this value.
define i64 @sim.equal(i64 %value) {
entry:
  br label %head
head:
  %i = phi i32 [ 0, %entry ], [ %next, %tail ]
  %bits = phi i64 [ 0, %entry ], [ %now, %tail ]
  %more = icmp ult i32 %i, 64
  br i1 %more, label %look, label %out
look:
  %is = call i1 @sim.is_active(i32 %i)
  br i1 %is, label %take, label %tail
take:
  %shown = call i64 @sim.peek(i32 %i)
  %same = icmp eq i64 %shown, %value
  %bit = zext i1 %same to i64
  %wide = zext i32 %i to i64
  %placed = shl i64 %bit, %wide
  %with = or i64 %bits, %placed
  br label %tail
tail:
  %now = phi i64 [ %bits, %look ], [ %with, %take ]
  %next = add i32 %i, 1
  br label %head
out:
  ret i64 %bits
}

define i64 @sim.ballot(i1 %bit, i64 %mask, i32 %kind, i32 %site) {
  %value = zext i1 %bit to i64
  call void @sim.publish(i32 %kind, i64 %mask, i64 %value, i32 %site)
  %bits = call i64 @sim.equal(i64 1)
  ret i64 %bits
}

; The values of all lanes that are there, combined in the order of the lanes.
define i64 @sim.fold(i64 %value, ptr %combine, i64 %mask, i32 %kind, i32 %site) {
entry:
  call void @sim.publish(i32 %kind, i64 %mask, i64 %value, i32 %site)
  %active = call i64 @sim.active()
  %first = call i64 @llvm.cttz.i64(i64 %active, i1 false)
  %start = trunc i64 %first to i32
  %begun = call i64 @sim.peek(i32 %start)
  br label %head
head:
  %last = phi i32 [ %start, %entry ], [ %i, %tail ]
  %sum = phi i64 [ %begun, %entry ], [ %now, %tail ]
  %i = add i32 %last, 1
  %more = icmp ult i32 %i, 64
  br i1 %more, label %look, label %out
look:
  %is = call i1 @sim.is_active(i32 %i)
  br i1 %is, label %take, label %tail
take:
  %shown = call i64 @sim.peek(i32 %i)
  %both = call i64 %combine(i64 %sum, i64 %shown)
  br label %tail
tail:
  %now = phi i64 [ %sum, %look ], [ %both, %take ]
  br label %head
out:
  ret i64 %sum
}
declare i64 @llvm.cttz.i64(i64, i1)
"""

DECLARATIONS = """
declare i32 @sim.lane()
declare i64 @sim.active()
declare { i64, i1 } @sim.shfl(i32, i64, i32, i32, i32, i32, i32)
declare i64 @sim.permute(ptr, i64, i64, i64, i32, i32)
declare i64 @sim.read(i32, i64, i64, i64, i32, i32)
declare i64 @sim.push(i64, i32, i32)
declare i64 @sim.equal(i64)
declare i64 @sim.ballot(i1, i64, i32, i32)
declare i64 @sim.fold(i64, ptr, i64, i32, i32)
declare void @sim.publish(i32, i64, i64, i32)
declare void @sim.wait(i32, i32, i64, i32)
declare void @sim.copy(ptr, ptr, i32, i32, i32)
declare void @sim.commit()
declare void @sim.meet_whole(i64, i32)
declare void @sim.matrix(i32, i32)
declare i64 @sim.peek(i32)
declare ptr @sim.resource(ptr, i64, i32)
declare void @sim.buffer(i1, ptr, ptr, i32, i32, i64, i1, i32)
declare void @sim.land(i32, i1)
declare ptr @sim.thread()
declare ptr @sim.address()
declare void @sim.touch(ptr, i64, i32)
"""
