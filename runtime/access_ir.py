"""Accesses of simulated threads, as LLVM IR: bounds, the log, and asynchronous copies.

In: an access that a kernel is about to make. Out: a record in the log, or the end of the launch if
it is outside of everything that the thread may touch:

    call void @sim.touch(ptr %p, i64 12884901892, i32 %site)   ; 4 bytes, at a multiple of 4

`sim.copy`, `sim.commit` and `sim.land` are cp.async: a copy puts NaNs where its bytes will be, and
the bytes come when the thread has waited for its group. Names in braces are as in `scheduler_ir`.
"""

from __future__ import annotations

ACCESS_IR = r"""
; An access of the kernel's, before it happens.
define void @sim.touch(ptr %at, i64 %how, i32 %site) {
entry:
  %ranges = load ptr, ptr {S.ranges}
  %count = load i64, ptr {S.range_count}
  %begin = ptrtoint ptr %at to i64
  %bytes = and i64 %how, 4294967295
  %mask = lshr i64 %how, 32 ; of the bits that an aligned address has not
  %off = and i64 %begin, %mask
  %aligned = icmp eq i64 %off, 0
  %end = add i64 %begin, %bytes
  %touched = load i64, ptr {S.touched}
  %touched.now = add i64 %touched, 1
  store i64 %touched.now, ptr {S.touched}
  %patient = icmp ult i64 %touched, PATIENCE
  br i1 %patient, label %look.at, label %endless
endless:
  call void @sim.fail(i64 ENDLESS, ptr %at, i64 %bytes, i32 %site)
  ret void
look.at:
  br i1 %aligned, label %head, label %askew
askew:
  call void @sim.fail(i64 MISALIGNED, ptr %at, i64 %how, i32 %site)
  ret void
head:
  %i = phi i64 [ 0, %look.at ], [ %next, %no ]
  %more = icmp ult i64 %i, %count
  br i1 %more, label %look, label %outside
look:
  %range = getelementptr {i64, i64, i64, i64}, ptr %ranges, i64 %i
  %low = load i64, ptr %range
  %high.at = getelementptr i64, ptr %range, i64 1
  %high = load i64, ptr %high.at
  %above = icmp uge i64 %begin, %low
  %below = icmp ule i64 %end, %high
  %inside = and i1 %above, %below
  br i1 %inside, label %found, label %no
no:
  %next = add i64 %i, 1
  br label %head
outside:
  call void @sim.fail(i64 OUTSIDE, ptr %at, i64 %bytes, i32 %site)
  ret void
found:
  %logged.at = getelementptr i64, ptr %range, i64 2
  %logged = load i64, ptr %logged.at
  %log = icmp ne i64 %logged, 0
  br i1 %log, label %write, label %done
write:
  %t = load ptr, ptr {S.current}
  %used = load i64, ptr {S.logged}
  %room = load i64, ptr {S.room}
  %full = icmp uge i64 %used, %room
  br i1 %full, label %flush, label %append
flush:
  %main = load ptr, ptr {S.main}
  call void @sim.switch(ptr %t, ptr %main)
  br label %write
append:
  %records = load ptr, ptr {S.log}
  %record = getelementptr [32 x i8], ptr %records, i64 %used
  store i64 %begin, ptr %record
  %site.at = getelementptr i8, ptr %record, i64 {A.site}
  store i32 %site, ptr %site.at
  %window = load i32, ptr {S.window}
  %window.at = getelementptr i8, ptr %record, i64 {A.window}
  store i32 %window, ptr %window.at
  %block = load i32, ptr {S.block}
  %block.at = getelementptr i8, ptr %record, i64 {A.block}
  store i32 %block, ptr %block.at
  %number.at = getelementptr i8, ptr %t, i64 {T.number}
  %number = load i16, ptr %number.at
  %thread.at = getelementptr i8, ptr %record, i64 {A.thread}
  store i16 %number, ptr %thread.at
  %short = trunc i64 %bytes to i16
  %bytes.at = getelementptr i8, ptr %record, i64 {A.bytes}
  store i16 %short, ptr %bytes.at
  %since = getelementptr i8, ptr %t, i64 {T.epoch}
  %epoch.row = load i64, ptr %since
  %epoch.at = getelementptr i8, ptr %record, i64 {A.epoch}
  store i64 %epoch.row, ptr %epoch.at
  %after = add i64 %used, 1
  store i64 %after, ptr {S.logged}
  br label %done
done:
  ret void
}

; An asynchronous copy: its bytes arrive when the thread has waited for them, and not before.
define void @sim.copy(ptr %to, ptr %of, i32 %bytes, i32 %given, i32 %site) {
entry:
  %t = load ptr, ptr {S.current}
  %used.at = getelementptr i8, ptr %t, i64 {T.copied}
  %used = load i32, ptr %used.at
  %fits = icmp ult i32 %used, COPIES
  br i1 %fits, label %go, label %full
full:
  call void @sim.fail(i64 TOO_MANY_COPIES, ptr %to, i64 0, i32 %site)
  ret void
go:
  %wide = zext i32 %bytes to i64
  call void @llvm.memset.p0.i64(ptr %to, i8 -1, i64 %wide, i1 false)
  %copies.at = getelementptr i8, ptr %t, i64 {T.copies}
  %copies = load ptr, ptr %copies.at
  %copy = getelementptr [32 x i8], ptr %copies, i32 %used
  store ptr %to, ptr %copy
  %of.at = getelementptr i8, ptr %copy, i64 8
  store ptr %of, ptr %of.at
  %bytes.at = getelementptr i8, ptr %copy, i64 16
  store i32 %bytes, ptr %bytes.at
  %given.at = getelementptr i8, ptr %copy, i64 20
  store i32 %given, ptr %given.at
  %site.at = getelementptr i8, ptr %copy, i64 24
  store i32 %site, ptr %site.at
  %groups.at = getelementptr i8, ptr %t, i64 {T.groups}
  %group = load i32, ptr %groups.at
  %group.at = getelementptr i8, ptr %copy, i64 28
  store i32 %group, ptr %group.at
  %more = add i32 %used, 1
  store i32 %more, ptr %used.at
  ret void
}

define void @sim.commit() {
  %t = load ptr, ptr {S.current}
  %groups.at = getelementptr i8, ptr %t, i64 {T.groups}
  %group = load i32, ptr %groups.at
  %next = add i32 %group, 1
  store i32 %next, ptr %groups.at
  ret void
}

; Land the copies of all but the newest groups. `%pending` of -1 waits for everything.
define void @sim.land(i32 %pending, i1 %checked) {
entry:
  %t = load ptr, ptr {S.current}
  %used.at = getelementptr i8, ptr %t, i64 {T.copied}
  %used = load i32, ptr %used.at
  %groups.at = getelementptr i8, ptr %t, i64 {T.groups}
  %group = load i32, ptr %groups.at
  %limit = sub i32 %group, %pending
  %copies.at = getelementptr i8, ptr %t, i64 {T.copies}
  %copies = load ptr, ptr %copies.at
  br label %head
head:
  %i = phi i32 [ 0, %entry ], [ %next, %after ]
  %kept = phi i32 [ 0, %entry ], [ %kept.now, %after ]
  %more = icmp ult i32 %i, %used
  br i1 %more, label %look, label %out
look:
  %copy = getelementptr [32 x i8], ptr %copies, i32 %i
  %group.at = getelementptr i8, ptr %copy, i64 28
  %of.group = load i32, ptr %group.at
  %lands = icmp slt i32 %of.group, %limit
  br i1 %lands, label %land, label %keep
keep:
  %to.keep = getelementptr [32 x i8], ptr %copies, i32 %kept
  call void @llvm.memcpy.p0.p0.i64(ptr %to.keep, ptr %copy, i64 32, i1 false)
  %kept.more = add i32 %kept, 1
  br label %after
land:
  %to = load ptr, ptr %copy
  %of.at = getelementptr i8, ptr %copy, i64 8
  %of = load ptr, ptr %of.at
  %bytes.at = getelementptr i8, ptr %copy, i64 16
  %bytes = load i32, ptr %bytes.at
  %wide = zext i32 %bytes to i64
  %given.at = getelementptr i8, ptr %copy, i64 20
  %given = load i32, ptr %given.at
  %given.wide = zext i32 %given to i64
  call void @llvm.memset.p0.i64(ptr %to, i8 0, i64 %wide, i1 false)
  call void @llvm.memcpy.p0.p0.i64(ptr %to, ptr %of, i64 %given.wide, i1 false)
  br i1 %checked, label %log, label %after
log:
  %site.at = getelementptr i8, ptr %copy, i64 24
  %site = load i32, ptr %site.at
  call void @sim.touch(ptr %to, i64 %wide, i32 %site)
  br label %after
after:
  %kept.now = phi i32 [ %kept.more, %keep ], [ %kept, %land ], [ %kept, %log ]
  %next = add i32 %i, 1
  br label %head
out:
  store i32 %kept, ptr %used.at
  ret void
}

; A descriptor of a buffer: where its start and its size are kept. The same ones share a place.
define ptr @sim.resource(ptr %base, i64 %size, i32 %site) {
entry:
  %table = load ptr, ptr {S.resources}
  %count = load i64, ptr {S.resource_count}
  br label %head
head:
  %i = phi i64 [ 0, %entry ], [ %next, %look ]
  %more = icmp ult i64 %i, %count
  %one = getelementptr { ptr, i64 }, ptr %table, i64 %i
  br i1 %more, label %look, label %new
look:
  %its = load ptr, ptr %one
  %size.at = getelementptr { ptr, i64 }, ptr %one, i64 0, i32 1
  %bytes = load i64, ptr %size.at
  %same.base = icmp eq ptr %its, %base
  %same.size = icmp eq i64 %bytes, %size
  %same = and i1 %same.base, %same.size
  %next = add i64 %i, 1
  br i1 %same, label %out, label %head
new:
  %fits = icmp ult i64 %count, RESOURCES
  br i1 %fits, label %write, label %full
full:
  call void @sim.fail(i64 TOO_MANY_RESOURCES, ptr %base, i64 %size, i32 %site)
  br label %out
write:
  store ptr %base, ptr %one
  %new.size = getelementptr { ptr, i64 }, ptr %one, i64 0, i32 1
  store i64 %size, ptr %new.size
  %after = add i64 %count, 1
  store i64 %after, ptr {S.resource_count}
  br label %out
out:
  ret ptr %one
}

; Bytes between a thread's own memory and a buffer, by pieces of 4; beyond the buffer there is 0.
define void @sim.buffer(i1 %load, ptr %own, ptr %resource, i32 %offset, i32 %more.offset,
                        i64 %bytes, i1 %checked, i32 %site) {
entry:
  %base = load ptr, ptr %resource
  %size.at = getelementptr { ptr, i64 }, ptr %resource, i64 0, i32 1
  %size = load i64, ptr %size.at
  %wide = zext i32 %offset to i64
  %scalar = zext i32 %more.offset to i64
  %start = add i64 %wide, %scalar
  %end = add i64 %start, %bytes
  %whole = icmp ule i64 %end, %size
  %all = getelementptr i8, ptr %base, i64 %start
  %look = and i1 %whole, %checked
  br i1 %look, label %touch, label %head
touch:
  call void @sim.touch(ptr %all, i64 %bytes, i32 %site)
  br label %head
head:
  %i = phi i64 [ 0, %entry ], [ 0, %touch ], [ %next, %tail ]
  %rest = sub i64 %bytes, %i
  %step = call i64 @llvm.umin.i64(i64 %rest, i64 4)
  %more = icmp ne i64 %rest, 0
  br i1 %more, label %piece, label %out
piece:
  %at = add i64 %start, %i
  %to = add i64 %at, %step
  %inside = icmp ule i64 %to, %size
  %there = getelementptr i8, ptr %base, i64 %at
  %here = getelementptr i8, ptr %own, i64 %i
  br i1 %inside, label %move, label %beyond
beyond:
  br i1 %load, label %zero, label %tail
zero:
  call void @llvm.memset.p0.i64(ptr %here, i8 0, i64 %step, i1 false)
  br label %tail
move:
  %alone = xor i1 %whole, true
  %check = and i1 %alone, %checked
  br i1 %check, label %touch.piece, label %moved
touch.piece:
  call void @sim.touch(ptr %there, i64 %step, i32 %site)
  br label %moved
moved:
  %from = select i1 %load, ptr %there, ptr %here
  %into = select i1 %load, ptr %here, ptr %there
  call void @llvm.memcpy.p0.p0.i64(ptr %into, ptr %from, i64 %step, i1 false)
  br label %tail
tail:
  %next = add i64 %i, %step
  br label %head
out:
  ret void
}
"""
