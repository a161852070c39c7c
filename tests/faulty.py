"""Kernels out of LLVM IR for the tests of measuring: y = x + 1, and what can go wrong with that.

build(Candidate(task(), "null", 0.0))     # the schedule says which

Workers import this module: `build` and `cases` are their tools.
"""

import os
import time
from dataclasses import replace
from pathlib import Path

import llvmlite.binding as llvm
import numpy as np
from dodeca.dialect.errors import CompileError
from dodeca.runtime.checking import Case, Window, adversarial_inputs, one_kernel_program
from dodeca.runtime.jit import compile_for_host
from dodeca.runtime.program import Buffer, Kernel, Launch, Program
from dodeca.runtime.trial import Candidate, Task

SIZE = 1000
COVERED = 400  # elements from the start that the reference covers

# What a program with id %i does, given its element %v.
BODIES = {
    "good": "store float %sum, ptr %q",
    "again": "store float %sum, ptr %q\n  store volatile float %sum, ptr %q",  # good too
    "null": "store volatile float %sum, ptr inttoptr (i64 8 to ptr)",
    "hog": "%hoard = call ptr @calloc(i64 1048576, i64 64)\n  store volatile i8 1, ptr %hoard",
    "wrong": "%more = fadd float %sum, 1.0\n  store float %more, ptr %q",
    "one_place": """%there = icmp eq i64 %i, 777
  %more = fadd float %sum, 1.0
  %chosen = select i1 %there, float %more, float %sum
  store float %chosen, ptr %q""",
    "unwritten": """%there = icmp eq i64 %i, 778
  %scrap = alloca float
  %to = select i1 %there, ptr %scrap, ptr %q
  store float %sum, ptr %to""",
    "outside": f"""store float %sum, ptr %q
  %past = getelementptr i8, ptr %y, i64 {SIZE * 4}
  store i64 0, ptr %past""",
    "before": """store float %sum, ptr %q
  %past = getelementptr i8, ptr %y, i64 -8
  store i64 0, ptr %past""",
    "into_input": "store float %sum, ptr %q\n  store float %sum, ptr %p",
}
LOOPS = {
    "ten": 10,
    "hundred": 100,
    "lazy": 50_000,
    "endless": 1 << 62,
}  # how often each element is computed


def task(
    anchor: str = "again",
    key: str = "task",
    threads: int = 2,
    size: int = SIZE,
    cold: tuple[bool, ...] = (False, False),
) -> Task:
    """A task whose candidates these are."""
    return Task(key, f"@plus_one(size={size})", "cpu", "fast", threads, cold, anchor)


def candidate(schedule: str, of: Task | None = None) -> Candidate:
    return Candidate(of or task(), schedule, 1e-6)


def kernel(schedule: str, size: int = SIZE) -> Kernel:
    """The kernel of a row."""
    body = BODIES.get(schedule, BODIES["good"])
    every_time = "volatile" if schedule in LOOPS else ""
    text = f"""
declare ptr @calloc(i64, i64)
define void @plus_one(ptr %x, ptr %y, i64 %begin, i64 %end) {{
entry:
  br label %loop
loop:
  %i = phi i64 [ %begin, %entry ], [ %i.next, %done ]
  br label %work
work:
  %turn = phi i64 [ 0, %loop ], [ %turn.next, %work ]
  %p = getelementptr float, ptr %x, i64 %i
  %q = getelementptr float, ptr %y, i64 %i
  %v = load {every_time} float, ptr %p
  %sum = fadd float %v, 1.0
  {body}
  %turn.next = add i64 %turn, 1
  %turns = icmp ult i64 %turn.next, {LOOPS.get(schedule, 1)}
  br i1 %turns, label %work, label %done
done:
  %i.next = add i64 %i, 1
  %elements = icmp ult i64 %i.next, %end
  br i1 %elements, label %loop, label %out
out:
  ret void
}}"""
    return Kernel(
        name="plus_one",
        target="cpu",
        grid=size,
        block=1,
        arguments=(((size,), "float32"),) * 2,
        outputs=1,
        fused=("add",),
        stages={},
        llvm_ir=text,
        binary=compile_for_host(llvm.parse_assembly(text), "plus_one"),
    )


def program(schedule: str, launches: int = 1, name: str = "w") -> Program:
    """Computes x + 1 so many times, and has a weight."""
    plain = one_kernel_program(kernel(schedule))
    weight = Buffer((3,), "int32", "weight", name)
    return replace(
        plain,
        buffers=(*plain.buffers, weight),
        plan=(Launch("plus_one", (0, 1)),) * launches,
        outputs=(1, 2),
        weights={name: 2},
    )


def build(candidate: Candidate) -> Kernel:
    """Compile a candidate, or not."""
    schedule, _, rest = candidate.schedule.partition(" ")
    if schedule == "refused":
        raise CompileError("tile: this schedule does not fit")
    if schedule == "abort":
        os.abort()
    if schedule == "exit":
        os._exit(3)
    if schedule == "sleep":
        time.sleep(float(rest or 1e6))
    if schedule == "greedy":
        return bytes(1 << 40)  # pyright: ignore
    if schedule == "nothing":
        return None  # pyright: ignore
    if schedule == "loud":
        os.write(1, b"this is not an answer\n" * 1000)
    if schedule == "orphan" and not (rest and Path(rest).exists()):  # its parent dies, or once
        if rest:
            Path(rest).touch()
        os.kill(os.getppid(), 9)
        time.sleep(1e6)
    return kernel(schedule, size_of(candidate.task))


def size_of(task: Task) -> int:
    return int(task.source.partition("size=")[2].rstrip(")"))


def cases(task: Task) -> list[Case]:
    """The reference: what the first elements are."""
    if task.key.startswith("no reference"):
        raise ValueError("the interpreter has no such operation")
    size = size_of(task)
    found = []
    for name, inputs in adversarial_inputs([((size,), "float32")], seed=1):
        expected = inputs[0][:COVERED].astype(np.float64) + 1
        tolerance = 1e-6 * np.abs(expected) + 1e-6
        tolerance[~np.isfinite(expected)] = 0
        found.append(Case(name, inputs, (Window(0, (0,), expected, tolerance),)))
    return found
