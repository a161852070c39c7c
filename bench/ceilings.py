"""What the machine can do at most: float32 multiply-adds, and copying in memory.

>>> ceilings(threads=2)
{'GFLOP/s': 118.2, 'copy GB/s': 21.4}

The first is a loop of independent vector instructions in LLVM IR. The second copies arrays larger
than the caches with numpy, and counts what is read and what is written once each.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np

ACCUMULATORS = 12  # enough to hide the latency of the instruction
TURNS = 1_000_000
COPIED = 128 << 20  # bytes
COMPUTE_TRIES, COPY_TRIES = 200, 20  # each short, so that one meets no other user of the machine


def ceilings(threads: int) -> dict[str, float]:
    """The best of some tries on so many threads."""
    multiply, lanes = _multiply_adds()
    flops = 2.0 * ACCUMULATORS * lanes * TURNS * threads
    parts = [
        (np.ones(COPIED // 4 // threads, np.float32), np.zeros(COPIED // 4 // threads, np.float32))
        for _ in range(threads)
    ]
    with ThreadPoolExecutor(threads) as pool:
        compute = _least(pool, [lambda: multiply(TURNS, 0.999, 1e-7)] * threads, COMPUTE_TRIES)
        copies = [lambda pair=pair: np.copyto(pair[1], pair[0]) for pair in parts]
        copy = _least(pool, copies, COPY_TRIES)
    return {"GFLOP/s": flops / compute / 1e9, "copy GB/s": 2 * COPIED / copy / 1e9}


def _least(pool: ThreadPoolExecutor, jobs: list[Callable[[], object]], tries: int) -> float:
    """The least seconds that the jobs take, all at the same time."""
    times = []
    for _ in range(tries):
        start = time.perf_counter()
        for done in [pool.submit(job) for job in jobs]:
            done.result()
        times.append(time.perf_counter() - start)
    return min(times)


def _multiply_adds() -> tuple[Callable[[int, float, float], float], int]:
    """f(turns, m, c), which applies x -> x m + c in each turn to some vectors; and their lanes."""
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    features = llvm.get_host_cpu_features()
    lanes = 16 if features.get("avx512f") else 8 if features.get("avx") else 4
    machine = llvm.Target.from_default_triple().create_target_machine(
        cpu=llvm.get_host_cpu_name(), features=features.flatten(), opt=3
    )
    module = llvm.parse_assembly(_source(lanes))
    engine = llvm.create_mcjit_compiler(module, machine)
    engine.finalize_object()
    kind = ctypes.CFUNCTYPE(ctypes.c_float, ctypes.c_int64, ctypes.c_float, ctypes.c_float)
    function = kind(engine.get_function_address("multiply_adds"))

    def run(turns: int, m: float, c: float, keep: object = engine) -> float:
        return function(turns, m, c)

    return run, lanes


def _source(lanes: int) -> str:
    vector, each = f"<{lanes} x float>", range(ACCUMULATORS)
    fma = f"llvm.fma.v{lanes}f32"

    def splat(name: str, value: str) -> str:
        return (
            f"  %{name}.one = insertelement {vector} undef, float {value}, i32 0\n"
            f"  %{name} = shufflevector {vector} %{name}.one, {vector} undef, "
            f"<{lanes} x i32> zeroinitializer\n"
        )

    start = "".join(splat(f"s{i}", f"{float(i + 1)}") for i in each)
    heads = "\n".join(f"  %x{i} = phi {vector} [%s{i}, %entry], [%y{i}, %loop]" for i in each)
    steps = "\n".join(
        f"  %y{i} = call {vector} @{fma}({vector} %x{i}, {vector} %m, {vector} %c)" for i in each
    )
    sums = "\n".join(
        f"  %t{i + 1} = fadd {vector} {f'%t{i}' if i else f'%y{0}'}, %y{i + 1}" for i in each[:-1]
    )
    return f"""
declare {vector} @{fma}({vector}, {vector}, {vector})
define float @multiply_adds(i64 %n, float %mm, float %cc) {{
entry:
{splat("m", "%mm")}{splat("c", "%cc")}{start}  br label %loop
loop:
  %i = phi i64 [0, %entry], [%next, %loop]
{heads}
{steps}
  %next = add i64 %i, 1
  %more = icmp ult i64 %next, %n
  br i1 %more, label %loop, label %done
done:
{sums}
  %r = extractelement {vector} %t{ACCUMULATORS - 1}, i32 0
  ret float %r
}}
"""
