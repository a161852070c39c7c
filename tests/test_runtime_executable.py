"""Executables on the CPU, from programs built by hand out of small LLVM IR kernels."""

import ctypes
import json
import os
import signal
import subprocess
import sys
import threading
import warnings

import llvmlite.binding as llvm
import ml_dtypes
import numpy as np
import pytest
from dodeca.dialect.errors import ArgumentError, CompileError, TargetError
from dodeca.runtime import Executable, PlannedLaunch
from dodeca.runtime.elf import elf_symbols
from dodeca.runtime.jit import compile_for_host, load_objects
from dodeca.runtime.memory import aligned
from dodeca.runtime.program import Buffer, Kernel, Launch, Program

LLVM_TYPES = {"float32": "float", "int64": "i64", "bool": "i8", "bfloat16": "bfloat"}


def elementwise(name, size, body, inputs=1, dtype="float32"):
    """A kernel that computes %r from %v0, %v1, ... for each element; one program an element."""
    kind = LLVM_TYPES[dtype]
    pointers = [f"ptr %a{i}" for i in range(inputs + 1)]
    loads = "".join(
        f"  %p{i} = getelementptr {kind}, ptr %a{i}, i64 %i\n  %v{i} = load {kind}, ptr %p{i}\n"
        for i in range(inputs)
    )
    text = f"""
define void @{name}({", ".join(pointers)}, i64 %begin, i64 %end) {{
entry:
  br label %loop
loop:
  %i = phi i64 [ %begin, %entry ], [ %next, %loop ]
{loads}
  {body}
  %out = getelementptr {kind}, ptr %a{inputs}, i64 %i
  store {kind} %r, ptr %out
  %next = add i64 %i, 1
  %more = icmp ult i64 %next, %end
  br i1 %more, label %loop, label %done
done:
  ret void
}}
declare float @llvm.exp2.f32(float)
"""
    return kernel(name, text, size, (((size,), dtype),) * (inputs + 1))


def kernel(name, text, grid, arguments, outputs=1, **more):
    """A CPU kernel from LLVM IR."""
    return Kernel(
        name=name,
        target="cpu",
        grid=grid,
        block=1,
        arguments=arguments,
        outputs=outputs,
        fused=(name,),
        stages={"tile": f"tile of {name}", "llvm": f"llvm of {name}"},
        llvm_ir=text,
        assembly=f"assembly of {name}",
        binary=compile_for_host(llvm.parse_assembly(text), name),
        **more,
    )


def program(kernels, buffers, plan, inputs, outputs, prepare=(), weights=None, target="cpu"):
    """A program from kernels and launches (kernel name, argument ids)."""
    return Program(
        target=target,
        kernels={one.name: one for one in kernels},
        buffers=tuple(buffers),
        prepare=tuple(Launch(name, ids) for name, ids in prepare),
        plan=tuple(Launch(name, ids) for name, ids in plan),
        inputs=inputs,
        outputs=outputs,
        weights=weights or {},
        stages={"dodeca": "module {}\n", "kernels": "kernels {}\n"},
        report={
            "seconds": {"saturate": 0.25, "lower": 0.5},
            "nodes": 12,
            "regions": [{"operations": 3, "stopped": "saturated"}],
        },
    )


def vector(role, size=10, name="", dtype="float32"):
    return Buffer((size,), dtype, role, name)


def add_one(size=10, name="add_one"):
    return elementwise(name, size, "%r = fadd float %v0, 1.0")


def add(size=10):
    return elementwise("add", size, "%r = fadd float %v0, %v1", inputs=2)


def one_launch(size=10, **more):
    buffers = [vector("input", size, "x"), vector("output", size)]
    return Executable(
        program([add_one(size)], buffers, [("add_one", (0, 1))], (0,), (1,)), {}, **more
    )


def chain(length, size=64, **more):
    """x + length, in that many launches through scratch buffers."""
    middle = [vector("scratch", size) for _ in range(length - 1)]
    buffers = [vector("input", size), *middle, vector("output", size)]
    plan = [("add_one", (i, i + 1)) for i in range(length)]
    return Executable(program([add_one(size)], buffers, plan, (0,), (length,)), {}, **more)


# --- values


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_an_elementwise_kernel(threads):
    x = np.arange(1000, dtype="f4")
    exe = one_launch(1000, threads=threads)
    first, second = exe(x), exe(x + 1)
    np.testing.assert_array_equal(first, x + 1)  # a later call leaves an earlier result alone
    np.testing.assert_array_equal(second, x + 2)


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_a_chain_through_scratch_buffers(threads):
    exe = chain(5, threads=threads)
    x = np.arange(64, dtype="f4")
    np.testing.assert_array_equal(exe(x), x + 5)
    assert exe.scratch_bytes == 2 * 64 * 4  # two live at a time


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_threads_see_each_other_s_results(threads):
    """Each launch reverses its input, so every element crosses over to another thread."""
    size, length = 64, 101
    text = f"""
define void @reverse(ptr %a, ptr %b, i64 %begin, i64 %end) {{
entry:
  br label %loop
loop:
  %i = phi i64 [ %begin, %entry ], [ %next, %loop ]
  %j = sub i64 {size - 1}, %i
  %p = getelementptr float, ptr %a, i64 %j
  %v = load float, ptr %p
  %r = fadd float %v, 1.0
  %q = getelementptr float, ptr %b, i64 %i
  store float %r, ptr %q
  %next = add i64 %i, 1
  %more = icmp ult i64 %next, %end
  br i1 %more, label %loop, label %done
done:
  ret void
}}"""
    reverse = kernel("reverse", text, size, (((size,), "float32"),) * 2)
    middle = [vector("scratch", size) for _ in range(length - 1)]
    buffers = [vector("input", size), *middle, vector("output", size)]
    plan = [("reverse", (i, i + 1)) for i in range(length)]
    exe = Executable(program([reverse], buffers, plan, (0,), (length,)), {}, threads=threads)
    x = np.arange(size, dtype="f4")
    for _ in range(400 if threads <= 2 else 20):
        np.testing.assert_array_equal(exe(x), x[::-1] + length)


def test_many_small_calls():
    exe = one_launch(2, threads=2)
    x = np.zeros(2, "f4")
    for _ in range(3000):
        x = exe(x)
    np.testing.assert_array_equal(x, 3000)


def test_prepared_weights_are_computed_once():
    buffers = [vector("input"), vector("weight", name="w"), vector("prepared"), vector("output")]
    made = program(
        [add_one(), add()],
        buffers,
        [("add", (0, 2, 3))],
        (0,),
        (3, 2),
        prepare=[("add_one", (1, 2))],
        weights={"w": 1},
    )
    w = np.arange(10, dtype="f4")
    exe = Executable(made, {"w": w})
    w[:] = 99  # the caller's array is their own again
    x = np.full(10, 5, "f4")
    result, prepared = exe(x)
    np.testing.assert_array_equal(result, np.arange(10) + 6)
    prepared[:] = 0
    np.testing.assert_array_equal(exe(x)[0], np.arange(10) + 6)


def test_weights_are_the_executable_s_own_or_read_only():
    buffers = [vector("input"), vector("weight", name="w"), vector("output")]
    made = program([add()], buffers, [("add", (0, 1, 2))], (0,), (2,), weights={"w": 1})
    x, w = np.zeros(10, "f4"), aligned(40).view("f4")
    w[:] = 1
    copied = Executable(made, {"w": w})
    w[:] = 2
    w.flags.writeable = False
    shared = Executable(made, {"w": w})
    odd = np.frombuffer(bytes(44), "f4")[1:]
    for exe, given, expected in (
        (copied, w, 1),
        (shared, w, 2),
        (Executable(made, {"w": odd}), odd, 0),
    ):
        np.testing.assert_array_equal(exe(x), expected)
        held = exe.resident[1]
        assert np.shares_memory(held, given) == (exe is shared) and held.ctypes.data % 64 == 0


def test_prepare_may_use_scratch():
    buffers = [vector("weight"), vector("scratch"), vector("prepared")]
    prepare = [("add_one", (0, 1)), ("add_one", (1, 2))]
    made = program([add_one()], buffers, [], (), (2,), prepare=prepare, weights={"w": 0})
    exe = Executable(made, {"w": np.zeros(10, "f4")}, threads=2)
    np.testing.assert_array_equal(exe(), 2)
    assert exe.scratch_bytes == 0


def test_outputs_that_are_inputs_weights_or_twice_the_same_are_copies():
    buffers = [vector("input"), vector("weight"), vector("output")]
    made = program([add()], buffers, [("add", (0, 1, 2))], (0,), (2, 0, 1, 2), weights={"w": 1})
    exe = Executable(made, {"w": np.ones(10, "f4")})
    x = np.arange(10, dtype="f4")
    results = exe(x)
    for i, one in enumerate(results):
        assert not any(np.may_share_memory(one, other) for other in (x, *results[i + 1 :]))
        one[:] = -1
    np.testing.assert_array_equal(x, np.arange(10))
    for one, expected in zip(exe(x), (x + 1, x, np.ones(10), x + 1), strict=True):
        np.testing.assert_array_equal(one, expected)


def test_zero_sizes():
    buffers = [vector("input", 0), vector("scratch", 0), vector("output", 0)]
    plan = [("add_one", (0, 1)), ("add_one", (1, 2))]
    exe = Executable(program([add_one(0)], buffers, plan, (0,), (2,)), {}, threads=2)
    assert exe(np.zeros(0, "f4")).shape == (0,)


def test_a_program_without_launches():
    exe = Executable(program([], [Buffer((), "float32", "input")], [], (0,), (0,)), {})
    assert exe(2.5) == np.float32(2.5)
    assert Executable(program([], [], [], (), ()), {})() == ()


def test_unflatten_makes_the_result():
    assert one_launch(unflatten=lambda arrays: {"y": arrays[0]})(np.zeros(10, "f4")).keys() == {"y"}


def test_the_callers_floating_point_mode_does_not_matter():
    """A library may leave flush-to-zero on; 2^-140 is subnormal, and must count all the same."""
    text = """
declare void @llvm.x86.sse.ldmxcsr(ptr)
define void @set(i32 %mode) {
  %at = alloca i32
  store i32 %mode, ptr %at
  call void @llvm.x86.sse.ldmxcsr(ptr %at)
  ret void
}"""
    if not llvm.get_default_triple().startswith("x86_64"):
        pytest.skip("the mode is set with an x86 instruction")
    engine = driver_engine(text)
    set_mode = ctypes.CFUNCTYPE(None, ctypes.c_uint32)(engine.get_function_address("set"))
    half = elementwise("half", 10, "%r = fmul float %v0, 5.0e-01")
    buffers = [vector("input"), vector("output")]
    made = program([half], buffers, [("half", (0, 1))], (0,), (1,))
    x = np.full(10, 2.0**-139, "f4")
    for threads in (1, 2):
        exe = Executable(made, {}, threads=threads)
        set_mode(0x9FC0)
        try:
            result = exe(x)
        finally:
            set_mode(0x1F80)
        np.testing.assert_array_equal(result, np.full(10, 2.0**-140, "f4"))


def driver_engine(text):
    return load_objects([compile_for_host(llvm.parse_assembly(text), "test")])


# --- arguments


def test_arrays_need_not_be_contiguous_aligned_or_writable():
    exe = one_launch()
    x = np.arange(20, dtype="f4")
    np.testing.assert_array_equal(exe(x[::2]), x[::2] + 1)
    np.testing.assert_array_equal(exe(x[9::-1]), x[9::-1] + 1)
    wide, _ = np.broadcast_arrays(x[:1], x[:10])  # numpy warns of a look at whether it is writable
    np.testing.assert_array_equal(exe(wide), np.ones(10))
    odd = np.zeros(41, "u1")[1:].view("f4")
    assert not odd.flags.aligned
    np.testing.assert_array_equal(exe(odd), 1)
    fixed = x[:10].copy()
    fixed.flags.writeable = False
    np.testing.assert_array_equal(exe(fixed), fixed + 1)


def test_bool_arrays():
    flip = elementwise("flip", 4, "%r = xor i8 %v0, 1", dtype="bool")
    buffers = [vector("input", 4, dtype="bool"), vector("output", 4, dtype="bool")]
    exe = Executable(program([flip], buffers, [("flip", (0, 1))], (0,), (1,)), {})
    result = exe(np.array([True, False, True, True]))
    assert result.dtype == bool and result.tolist() == [False, True, False, False]


def scalars(dtype):
    return Executable(program([], [Buffer((), dtype, "input", "s")], [], (0,), (0,)), {})


@pytest.mark.parametrize(
    "dtype, value",
    [("float32", 3), ("float32", 0.1), ("float16", float("inf")), ("bfloat16", float("nan")),
     ("int8", -128), ("uint8", 255), ("bool", True), ("int64", np.int64(7))],
)  # fmt: skip
def test_python_numbers_for_0d_inputs(dtype, value):
    result = scalars(dtype)(value)
    assert result.shape == () and result.dtype.name == dtype
    expected = np.asarray(value, result.dtype)
    np.testing.assert_array_equal(result.astype("f8"), expected.astype("f8"))


@pytest.mark.parametrize(
    "dtype, value",
    [("int8", 128), ("uint8", -1), ("int64", 1.0), ("bool", 1), ("float32", True),
     ("float16", 1e6), ("float32", 10**400), ("float64", 10**400), ("float32", "1")],
)  # fmt: skip
def test_python_numbers_that_do_not_fit(dtype, value):
    with pytest.raises(ArgumentError, match=rf"argument 0 \('s'\): expected a {dtype} number"):
        scalars(dtype)(value)


@pytest.mark.parametrize(
    "arrays, message",
    [
        ((), r"expected 1 \(x\) arguments, got 0"),
        ((np.zeros(10, "f4"),) * 2, r"expected 1 \(x\) arguments, got 2"),
        ((np.zeros(10),), r"argument 0 \('x'\): expected float32 \(10,\), got float64 \(10,\)"),
        (
            (np.zeros((2, 5), "f4"),),
            r"argument 0 .*: expected float32 \(10,\), got float32 \(2, 5\)",
        ),
        ((np.zeros(10, ">f4"),), r"got >f4 \(10,\)"),
        (([1.0] * 10,), r"expected float32 \(10,\), got list"),
        ((2.0,), r"expected float32 \(10,\), got the number 2.0"),
    ],
)
def test_wrong_arguments(arrays, message):
    with pytest.raises(ArgumentError, match=message):
        one_launch()(*arrays)


def test_weights_are_checked():
    made = program([], [vector("weight", 3)], [], (), (0,), weights={"layer.w": 0})
    with pytest.raises(ArgumentError, match=r"weight 'layer.w': missing; expected float32 \(3,\)"):
        Executable(made, {})
    with pytest.raises(ArgumentError, match=r"weight 'layer.w': expected float32 \(3,\), got"):
        Executable(made, {"layer.w": np.zeros(4, "f4")})


@pytest.mark.parametrize("threads", [0, -1, 1.5, True])
def test_threads_must_be_a_positive_number(threads):
    with pytest.raises(ArgumentError, match="threads: expected"):
        one_launch(threads=threads)


def test_threads_come_from_the_environment(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "3,2")
    assert one_launch().threads == 3
    assert one_launch(threads=1).threads == 1
    monkeypatch.setenv("OMP_NUM_THREADS", "many")
    assert one_launch().threads == len(os.sched_getaffinity(0))


class Foreign:
    """Another library's tensor: only the protocol, and bfloat16 as the capsule says it."""

    def __init__(self, array, device=1):
        self.bfloat = array.dtype == ml_dtypes.bfloat16
        self.array = array.view(np.uint16) if self.bfloat else array
        self.device = device

    def __dlpack_device__(self):
        return self.device, 0

    def __dlpack__(self):
        capsule = self.array.__dlpack__()
        if self.bfloat:
            get = ctypes.pythonapi.PyCapsule_GetPointer
            get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
            ctypes.c_uint8.from_address(get(capsule, b"dltensor") + 20).value = 4
        return capsule


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "bool", "int64", "uint8"])
@pytest.mark.parametrize("shape", [(), (0, 3), (4,), (2, 3)])
def test_dlpack(dtype, shape):
    from dodeca.dialect import DTYPES

    size = int(np.prod(shape))
    array = np.arange(size).reshape(shape).astype(DTYPES[dtype].numpy)
    exe = Executable(program([], [Buffer(shape, dtype, "input")], [], (0,), (0,)), {})
    np.testing.assert_array_equal(exe(Foreign(array)), array)
    if len(shape) == 2:
        turned = np.asfortranarray(array)
        np.testing.assert_array_equal(exe(Foreign(turned)), array)


def test_dlpack_of_another_device():
    with pytest.raises(ArgumentError, match=r"argument 0 .*is not in the CPU's memory"):
        one_launch()(Foreign(np.zeros(10, "f4"), device=2))


# --- out=


def test_out_takes_the_result():
    exe, x = one_launch(), np.arange(10, dtype="f4")
    out = np.empty(10, "f4")
    assert exe(x, out=out) is out
    np.testing.assert_array_equal(out, x + 1)
    strided = np.zeros(20, "f4")[::2]
    assert exe(x, out=(strided,)) is strided
    np.testing.assert_array_equal(strided, x + 1)


def test_out_may_overlap_an_input():
    exe = chain(3)
    memory = np.arange(65, dtype="f4")
    expected = memory[:64] + 3
    exe(memory[:64], out=memory[1:])
    np.testing.assert_array_equal(memory[1:], expected)
    swap = Executable(program([], [vector("input"), vector("input")], [], (0, 1), (0, 1)), {})
    x, y = np.zeros(10, "f4"), np.ones(10, "f4")
    swap(x, y, out=(y, x))
    assert x.tolist() == [1] * 10 and y.tolist() == [0] * 10


@pytest.mark.parametrize(
    "out, message",
    [
        ((), "out: expected 1 arrays, got 0"),
        ([[0.0] * 10], r"out\[0\]: expected a numpy array to write into, got list"),
        (np.zeros(10), r"out\[0\]: expected float32 \(10,\), got float64 \(10,\)"),
        (np.broadcast_to(np.float32(0), (10,)), r"out\[0\]: the array is read-only"),
    ],
)
def test_wrong_out(out, message):
    with pytest.raises(ArgumentError, match=message):
        one_launch()(np.zeros(10, "f4"), out=out)


# --- several callers


def test_several_python_threads_may_call():
    executables = [chain(20, size=256, threads=2), chain(20, size=256, threads=1), chain(7)]
    wrong = []

    def caller(seed):
        rng = np.random.default_rng(seed)
        for i in range(60):
            exe = executables[(seed + i) % 3]
            x = rng.integers(0, 100, exe.buffers[0].shape).astype("f4")
            if not np.array_equal(exe(x), x + len(exe.plan)):
                wrong.append(seed)

    callers = [threading.Thread(target=caller, args=(seed,)) for seed in range(6)]
    for one in callers:
        one.start()
    for one in callers:
        one.join()
    assert not wrong


def test_a_forked_child_starts_its_own_threads():
    exe, x = chain(3, threads=2), np.arange(64, dtype="f4")
    exe(x)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        os._exit(0 if np.array_equal(exe(x), x + 3) else 1)
    assert os.waitpid(child, 0)[1] == 0
    np.testing.assert_array_equal(exe(x), x + 3)


def test_an_interrupt_leaves_the_threads_usable():
    exe, x = chain(50, size=512, threads=2), np.arange(512, dtype="f4")

    def interrupt(*_):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        for delay in np.linspace(0.0002, 0.003, 40):
            with pytest.raises(KeyboardInterrupt):
                signal.setitimer(signal.ITIMER_REAL, delay)
                while True:
                    exe(x)
            np.testing.assert_array_equal(exe(x), x + 50)
    finally:
        signal.signal(signal.SIGALRM, before)


def test_a_process_may_end_while_threads_spin(tmp_path):
    script = """
import numpy as np
from dodeca.runtime.driver import run_launches
for threads in (2, 3):
    run_launches(threads, 0, 0, 0)
"""
    for _ in range(3):
        ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
        assert (ran.returncode, ran.stderr) == (0, "")


# --- what an executable tells


def test_plain_data():
    exe = chain(3)
    assert [one.name for one in exe.kernels] == ["add_one"]
    assert exe.plan[1] == PlannedLaunch("add_one", 64, 1, 0, (1, 2))
    assert exe.buffers[1].role == "scratch" and exe.buffers[1].bytes == 256
    assert exe.ir("dodeca") == "module {}\n"
    assert exe.ir("tile") == "// kernel add_one\ntile of add_one\n"
    assert exe.ir("text") == "# kernel add_one\nassembly of add_one\n"
    assert exe.ir("llvm_ir").startswith("; kernel add_one\n")
    with pytest.raises(ArgumentError, match="dodeca, kernels, tile, llvm, llvm_ir, text; got 'x'"):
        exe.ir("x")


def test_the_report_names_kernels_memory_and_time():
    text = chain(3, threads=2).report()
    for part in ("2 threads", "1 kernel, 3 launches", "add_one  grid 64", "[1 input, 1 output"):
        assert part in text
    assert "scratch: 2, 512 bytes, in an arena of 512 bytes" in text
    assert "compiled in 0.750 s: saturate 0.250, lower 0.500" in text and "nodes: 12" in text
    assert "regions:\n  operations 3, stopped saturated\n" in text


def test_dump_writes_a_folder(tmp_path):
    exe = chain(2)
    exe.dump(tmp_path / "saved")
    exe.dump(tmp_path / "saved")  # again, over the first
    assert os.listdir(tmp_path) == ["saved"]
    assert sorted(os.listdir(tmp_path / "saved")) == [
        "add_one.ll", "add_one.llvm.mlir", "add_one.o", "add_one.s", "add_one.tile.mlir",
        "kernels.mlir", "manifest.json", "module.mlir",
    ]  # fmt: skip
    manifest = json.loads((tmp_path / "saved" / "manifest.json").read_text())
    assert manifest["plan"][1] == {"kernel": "add_one", "arguments": [1, 2], "predicted": 0.0}
    assert manifest["buffers"][1]["bytes"] == 256 and manifest["scratch_bytes"] == 256
    assert (tmp_path / "saved" / "add_one.o").read_bytes() == exe.kernels[0].binary
    (tmp_path / "mine").mkdir()
    with pytest.raises(ArgumentError, match="exists and is not the folder of an executable"):
        exe.dump(tmp_path / "mine")


def test_an_unknown_function_is_an_error_and_no_abort():
    text = "declare void @missing_function()\ndefine void @k(i64 %b, i64 %e) {\n"
    text += "call void @missing_function()\nret void\n}"
    made = program([kernel("k", text, 1, (), 0)], [], [("k", ())], (), ())
    assert ("missing_function", False) in elf_symbols(made.kernels["k"].binary)
    with pytest.raises(CompileError, match="missing_function"):
        Executable(made, {})


@pytest.mark.parametrize(
    "target, driver", [("cuda:sm_80", "libcuda"), ("hip:gfx942", "libamdhip64")]
)
def test_calling_a_gpu_executable_says_what_is_missing(target, driver):
    exe = Executable(program([], [vector("input")], [], (0,), (0,), target=target), {})
    assert target in exe.report()
    with pytest.raises(TargetError, match=rf"{driver}|not launch kernels on a GPU yet"):
        exe(np.zeros(10, "f4"))
