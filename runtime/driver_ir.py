"""The native side of a CPU call, as LLVM IR: the driver, trampolines, and a library's tables.

In: a table of launches and a table of buffer pointers. Out: the buffers, written. The driver knows
no kernel, only addresses. Each thread of a team walks the same table and takes its share of every
grid:

    for launch in launches:
        if launch.wait and threads > 1:
            meet the others                     # a barrier: a counter that only grows
        begin, end = ceil(grid * thread / threads), ceil(grid * (thread + 1) / threads)
        if begin < end:
            launch.trampoline(launch.kernel, buffers, launch.ids, begin, end)

so a launch with a grid of 1 runs on thread 0, which is the caller. The other threads are native and
never touch Python: they spin for a moment after a call, in case the next one follows at once, and
then sleep on a semaphore. All run in the default floating-point environment, since a flush-to-zero
mode that some library left on in the caller would make results depend on the caller.

A trampoline gives a kernel of some number of arguments its pointers. Written for Linux (glibc or
musl): the size of a semaphore and `FE_DFL_ENV` are theirs.
"""

from __future__ import annotations

import platform
from collections.abc import Iterable, Mapping

VERSION = 1  # of the layout of launches and pools, which code in files relies on
ENTRIES = ("dodeca_start", "dodeca_alone", "dodeca_together")
EXTERNAL = frozenset(  # what the driver, and code that LLVM makes, may use of the C library
    {
        *("sched_yield", "sem_init", "sem_wait", "sem_post", "pthread_create"),
        *("fegetenv", "fesetenv", "memcpy", "memmove", "memset"),
    }
)

# A pool in memory, in cache lines: 0 is the job and the settings, 1 the barrier's counter, 2 the
# count of workers that are done, then one line for each worker: state, semaphore, pool, its number.
_DRIVER = r"""
%launch = type { ptr, ptr, ptr, i64, i64 }           ; trampoline, kernel, ids, grid, wait
%pool = type { ptr, i64, ptr, i64, i64, i64, [16 x i8], i64, [56 x i8], i64, [56 x i8] }
;              launches, count, buffers, threads, spin, park; line 1: arrived; line 2: finished
%worker = type { i32, i32, [32 x i8], ptr, i64, i64 } ; state, -, semaphore, pool, thread, -
; a worker's state: 0 nothing to do, 1 a job is there, 2 asleep or about to be

declare i32 @sched_yield()
declare i32 @sem_init(ptr, i32, i32)
declare i32 @sem_wait(ptr)
declare i32 @sem_post(ptr)
declare i32 @pthread_create(ptr, ptr, ptr, ptr)
declare i32 @fegetenv(ptr)
declare i32 @fesetenv(ptr)

define internal void @wait_for(ptr %counter, i64 %goal, i64 %spin) {
entry:
  br label %look
look:
  %round = phi i64 [ 0, %entry ], [ %next, %pause ], [ %next, %yield ]
  %value = load atomic i64, ptr %counter acquire, align 8
  %there = icmp sge i64 %value, %goal
  br i1 %there, label %out, label %wait
wait:
  %next = add i64 %round, 1
  %patient = icmp ult i64 %round, %spin
  br i1 %patient, label %pause, label %yield
pause:
  PAUSE
  br label %look
yield:
  %ignored = call i32 @sched_yield()
  br label %look
out:
  ret void
}

define internal i64 @share(i64 %grid, i64 %thread, i64 %threads) alwaysinline {
  %product = mul i64 %grid, %thread
  %less = sub i64 %threads, 1
  %up = add i64 %product, %less
  %quotient = udiv i64 %up, %threads
  ret i64 %quotient
}

define internal void @run(ptr %launches, i64 %count, ptr %buffers, i64 %thread, i64 %threads,
                          ptr %arrived, i64 %spin) {
entry:
  %after = add i64 %thread, 1
  %team = icmp ugt i64 %threads, 1
  br label %head
head:
  %i = phi i64 [ 0, %entry ], [ %i.next, %tail ]
  %goal = phi i64 [ 0, %entry ], [ %goal.now, %tail ]
  %more = icmp ult i64 %i, %count
  br i1 %more, label %body, label %out
body:
  %launch = getelementptr %launch, ptr %launches, i64 %i
  %trampoline = load ptr, ptr %launch
  %kernel.at = getelementptr %launch, ptr %launch, i64 0, i32 1
  %kernel = load ptr, ptr %kernel.at
  %ids.at = getelementptr %launch, ptr %launch, i64 0, i32 2
  %ids = load ptr, ptr %ids.at
  %grid.at = getelementptr %launch, ptr %launch, i64 0, i32 3
  %grid = load i64, ptr %grid.at
  %wait.at = getelementptr %launch, ptr %launch, i64 0, i32 4
  %wait = load i64, ptr %wait.at
  %dependent = icmp ne i64 %wait, 0
  %meets = and i1 %dependent, %team
  br i1 %meets, label %meet, label %go
meet:
  %raised = add i64 %goal, %threads
  %before = atomicrmw add ptr %arrived, i64 1 acq_rel, align 8
  call void @wait_for(ptr %arrived, i64 %raised, i64 %spin)
  br label %go
go:
  %goal.now = phi i64 [ %goal, %body ], [ %raised, %meet ]
  %begin = call i64 @share(i64 %grid, i64 %thread, i64 %threads)
  %end = call i64 @share(i64 %grid, i64 %after, i64 %threads)
  %any = icmp ult i64 %begin, %end
  br i1 %any, label %call, label %tail
call:
  call void %trampoline(ptr %kernel, ptr %buffers, ptr %ids, i64 %begin, i64 %end)
  br label %tail
tail:
  %i.next = add i64 %i, 1
  br label %head
out:
  ret void
}

define internal void @take(ptr %pool, i64 %thread) {
  %launches = load ptr, ptr %pool
  %count.at = getelementptr %pool, ptr %pool, i64 0, i32 1
  %count = load i64, ptr %count.at
  %buffers.at = getelementptr %pool, ptr %pool, i64 0, i32 2
  %buffers = load ptr, ptr %buffers.at
  %threads.at = getelementptr %pool, ptr %pool, i64 0, i32 3
  %threads = load i64, ptr %threads.at
  %spin.at = getelementptr %pool, ptr %pool, i64 0, i32 4
  %spin = load i64, ptr %spin.at
  %arrived = getelementptr %pool, ptr %pool, i64 0, i32 7
  call void @run(ptr %launches, i64 %count, ptr %buffers, i64 %thread, i64 %threads, ptr %arrived,
                 i64 %spin)
  ret void
}

define internal ptr @work(ptr %self) {
entry:
  %semaphore = getelementptr %worker, ptr %self, i64 0, i32 2
  %pool.at = getelementptr %worker, ptr %self, i64 0, i32 3
  %pool = load ptr, ptr %pool.at
  %thread.at = getelementptr %worker, ptr %self, i64 0, i32 4
  %thread = load i64, ptr %thread.at
  %park.at = getelementptr %pool, ptr %pool, i64 0, i32 5
  %park = load i64, ptr %park.at
  %spin.at = getelementptr %pool, ptr %pool, i64 0, i32 4
  %spin = load i64, ptr %spin.at
  %finished = getelementptr %pool, ptr %pool, i64 0, i32 9
  %ignored = call i32 @fesetenv(ptr inttoptr (i64 -1 to ptr))
  br label %idle
idle:
  %round = phi i64 [ 0, %entry ], [ %next, %pause ], [ %next, %yield ], [ 0, %park.try ],
                   [ 0, %job ]
  %state = load atomic i32, ptr %self acquire, align 4
  %called = icmp eq i32 %state, 1
  br i1 %called, label %job, label %none
none:
  %next = add i64 %round, 1
  %patient = icmp ult i64 %round, %park
  br i1 %patient, label %wait, label %park.try
wait:
  %early = icmp ult i64 %round, %spin
  br i1 %early, label %pause, label %yield
pause:
  PAUSE
  br label %idle
yield:
  %yielded = call i32 @sched_yield()
  br label %idle
park.try:
  %swap = cmpxchg ptr %self, i32 0, i32 2 acq_rel acquire, align 4
  %parked = extractvalue { i32, i1 } %swap, 1
  br i1 %parked, label %sleep, label %idle
sleep:
  %rc = call i32 @sem_wait(ptr %semaphore)
  %now = load atomic i32, ptr %self acquire, align 4
  %woken = icmp eq i32 %now, 1
  br i1 %woken, label %job, label %sleep
job:
  store atomic i32 0, ptr %self release, align 4
  call void @take(ptr %pool, i64 %thread)
  %done = atomicrmw add ptr %finished, i64 1 acq_rel, align 8
  br label %idle
}

define i32 @dodeca_start(ptr %self) {
  %semaphore = getelementptr %worker, ptr %self, i64 0, i32 2
  %ignored = call i32 @sem_init(ptr %semaphore, i32 0, i32 0)
  %handle = alloca i64
  %rc = call i32 @pthread_create(ptr %handle, ptr null, ptr @work, ptr %self)
  ret i32 %rc
}

define void @dodeca_alone(ptr %launches, i64 %count, ptr %buffers) {
  %environment = alloca [512 x i8], align 16
  call void @enter(ptr %environment)
  call void @run(ptr %launches, i64 %count, ptr %buffers, i64 0, i64 1, ptr null, i64 0)
  call void @leave(ptr %environment)
  ret void
}

define void @dodeca_together(ptr %pool, ptr %launches, i64 %count, ptr %buffers) {
entry:
  %environment = alloca [512 x i8], align 16
  call void @enter(ptr %environment)
  store ptr %launches, ptr %pool
  %count.at = getelementptr %pool, ptr %pool, i64 0, i32 1
  store i64 %count, ptr %count.at
  %buffers.at = getelementptr %pool, ptr %pool, i64 0, i32 2
  store ptr %buffers, ptr %buffers.at
  %threads.at = getelementptr %pool, ptr %pool, i64 0, i32 3
  %threads = load i64, ptr %threads.at
  %spin.at = getelementptr %pool, ptr %pool, i64 0, i32 4
  %spin = load i64, ptr %spin.at
  %arrived = getelementptr %pool, ptr %pool, i64 0, i32 7
  store atomic i64 0, ptr %arrived release, align 8
  %finished = getelementptr %pool, ptr %pool, i64 0, i32 9
  store atomic i64 0, ptr %finished release, align 8
  %first = getelementptr %pool, ptr %pool, i64 1
  %workers = sub i64 %threads, 1
  br label %head
head:
  %w = phi i64 [ 0, %entry ], [ %w.next, %tail ]
  %more = icmp ult i64 %w, %workers
  br i1 %more, label %call, label %own
call:
  %worker = getelementptr %worker, ptr %first, i64 %w
  %was = atomicrmw xchg ptr %worker, i32 1 acq_rel, align 4
  %asleep = icmp eq i32 %was, 2
  br i1 %asleep, label %wake, label %tail
wake:
  %semaphore = getelementptr %worker, ptr %worker, i64 0, i32 2
  %posted = call i32 @sem_post(ptr %semaphore)
  br label %tail
tail:
  %w.next = add i64 %w, 1
  br label %head
own:
  call void @take(ptr %pool, i64 0)
  call void @wait_for(ptr %finished, i64 %workers, i64 %spin)
  call void @leave(ptr %environment)
  ret void
}
"""
_ENVIRONMENT = """
define internal void @enter(ptr %environment) {
  %saved = call i32 @fegetenv(ptr %environment)
  %plain = call i32 @fesetenv(ptr inttoptr (i64 -1 to ptr))
  ret void
}
define internal void @leave(ptr %environment) {
  %restored = call i32 @fesetenv(ptr %environment)
  ret void
}
"""
# On x86 these take 0.3 us, to save and load the x87 unit, which no kernel uses. The rest of the
# environment is one register.
_SSE = """
@plain = private constant i32 8064  ; 0x1F80: round to nearest, no exceptions, keep subnormals
declare void @llvm.x86.sse.stmxcsr(ptr)
declare void @llvm.x86.sse.ldmxcsr(ptr)
define internal void @enter(ptr %environment) {
  call void @llvm.x86.sse.stmxcsr(ptr %environment)
  call void @llvm.x86.sse.ldmxcsr(ptr @plain)
  ret void
}
define internal void @leave(ptr %environment) {
  call void @llvm.x86.sse.ldmxcsr(ptr %environment)
  ret void
}
"""
_X86, _ARM = "call void @llvm.x86.sse2.pause()", "call void @llvm.aarch64.hint(i32 1)"
_PAUSE = {"x86_64": _X86, "AMD64": _X86, "aarch64": _ARM, "arm64": _ARM}


def driver() -> str:
    """The driver for this machine: `dodeca_start`, `dodeca_alone`, `dodeca_together`."""
    pause = _PAUSE.get(platform.machine(), "")
    return _DRIVER.replace("PAUSE", pause) + (_SSE if pause == _X86 else _ENVIRONMENT)


def trampolines(counts: Iterable[int]) -> str:
    """For each number of arguments `dodeca_call_N(kernel, buffer table, ids, begin, end)`."""
    return "\n".join(_trampoline(count) for count in sorted({*counts}))


def _trampoline(count: int) -> str:
    lines = [
        f"define void @dodeca_call_{count}(ptr %kernel, ptr %table, ptr %ids, "
        "i64 %begin, i64 %end) {"
    ]
    for i in range(count):
        lines += [
            f"  %at{i} = getelementptr i64, ptr %ids, i64 {i}",
            f"  %id{i} = load i64, ptr %at{i}",
            f"  %slot{i} = getelementptr ptr, ptr %table, i64 %id{i}",
            f"  %a{i} = load ptr, ptr %slot{i}",
        ]
    pointers = "".join(f"ptr %a{i}, " for i in range(count))
    lines += [f"  call void %kernel({pointers}i64 %begin, i64 %end)", "  ret void", "}"]
    return "\n".join(lines)


def tables(kernels: Mapping[str, int]) -> str:
    """What a library tells of its kernels, given as names and numbers of arguments, in order.

    `dodeca_kernels` and `dodeca_calls` are their addresses and those of their trampolines,
    `dodeca_count` is how many they are.
    """
    names = [_symbol(name) for name in kernels]
    lines = [f"declare void {name}()" for name in names]
    for table, values in (
        ("dodeca_kernels", names),
        ("dodeca_calls", [f"@dodeca_call_{count}" for count in kernels.values()]),
    ):
        content = ", ".join(f"ptr {value}" for value in values)
        lines.append(f"@{table} = constant [{len(values)} x ptr] [{content}]")
    return "\n".join([*lines, f"@dodeca_count = constant i64 {len(names)}"])


def _symbol(name: str) -> str:
    """A function's name as LLVM's text has it."""
    plain = "".join(c if c.isascii() and (c.isalnum() or c in "_.-$") else "" for c in name)
    if plain == name:
        return f'@"{name}"'
    return '@"' + "".join(f"\\{byte:02X}" for byte in name.encode()) + '"'
