"""GPU programs on this CPU, from LLVM IR as the two vendors' compilers have it."""

import dodeca as dd
import numpy as np
import pytest
from dodeca.dialect.errors import CompileError, Error, TargetError
from dodeca.runtime import Executable
from dodeca.runtime.program import Buffer, Kernel, Launch, Program
from dodeca.runtime.simulate import simulate, simulate_with_counts

NVPTX = """
target datalayout = "e-p6:32:32-i64:64-i128:128-i256:256-v16:16-v32:32-n16:32:64"
target triple = "nvptx64-nvidia-cuda"

@table = private unnamed_addr addrspace(4) constant [2 x float] [float 1.0, float 2.0]

; Function Attrs: nounwind
define ptx_kernel void @k(ptr addrspace(1) readonly captures(none) %x, ptr writeonly %1) #1 {
  %local = alloca [2 x float], align 4
  %3 = tail call range(i32 0, 1024) i32 @llvm.nvvm.read.ptx.sreg.tid.x() #2
  %4 = tail call i32 @llvm.nvvm.read.ptx.sreg.ctaid.x()
  %5 = tail call i32 @llvm.nvvm.read.ptx.sreg.ntid.x(), !range !1
  %6 = tail call i32 @llvm.nvvm.read.ptx.sreg.ctaid.y()
  %7 = mul i32 %4, %5
  %8 = add i32 %7, %3
  %id = add i32 %8, %6
  %in = icmp ult i32 %id, SIZE
  br i1 %in, label %go, label %out
go:                                               ; preds = %2
  %wide = zext nneg i32 %id to i64
  %p = getelementptr inbounds float, ptr addrspace(1) %x, i64 %wide
  %v = load float, ptr addrspace(1) %p, align 4
  %odd = and i64 %wide, 1
  %c.at = getelementptr float, ptr addrspacecast (ptr addrspace(4) @table to ptr), i64 %odd
  %c = load float, ptr %c.at, align 4
  store float %v, ptr %local, align 4
  %w = load float, ptr %local, align 4
  %e = tail call float @llvm.nvvm.ex2.approx.ftz.f32(float %w)
  %i = tail call float @llvm.nvvm.rcp.rn.f(float noundef %c)
  %r = fmul float %e, %i
  %q = getelementptr inbounds float, ptr %1, i64 %wide
  store float %r, ptr %q, align 4
  br label %out
out:                                              ; preds = %go, %2
  ret void
}

; Function Attrs: nocallback nofree nosync nounwind speculatable willreturn memory(none)
declare noundef range(i32 0, 1024) i32 @llvm.nvvm.read.ptx.sreg.tid.x() #0
declare noundef i32 @llvm.nvvm.read.ptx.sreg.ctaid.x() #0
declare noundef i32 @llvm.nvvm.read.ptx.sreg.ctaid.y() #0
declare noundef range(i32 1, 1025) i32 @llvm.nvvm.read.ptx.sreg.ntid.x() #0
declare float @llvm.nvvm.ex2.approx.ftz.f32(float) #0
declare float @llvm.nvvm.rcp.rn.f(float) #0

attributes #0 = { nocallback nofree nosync nounwind speculatable willreturn memory(none) }
attributes #1 = { nounwind "target-cpu"="sm_80" "target-features"="+ptx80" }
attributes #2 = { nounwind }

!llvm.module.flags = !{!0}
!nvvm.annotations = !{!2}
!0 = !{i32 2, !"Debug Info Version", i32 3}
!1 = !{i32 1, i32 1025}
!2 = !{ptr @k, !"maxntidx", i32 128}
"""

AMDGPU = """
target datalayout = "e-m:e-p:64:64-p1:64:64-p3:32:32-p4:64:64-p5:32:32-i64:64-S32-A5-G1-ni:7:8:9"
target triple = "amdgcn-amd-amdhsa"

@table = private unnamed_addr addrspace(4) constant [2 x float] [float 1.0, float 2.0]

define amdgpu_kernel void @k(ptr addrspace(1) noalias readonly captures(none) %x, ptr writeonly %y) #0 {
  %1 = addrspacecast ptr %y to ptr addrspace(1)
  %s = alloca [2 x float], align 4, addrspace(5)
  call void @llvm.lifetime.start.p5(ptr addrspace(5) %s)
  %t = tail call i32 @llvm.amdgcn.workitem.id.x()
  %g = tail call i32 @llvm.amdgcn.workgroup.id.x()
  %p = tail call ptr addrspace(4) @llvm.amdgcn.implicitarg.ptr()
  %size.at = getelementptr i8, ptr addrspace(4) %p, i64 12
  %size = load i16, ptr addrspace(4) %size.at, align 4
  %size32 = zext i16 %size to i32
  %d = tail call align 4 dereferenceable(64) ptr addrspace(4) @llvm.amdgcn.dispatch.ptr()
  %grid.at = getelementptr i8, ptr addrspace(4) %d, i64 12
  %grid = load i32, ptr addrspace(4) %grid.at, align 4
  %m = mul i32 %g, %size32
  %id = add i32 %m, %t
  %ok = icmp ult i32 %id, SIZE
  %ok2 = icmp ult i32 %id, %grid
  %both = and i1 %ok, %ok2
  br i1 %both, label %go, label %out

go:                                               ; preds = %0
  %i = zext nneg i32 %id to i64
  %pa = getelementptr float, ptr addrspace(1) %x, i64 %i
  %v = load float, ptr addrspace(1) %pa, align 4
  %j = and i32 %id, 1
  %wide = zext nneg i32 %j to i64
  %tp = getelementptr float, ptr addrspace(4) @table, i64 %wide
  %c = load float, ptr addrspace(4) %tp, align 4
  %sp = getelementptr float, ptr addrspace(5) %s, i32 %j
  %fl = addrspacecast ptr addrspace(5) %sp to ptr
  store volatile float %v, ptr %fl, align 4, !noalias.addrspace !0
  %w = load volatile float, ptr addrspace(5) %sp, align 4
  %e = call float @llvm.amdgcn.exp2.f32(float %w)
  %r = call float @llvm.amdgcn.rcp.f32(float %c)
  %o = fmul float %e, %r
  %pb = getelementptr float, ptr addrspace(1) %1, i64 %i
  store float %o, ptr addrspace(1) %pb, align 4
  br label %out

out:                                              ; preds = %go, %0
  call void @llvm.lifetime.end.p5(ptr addrspace(5) %s)
  ret void
}

declare void @llvm.lifetime.start.p5(ptr addrspace(5) captures(none)) #1
declare void @llvm.lifetime.end.p5(ptr addrspace(5) captures(none)) #1
declare noundef range(i32 0, 1024) i32 @llvm.amdgcn.workitem.id.x() #1
declare noundef i32 @llvm.amdgcn.workgroup.id.x() #1
declare noundef align 4 ptr addrspace(4) @llvm.amdgcn.implicitarg.ptr() #1
declare noundef align 4 ptr addrspace(4) @llvm.amdgcn.dispatch.ptr() #1
declare float @llvm.amdgcn.exp2.f32(float) #1
declare float @llvm.amdgcn.rcp.f32(float) #1

attributes #0 = { nofree nounwind memory(argmem: readwrite) "amdgpu-flat-work-group-size"="1,256" "amdgpu-no-dispatch-id" "target-cpu"="gfx942" "uniform-work-group-size"="false" }
attributes #1 = { nocallback nofree nosync nounwind speculatable willreturn }

!0 = !{i32 1, i32 5, i32 6, i32 10}
"""  # noqa: E501
FLAVOURS = {"cuda:sm_80": NVPTX, "hip:gfx942": AMDGPU}


def executable(target, text, block=128, size=1000, **more):
    """x -> scratch -> y, by the same kernel twice; each thread has an element."""
    text = text.replace("SIZE", str(size))
    arguments = ((((1000,), "float32")),) * 2
    kernel = Kernel(
        "k", target, -(-size // block), block, arguments, 1, ("test",), {}, text, b"isa", "isa"
    )
    roles = ("input", "scratch", "output")
    buffers = tuple(Buffer((1000,), "float32", role, role) for role in roles)
    plan = (Launch("k", (0, 1)), Launch("k", (1, 2)))
    made = Program(target, {"k": kernel}, buffers, (), plan, (0,), (2,), {}, {})
    return Executable(made, {}, **more)


@pytest.mark.parametrize("target", FLAVOURS)
@pytest.mark.parametrize("block", [1, 100, 128, 1024])
def test_a_program_gives_the_right_numbers_in_either_order(target, block):
    exe = executable(target, FLAVOURS[target], block=block)
    x = np.linspace(-4, 3, 1000, dtype="f4")
    scale = np.where(np.arange(1000) % 2, 0.5, 1)
    expected = np.exp2(np.exp2(x.astype("f8")) * scale) * scale
    result = exe.simulate(x)
    np.testing.assert_allclose(result, expected, rtol=1e-6)
    np.testing.assert_array_equal(exe.simulate(x, reverse=True), result)
    assert exe.plan[0].grid == -(-1000 // block)


def test_the_result_is_that_of_a_call():
    exe = executable("cuda:sm_80", NVPTX, unflatten=lambda arrays: {"y": arrays[0]})
    assert exe.simulate(np.zeros(1000, "f4"))["y"].shape == (1000,)


def test_prepared_buffers_and_zero_grids():
    kernel = executable("cuda:sm_80", NVPTX).kernels[0]
    none = Kernel("none", "cuda:sm_80", 0, 128, (((0,), "float32"),), 1, (), {}, "not IR", b"")
    buffers = (
        Buffer((1000,), "float32", "weight"),
        Buffer((1000,), "float32", "prepared"),
        Buffer((0,), "float32", "output"),
    )
    prepare, plan = (Launch("k", (0, 1)),), (Launch("none", (2,)),)
    made = Program(
        "cuda:sm_80", {"k": kernel, "none": none}, buffers, prepare, plan, (), (1, 2), {"w": 0}, {}
    )
    prepared, empty = Executable(made, {"w": np.zeros(1000, "f4")}).simulate()
    np.testing.assert_array_equal(prepared, np.where(np.arange(1000) % 2, 0.5, 1))
    assert empty.shape == (0,)


@pytest.mark.parametrize("target", FLAVOURS)
def test_a_write_outside_a_buffer_is_caught(target):
    exe, x = executable(target, FLAVOURS[target], size=1001), np.zeros(1000, "f4")
    message = (
        r"kernel k, block \(7, 0, 0\), thread \(104, 0, 0\) reads 4 bytes 0 bytes after the end of "
        r"its argument 0 \('input'\), at `%v = load float, ptr %pa?, align 4`"
    )
    with pytest.raises(Error, match=message):
        exe.simulate(x)
    message = r"kernel k wrote outside its argument 1 \('scratch'\), 0 bytes after its end"
    with pytest.raises(Error, match=message):
        simulate(exe.program, {0: x}, {}, checked=False)
    before = FLAVOURS[target].replace("%i = zext nneg i32 %id to i64", "%i = sub i64 -1, 3")
    before = before.replace("%wide = zext nneg i32 %id to i64", "%wide = sub i64 -1, 3")
    with pytest.raises(Error, match="16 bytes before the start of its argument 0"):
        executable(target, before).simulate(x)
    with pytest.raises(Error, match=r"wrote outside its argument 1.*bytes before its start"):
        simulate(executable(target, before).program, {0: x}, {}, checked=False)


def test_a_race_shows_in_the_other_order():
    text = """
define ptx_kernel void @k(ptr %x, ptr %y) {
  %t = call i32 @llvm.nvvm.read.ptx.sreg.tid.x()
  %v = uitofp i32 %t to float
  store float %v, ptr %y
  ret void
}
declare i32 @llvm.nvvm.read.ptx.sreg.tid.x()
"""
    exe, x = executable("cuda:sm_80", text), np.zeros(1000, "f4")
    assert exe.simulate(x)[0] != exe.simulate(x, reverse=True)[0]


REFUSED = [
    ("call void @llvm.nvvm.barrier.cluster.wait()", "the intrinsic nvvm.barrier.cluster.wait"),
    ("call void @llvm.amdgcn.s.sendmsg(i32 1, i32 0)", "the intrinsic amdgcn.s.sendmsg"),
    ('call void asm sideeffect "nop", ""()', "inline assembly"),
    ("store float 0.0, ptr addrspace(9) null", r"memory of addrspace\(9\)"),
]


@pytest.mark.parametrize("line, message", REFUSED)
def test_what_is_not_simulated_is_named(line, message):
    text = f"define ptx_kernel void @k(ptr %x, ptr %y) {{\n  {line}\n  ret void\n}}\n"
    with pytest.raises(TargetError, match=rf"kernel k: .*{message}"):
        executable("cuda:sm_80", text).simulate(np.zeros(1000, "f4"))


@pytest.mark.parametrize("target", FLAVOURS)
def test_launches_are_counted(target):
    exe = executable(target, FLAVOURS[target])
    first, second = exe.count(np.zeros(1000, "f4"))
    wave, unit = (64, 64) if target == "hip:gfx942" else (32, 32)
    for counts in (first, second):
        assert (counts.kernel, counts.threads) == ("k", 1024)
        assert counts.global_store.requests == -(-1000 // wave)
        assert counts.global_store.bytes == counts.global_load.bytes == 4000
        assert counts.global_store.sectors == counts.global_store.ideal == -(-4000 // unit)
        assert counts.shared_load.requests == 0
    results, counts = simulate_with_counts(exe.program, {0: np.zeros(1000, "f4")}, {})
    assert results[0].shape == (1000,) and len(counts) == 2


def test_a_program_for_a_cpu_is_not_counted():
    exe = dd.compile(lambda x: x + 1, dd.spec((4,)))
    with pytest.raises(TargetError, match="count: a program for a CPU has no warps"):
        exe.count(np.zeros(4, "f4"))


def test_broken_kernels_are_errors():
    x = np.zeros(1000, "f4")
    body = "{\n  ret void\n}\n"
    outside = f"define ptx_kernel void @k(ptr %x, ptr %y) {body}declare float @__nv_expf(float)\n"
    for text, error, message in [
        (outside, TargetError, "the function __nv_expf is not in its module"),
        (
            f"define ptx_kernel void @other() {body}",
            TargetError,
            "defines no function of that name",
        ),
        (f"define ptx_kernel void @k(ptr %x) {body}", TargetError, "expected 2 pointers"),
        (f"define ptx_kernel void @k(ptr %x, i64 %y) {body}", TargetError, r"has \(ptr, i64\)"),
        ("define ptx_kernel void @k(ptr %x, ptr %y) { nonsense }", CompileError, "nonsense"),
    ]:
        with pytest.raises(error, match=message):
            executable("cuda:sm_80", text).simulate(x)
    with pytest.raises(Error, match="a block of 2048 threads"):
        executable("cuda:sm_80", NVPTX, block=2048).simulate(x)
