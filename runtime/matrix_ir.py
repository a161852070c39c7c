"""Products of a warp's fragments, as LLVM IR beside the scheduler.

In: what all lanes of a warp have laid out in their exchange, and a `PLAN` that says where in it
each element of A, B and C is. Out: D, in the place where each lane reads its results:

    call void @sim.matrix(i32 %plan, i32 %site)

The first lane does it for all, between two meetings of the warp. Elements become doubles, which
hold every product exactly, and a sum is rounded once, to the type of the accumulator.
"""

from __future__ import annotations

import numpy as np

HALF, BFLOAT, FLOAT, TF32, INTEGER, BYTE = range(6)  # how an element is read
SCRATCH = 1 << 13  # doubles: A and B of the largest shape
PLAN = np.dtype(
    [
        *(("m", "i4"), ("n", "i4"), ("k", "i4"), ("a_kind", "i4"), ("b_kind", "i4")),
        *(("c_kind", "i4"), ("c_start", "i4"), ("c_bytes", "i4"), ("same", "i4"), ("pad", "i4")),
        *(("a", "u8"), ("b", "u8"), ("c", "u8"), ("a_values", "u8"), ("b_values", "u8")),
        ("done", "i8"),
    ]
)

MATRIX_IR = r"""
define internal double @decode(i32 %kind, ptr %p, ptr %values) {
  switch i32 %kind, label %byte [
    i32 HALF, label %half
    i32 BFLOAT, label %bfloat
    i32 FLOAT, label %float
    i32 TF32, label %tf32
    i32 INTEGER, label %integer
  ]
half:
  %h = load half, ptr %p, align 1
  %h.wide = fpext half %h to float
  %h.value = fpext float %h.wide to double
  ret double %h.value
bfloat:
  %b = load i16, ptr %p, align 1
  %b.wide = zext i16 %b to i32
  %b.high = shl i32 %b.wide, 16
  %b.float = bitcast i32 %b.high to float
  %b.value = fpext float %b.float to double
  ret double %b.value
float:
  %f = load float, ptr %p, align 1
  %f.value = fpext float %f to double
  ret double %f.value
tf32:
  %t = load i32, ptr %p, align 1
  %t.high = and i32 %t, -8192
  %t.float = bitcast i32 %t.high to float
  %t.value = fpext float %t.float to double
  ret double %t.value
integer:
  %i = load i32, ptr %p, align 1
  %i.value = sitofp i32 %i to double
  ret double %i.value
byte:
  %c = load i8, ptr %p, align 1
  %c.wide = zext i8 %c to i64
  %at = getelementptr double, ptr %values, i64 %c.wide
  %c.value = load double, ptr %at
  ret double %c.value
}

define internal void @encode(i32 %kind, ptr %p, double %x) {
  switch i32 %kind, label %integer [
    i32 HALF, label %half
    i32 BFLOAT, label %bfloat
    i32 FLOAT, label %float
  ]
half:
  %h = fptrunc double %x to half
  store half %h, ptr %p, align 1
  ret void
bfloat:
  %b = fptrunc double %x to bfloat
  store bfloat %b, ptr %p, align 1
  ret void
float:
  %f = fptrunc double %x to float
  store float %f, ptr %p, align 1
  ret void
integer:
  %wide = fptosi double %x to i64
  %i = trunc i64 %wide to i32
  store i32 %i, ptr %p, align 1
  ret void
}

; A place is a lane in its upper half, and in the lower one where in that lane's exchange.
define internal ptr @element(ptr %exchange, i32 %place) {
  %lane = lshr i32 %place, 16
  %offset = and i32 %place, 65535
  %row = mul i32 %lane, TWO_WAYS
  %at = add i32 %row, %offset
  %p = getelementptr i8, ptr %exchange, i32 %at
  ret ptr %p
}

define internal void @gather(ptr %exchange, ptr %places, i32 %count, i32 %kind, ptr %values,
                             ptr %to) {
entry:
  br label %head
head:
  %i = phi i32 [ 0, %entry ], [ %next, %body ]
  %more = icmp slt i32 %i, %count
  br i1 %more, label %body, label %out
body:
  %place.at = getelementptr i32, ptr %places, i32 %i
  %place = load i32, ptr %place.at
  %p = call ptr @element(ptr %exchange, i32 %place)
  %x = call double @decode(i32 %kind, ptr %p, ptr %values)
  %to.at = getelementptr double, ptr %to, i32 %i
  store double %x, ptr %to.at
  %next = add i32 %i, 1
  br label %head
out:
  ret void
}

define internal void @multiply(ptr %plan, ptr %exchange) {
entry:
  %m = load i32, ptr %plan
  %n.at = getelementptr i8, ptr %plan, i64 {P.n}
  %n = load i32, ptr %n.at
  %k.at = getelementptr i8, ptr %plan, i64 {P.k}
  %k = load i32, ptr %k.at
  %a.at = getelementptr i8, ptr %plan, i64 {P.a}
  %a = load ptr, ptr %a.at
  %b.at = getelementptr i8, ptr %plan, i64 {P.b}
  %b = load ptr, ptr %b.at
  %c.at = getelementptr i8, ptr %plan, i64 {P.c}
  %c = load ptr, ptr %c.at
  %a.kind.at = getelementptr i8, ptr %plan, i64 {P.a_kind}
  %a.kind = load i32, ptr %a.kind.at
  %b.kind.at = getelementptr i8, ptr %plan, i64 {P.b_kind}
  %b.kind = load i32, ptr %b.kind.at
  %c.kind.at = getelementptr i8, ptr %plan, i64 {P.c_kind}
  %c.kind = load i32, ptr %c.kind.at
  %a.values.at = getelementptr i8, ptr %plan, i64 {P.a_values}
  %a.values = load ptr, ptr %a.values.at
  %b.values.at = getelementptr i8, ptr %plan, i64 {P.b_values}
  %b.values = load ptr, ptr %b.values.at
  %start.at = getelementptr i8, ptr %plan, i64 {P.c_start}
  %start = load i32, ptr %start.at
  %a.wide = load ptr, ptr {S.scratch}
  %b.wide = getelementptr double, ptr %a.wide, i64 HALF_OF_SCRATCH
  %a.count = mul i32 %m, %k
  call void @gather(ptr %exchange, ptr %a, i32 %a.count, i32 %a.kind, ptr %a.values, ptr %a.wide)
  %b.count = mul i32 %n, %k
  call void @gather(ptr %exchange, ptr %b, i32 %b.count, i32 %b.kind, ptr %b.values, ptr %b.wide)
  br label %rows
rows:
  %r = phi i32 [ 0, %entry ], [ %r.next, %row.end ]
  %r.more = icmp slt i32 %r, %m
  br i1 %r.more, label %columns, label %out
columns:
  %j = phi i32 [ 0, %rows ], [ %j.next, %sum.end ]
  %j.more = icmp slt i32 %j, %n
  br i1 %j.more, label %sum.begin, label %row.end
sum.begin:
  %row.start = mul i32 %r, %n
  %index = add i32 %row.start, %j
  %place.at = getelementptr i32, ptr %c, i32 %index
  %place = load i32, ptr %place.at
  %p = call ptr @element(ptr %exchange, i32 %place)
  %old = call double @decode(i32 %c.kind, ptr %p, ptr null)
  %a.first = mul i32 %r, %k
  %b.first = mul i32 %j, %k
  %a.row = getelementptr double, ptr %a.wide, i32 %a.first
  %b.row = getelementptr double, ptr %b.wide, i32 %b.first
  br label %sum
sum:
  %l = phi i32 [ 0, %sum.begin ], [ %l.next, %sum ]
  %acc = phi double [ %old, %sum.begin ], [ %acc.next, %sum ]
  %x.at = getelementptr double, ptr %a.row, i32 %l
  %x = load double, ptr %x.at
  %y.at = getelementptr double, ptr %b.row, i32 %l
  %y = load double, ptr %y.at
  %xy = fmul double %x, %y
  %acc.next = fadd double %acc, %xy
  %l.next = add i32 %l, 1
  %l.more = icmp slt i32 %l.next, %k
  br i1 %l.more, label %sum, label %sum.end
sum.end:
  %back = sub i32 RESULTS, %start
  %result = getelementptr i8, ptr %p, i32 %back
  call void @encode(i32 %c.kind, ptr %result, double %acc.next)
  %j.next = add i32 %j, 1
  br label %columns
row.end:
  %r.next = add i32 %r, 1
  br label %rows
out:
  ret void
}

; Whether each lane of the first 16 gives the same bytes as the one 16 lanes on.
define internal i1 @repeated(ptr %exchange, i32 %bytes) {
entry:
  br label %head
head:
  %i = phi i32 [ 0, %entry ], [ %next, %body ]
  %total = mul i32 %bytes, 16
  %more = icmp slt i32 %i, %total
  br i1 %more, label %body, label %yes
body:
  %lane = sdiv i32 %i, %bytes
  %byte = srem i32 %i, %bytes
  %row = mul i32 %lane, TWO_WAYS
  %low = add i32 %row, %byte
  %step = mul i32 16, TWO_WAYS
  %high = add i32 %low, %step
  %p = getelementptr i8, ptr %exchange, i32 %low
  %q = getelementptr i8, ptr %exchange, i32 %high
  %a = load i8, ptr %p
  %b = load i8, ptr %q
  %same = icmp eq i8 %a, %b
  %next = add i32 %i, 1
  br i1 %same, label %head, label %no
yes:
  ret i1 true
no:
  ret i1 false
}

; The accumulators of all lanes, as they are: what no element of the result covers stays.
define internal void @carry(ptr %plan, ptr %exchange) {
entry:
  %start.at = getelementptr i8, ptr %plan, i64 {P.c_start}
  %start = load i32, ptr %start.at
  %bytes.at = getelementptr i8, ptr %plan, i64 {P.c_bytes}
  %bytes = load i32, ptr %bytes.at
  %wide = sext i32 %bytes to i64
  %warp = load i32, ptr {S.warp}
  br label %head
head:
  %i = phi i32 [ 0, %entry ], [ %next, %body ]
  %more = icmp slt i32 %i, %warp
  br i1 %more, label %body, label %out
body:
  %row = mul i32 %i, TWO_WAYS
  %from = add i32 %row, %start
  %to = add i32 %row, RESULTS
  %p = getelementptr i8, ptr %exchange, i32 %from
  %q = getelementptr i8, ptr %exchange, i32 %to
  call void @llvm.memcpy.p0.p0.i64(ptr %q, ptr %p, i64 %wide, i1 false)
  %next = add i32 %i, 1
  br label %head
out:
  ret void
}

; A whole warp meets here; kinds below -1 are for all of its threads.
define void @sim.meet_whole(i64 %value, i32 %site) {
entry:
  %t = load ptr, ptr {S.current}
  %first.at = getelementptr i8, ptr %t, i64 {T.first}
  %first = load i32, ptr %first.at
  %warp = load i32, ptr {S.warp}
  %end = add i32 %first, %warp
  %n = load i32, ptr {S.count}
  %whole = icmp ule i32 %end, %n
  br i1 %whole, label %meet, label %missing
missing:
  call void @sim.fail(i64 MISSING, ptr null, i64 0, i32 %site)
  ret void
meet:
  %kind = sub i32 -2, %site
  call void @sim.publish(i32 %kind, i64 -1, i64 %value, i32 %site)
  ret void
}

define void @sim.matrix(i32 %number, i32 %site) {
entry:
  call void @sim.meet_whole(i64 0, i32 %site)
  %lane = call i32 @sim.lane()
  %leads = icmp eq i32 %lane, 0
  br i1 %leads, label %lead, label %follow
lead:
  %t = load ptr, ptr {S.current}
  %exchange.at = getelementptr i8, ptr %t, i64 {T.exchange}
  %exchange = load ptr, ptr %exchange.at
  %plans = load ptr, ptr {S.plans}
  %plan = getelementptr [SIZE_OF_PLAN x i8], ptr %plans, i32 %number
  %same.at = getelementptr i8, ptr %plan, i64 {P.same}
  %same = load i32, ptr %same.at
  %twice = call i1 @repeated(ptr %exchange, i32 %same)
  br i1 %twice, label %go, label %differs
differs:
  call void @sim.fail(i64 DIFFERS, ptr null, i64 0, i32 %site)
  ret void
go:
  call void @carry(ptr %plan, ptr %exchange)
  call void @multiply(ptr %plan, ptr %exchange)
  %done.at = getelementptr i8, ptr %plan, i64 {P.done}
  %done = load i64, ptr %done.at
  %more = add i64 %done, 1
  store i64 %more, ptr %done.at
  br label %follow
follow:
  call void @sim.meet_whole(i64 0, i32 %site)
  ret void
}
"""
