"""What the SIMT executor reports: accesses out of bounds, races, deadlocks; and what it counts."""

import numpy as np
import pytest
from dodeca.dialect.errors import Error, TargetError
from dodeca.runtime import simt
from simt_kernels import kernel, run, text_for_chip
from simt_mutants import BARRIER, Lines, shared

CUDA, HIP, RDNA = "cuda:sm_80", "hip:gfx942", "hip:gfx1100"


def complaint(ir, arrays, target=CUDA, **more):
    assert text_for_chip(ir, target)
    with pytest.raises(Error) as found:
        run(ir, target, arrays, **more)
    return str(found.value)


# --- bounds -------------------------------------------------------------------------------------


@pytest.mark.parametrize("reverse", [False, True])
def test_an_access_outside_of_a_buffer_is_not_made(reverse):
    f = Lines()
    f.store("float", "1.0", "%p0", f.index("%t", ("%b", 32)))
    out = np.zeros(41, np.float32)
    said = complaint(kernel(CUDA, f.text, 1), [out[:40]], blocks=2, reverse=reverse)
    first = (31, 92) if reverse else (8, 0)
    assert f"block (1, 0, 0), thread ({first[0]}, 0, 0) writes 4 bytes {first[1]} bytes " in said
    assert "after the end of argument 0, at `store float 1.0" in said
    assert out[40] == 0


def test_an_access_that_begins_inside_and_one_before_the_start():
    f = Lines()
    value = f.load("<4 x float>", "%p0", "%t", of="i8", align=1)
    f.do(f"store <4 x float> {value}, ptr addrspace(1) {f.at('i8', '%p1', '%t')}, align 1")
    x, y = np.zeros(8, np.float32), np.zeros(1024, np.float32)
    said = complaint(kernel(CUDA, f.text, 2), [x, y], threads=18)
    assert "thread (17, 0, 0) reads 16 bytes over the end of argument 0 (32 bytes), from 17" in said
    f = Lines()
    f.store("i8", "0", "%p0", f.let("sub i32 -3, %t"))
    said = complaint(kernel(CUDA, f.text, 1), [y])
    assert "writes 1 bytes 3 bytes before the start of argument 0" in said


def test_shared_memory_has_bounds_and_nothing_in_it_at_the_start():
    f = Lines()
    f.store("float", f.load("float", "@s", "%t", 3), "%p0", "%t")
    ir = kernel(CUDA, f.text, 1, shared("s", 32) + shared("other", 1024))
    out = np.zeros(64, np.float32)
    run(ir, CUDA, [out], threads=32)
    assert np.isnan(out[:32]).all()
    assert "reads 4 bytes 0 bytes after the end of shared memory" in complaint(
        ir, [out], threads=33
    )


def test_memcpy_memset_atomics_and_constants_are_checked():
    copy = "  call void @llvm.memcpy.p1.p1.i64("
    copy += "ptr addrspace(1) %p1, ptr addrspace(1) %p0, i64 36, i1 0)"
    x = np.zeros(8, np.float32)
    said = complaint(kernel(CUDA, copy, 2), [x, np.zeros(9, "f4")])
    assert "reads 36 bytes over the end of argument 0" in said
    add = "  %q = getelementptr i32, ptr addrspace(1) %p0, i32 8\n"
    add += "  %o = atomicrmw add ptr addrspace(1) %q, i32 1 monotonic, align 4"
    assert "accesses 4 bytes 0 bytes after" in complaint(kernel(CUDA, add, 1), [x])
    table = "@c = internal addrspace(4) constant [4 x i32] [i32 1, i32 2, i32 3, i32 4]\n"
    f = Lines()
    f.store("i32", f.load("i32", "@c", "%t", 4), "%p0", "%t")
    out = np.zeros(8, np.int32)
    run(kernel(CUDA, f.text, 1, table), CUDA, [out], threads=4)
    np.testing.assert_array_equal(out, [1, 2, 3, 4, 0, 0, 0, 0])
    assert "thread (4, 0, 0) reads 4 bytes" in complaint(
        kernel(CUDA, f.text, 1, table), [out], threads=5
    )


def test_the_source_line_is_named():
    ir = kernel(CUDA, "  store float 1.0, ptr addrspace(1) %p0, align 4, !dbg !6", 1)
    ir = ir.replace("@k(ptr addrspace(1) %p0) {", "@k(ptr addrspace(1) %p0) !dbg !3 {")
    ir += """
!llvm.dbg.cu = !{!0}
!llvm.module.flags = !{!2}
!0 = distinct !DICompileUnit(language: DW_LANG_C, file: !1, producer: "dodeca", emissionKind: 2)
!1 = !DIFile(filename: "model.py", directory: "/")
!2 = !{i32 2, !"Debug Info Version", i32 3}
!3 = distinct !DISubprogram(name: "k", scope: !1, file: !1, line: 1, type: !4, spFlags: 8, unit: !0)
!4 = !DISubroutineType(types: !5)
!5 = !{}
!6 = !DILocation(line: 70, column: 3, scope: !3)
"""
    said = complaint(ir, [np.zeros(0, np.float32)])
    assert "at `store float 1.000000e+00, ptr %p0, align 4` (model.py:70)" in said


def test_too_much_memory_and_too_many_threads():
    f = Lines()
    f.store("i8", "0", "@s", "%t", 3)
    with pytest.raises(Error, match="300000 bytes of shared memory; at most 166912 on cuda:sm_80"):
        run(kernel(CUDA, f.text, 0, shared("s", 300000, "i8")), CUDA, [])
    with pytest.raises(Error, match="a block of 2048 threads"):
        run(kernel(CUDA, "", 0), CUDA, [], threads=(32, 32, 2))


# --- coordinates --------------------------------------------------------------------------------

AXES = {
    CUDA: ("nvvm.read.ptx.sreg.tid", "nvvm.read.ptx.sreg.ctaid"),
    HIP: ("amdgcn.workitem.id", "amdgcn.workgroup.id"),
}


@pytest.mark.parametrize("target", AXES)
@pytest.mark.parametrize("barrier", [False, True])
def test_threads_and_blocks_in_three_dimensions(target, barrier):
    f = Lines()
    thread, block = AXES[target]
    x, y, z = (f.let(f"call i32 @llvm.{thread}.{axis}()") for axis in "xyz")
    u, v, w = (f.let(f"call i32 @llvm.{block}.{axis}()") for axis in "xyz")
    if barrier:
        f.do(BARRIER[target.partition(":")[0]])
    code = f.index(x, (y, 10), (z, 100), (u, 1000), (v, 10000), (w, 100000))
    place = f.index(x, (y, 4), (z, 12), (u, 24), (v, 24 * 3), (w, 24 * 6))
    f.store("i32", code, "%p0", place)
    ir, out = kernel(target, f.text, 1), np.zeros((2, 2, 3, 2, 3, 4), np.int32)
    assert text_for_chip(ir, target)
    run(ir, target, [out], blocks=(3, 2, 2), threads=(4, 3, 2))
    powers = 10 ** np.arange(5, -1, -1).reshape(6, 1, 1, 1, 1, 1, 1)
    np.testing.assert_array_equal(out, (np.indices(out.shape) * powers).sum(0))


def test_dynamic_shared_memory():
    f = Lines()
    f.store("i32", "%t", "@dynamic", "%t", 3)
    f.do(BARRIER["cuda"])
    f.store("i32", f.load("i32", "@dynamic", f.let("xor i32 %t, 63"), 3), "%p0", "%t")
    before = "@dynamic = external addrspace(3) global [0 x i8], align 16\n" + shared("s", 5)
    ir, out = kernel(CUDA, f.text, 1, before), np.zeros(64, np.int32)
    run(ir, CUDA, [out], threads=64, shared_bytes=256)
    np.testing.assert_array_equal(out, np.arange(63, -1, -1))
    said = complaint(ir, [out], threads=64, shared_bytes=252)
    assert "thread (63, 0, 0) writes 4 bytes 0 bytes after the end of shared memory" in said


# --- races --------------------------------------------------------------------------------------


def racing(target, write, between, read):
    """Each thread writes a word (or more) of @s, then reads another's."""
    f = Lines()
    f.do(write)
    f.do(between)
    f.do(read)
    return kernel(target, f.text, 0, shared("s", 256))


OWN = "%a = getelementptr i32, ptr addrspace(3) @s, i32 %t\n  store i32 1, ptr addrspace(3) %a"
NEXT = (
    "%x = xor i32 %t, 1\n  %c = getelementptr i32, ptr addrspace(3) @s, i32 %x\n"
    "  %v = load i32, ptr addrspace(3) %c"
)
FAR = NEXT.replace("xor i32 %t, 1", "xor i32 %t, 33")
BYTE = "%a = getelementptr i8, ptr addrspace(3) @s, i32 %t\n  store i8 1, ptr addrspace(3) %a"
ATOMIC = "%o = atomicrmw add ptr addrspace(3) @s, i32 1 monotonic"
SYNC = "call void @llvm.nvvm.bar.warp.sync(i32 -1)"
SHUFFLE = "%z = call i32 @llvm.nvvm.shfl.sync.bfly.i32(i32 -1, i32 %t, i32 1, i32 31)"


@pytest.mark.parametrize(
    "write, between, read, races",
    [
        (OWN, BARRIER["cuda"], FAR, False),
        (OWN, "", FAR, True),
        (OWN, SYNC, NEXT, False),  # neighbours in one warp
        (OWN, SYNC, FAR, True),  # another warp
        (OWN, SHUFFLE, NEXT, True),  # shuffles order no memory
        (OWN, "call void @llvm.nvvm.bar.warp.sync(i32 -1)\n  " + BARRIER["cuda"], FAR, False),
        (BYTE, "", "", False),  # four threads in a word, each with a byte of its own
        (BYTE, "", NEXT, True),
        (ATOMIC, "", "", False),
        (ATOMIC, "", "%v = load i32, ptr addrspace(3) @s", True),
        (ATOMIC, BARRIER["cuda"], "%v = load i32, ptr addrspace(3) @s", False),
        ("store i32 1, ptr addrspace(3) @s", "", "", True),
        ("%v = load i32, ptr addrspace(3) @s", "", "", False),
    ],
)
@pytest.mark.parametrize("reverse", [False, True])
def test_races(write, between, read, races, reverse):
    ir = racing(CUDA, write, between, read)
    assert text_for_chip(ir, CUDA)
    if not races:
        run(ir, CUDA, [], threads=64, reverse=reverse)
        return
    said = complaint(ir, [], threads=64, reverse=reverse)
    assert "a race on byte" in said and "nothing orders them" in said


@pytest.mark.parametrize("target", [HIP, RDNA])
def test_races_within_a_wave(target):
    wave = "call void @llvm.amdgcn.wave.barrier()"
    near = racing(target, OWN, wave, NEXT)
    assert text_for_chip(near, target)
    run(near, target, [], threads=128)
    run(near, target, [], threads=128, checked=False)
    assert "a race on byte" in complaint(racing(target, OWN, "", NEXT), [], target, threads=128)
    other = FAR.replace("33", "65")
    assert "a race on byte" in complaint(racing(target, OWN, wave, other), [], target, threads=128)


def test_which_memory_a_pointer_is_to():
    f = Lines()
    cast = f.let("addrspacecast ptr addrspace(3) @s to ptr")
    own = f.let("addrspacecast ptr addrspace(1) %p0 to ptr")
    for i, (kind, pointer) in enumerate(
        [("shared", cast), ("shared", own), ("global", cast), ("global", own)]
    ):
        bit = f.let(f"call i1 @llvm.nvvm.isspacep.{kind}(ptr {pointer})")
        f.store("i32", f.let(f"zext i1 {bit} to i32"), "%p0", i)
    out = np.zeros(4, np.int32)
    run(kernel(CUDA, f.text, 1, shared("s", 4)), CUDA, [out], threads=1)
    np.testing.assert_array_equal(out, [1, 0, 0, 1])


def test_a_race_names_both_sides():
    said = complaint(racing(CUDA, OWN, "", NEXT), [], threads=64)
    assert "thread (0, 0, 0) reads it at `%v = load i32, ptr %c, align 4`" in said
    assert "thread (1, 0, 0) writes it at `store i32 1, ptr %a, align 4`" in said


def test_a_long_log_is_looked_at_in_pieces(monkeypatch):
    monkeypatch.setattr(simt, "_log", lambda: np.zeros(100, simt.ACCESS))
    ir = racing(CUDA, OWN, BARRIER["cuda"], FAR)
    run(ir, CUDA, [], threads=64, blocks=5)
    assert "a race on byte" in complaint(racing(CUDA, OWN, "", FAR), [], threads=64, blocks=5)


# --- barriers -----------------------------------------------------------------------------------


def branch(condition, then, otherwise=""):
    return (
        f"  %q = {condition}\n  br i1 %q, label %then, label %else\nthen:\n  {then}\n"
        f"  br label %end\nelse:\n  {otherwise}\n  br label %end\nend:\n"
    )


@pytest.mark.parametrize("target", [CUDA, HIP, RDNA])
def test_deadlocks_and_divergence(target):
    barrier = BARRIER[target.partition(":")[0]]
    some = branch("icmp ult i32 %t, 64", barrier)
    said = complaint(kernel(target, some, 0), [], target, threads=128)
    assert "block (0, 0, 0): deadlock: threads 0-63 wait at `" in said
    assert "threads 64-127 have left the kernel" in said
    half = branch("icmp ult i32 %t, 16", barrier)
    word = "warp" if target == CUDA else "wave"
    assert f"divergent {word} 0: threads 0-15 wait at" in complaint(
        kernel(target, half, 0), [], target, threads=128
    )
    both = branch("icmp ult i32 %t, 16", barrier, barrier)
    assert f"divergent {word} 0" in complaint(kernel(target, both, 0), [], target, threads=64)
    apart = branch("icmp ult i32 %t, 64", barrier, barrier)  # of different warps: the same barrier
    run(kernel(target, apart, 0), target, [], threads=128)


def test_named_barriers():
    sync = "call void @llvm.nvvm.barrier.cta.sync.aligned.count(i32 {}, i32 {})"
    arrive = "call void @llvm.nvvm.barrier.cta.arrive.aligned.count(i32 {}, i32 {})"
    low = "icmp ult i32 %t, 64"

    def exchanged(first, second):
        """The lower threads write, the upper ones read what they wrote."""
        own = "%a = getelementptr i32, ptr addrspace(3) @s, i32 %t\n"
        own += "  store i32 %t, ptr addrspace(3) %a"
        other = (
            "%x = sub i32 %t, 64\n  %c = getelementptr i32, ptr addrspace(3) @s, i32 %x\n"
            "  %v = load i32, ptr addrspace(3) %c\n"
            "  %d = getelementptr i32, ptr addrspace(1) %p0, i32 %x\n"
            "  store i32 %v, ptr addrspace(1) %d"
        )
        text = branch(low, f"{own}\n  {first}", f"{second}\n  {other}")
        ir = kernel(CUDA, text, 1, shared("s", 64))
        assert text_for_chip(ir, CUDA)
        return ir

    out = np.zeros(64, np.int32)
    for first, second in [
        (sync.format(1, 128), sync.format(1, 128)),
        (arrive.format(3, 128), sync.format(3, 128)),
    ]:
        for reverse in (False, True):
            out[:] = 0
            run(exchanged(first, second), CUDA, [out], threads=128, reverse=reverse)
            np.testing.assert_array_equal(out, np.arange(64))
    for first, second, message in [
        (sync.format(1, 128), sync.format(2, 128), "deadlock: threads 0-63 wait at"),
        (sync.format(1, 64), sync.format(2, 64), "a race on byte"),
        (sync.format(1, 128), arrive.format(1, 128), "a race on byte"),
        (sync.format(1, 128), sync.format(1, 64), "wait at one barrier for 64, 128 threads"),
    ]:
        assert message in complaint(exchanged(first, second), [out], threads=128)


def test_a_barrier_for_threads_that_are_not_together():
    barrier = "call void @llvm.nvvm.barrier.cta.sync.all(i32 0)"
    both = branch("icmp ult i32 %t, 16", barrier, barrier)
    run(kernel(CUDA, both, 0), CUDA, [], threads=64)


def test_a_wait_without_copies_and_too_many_of_them():
    copy = "call void @llvm.nvvm.cp.async.ca.shared.global.4("
    copy += "ptr addrspace(3) @s, ptr addrspace(1) %p0)"
    out = np.zeros(4, np.float32)
    text = "\n".join(["  " + copy] * 65)
    ir = kernel(CUDA, text, 1, shared("s", 4))
    assert "more than 64 asynchronous copies" in complaint(ir, [out], threads=1)


# --- counts -------------------------------------------------------------------------------------


def counted(target, body, arrays, threads=32, before=""):
    ir = kernel(target, body, len(arrays), before)
    assert text_for_chip(ir, target)
    return run(ir, target, arrays, threads=threads, counting=True)


def strided(stride, kind="float", size=4):
    f = Lines()
    f.store("float", "1.0", "%p1", "%t")
    f.load(kind, "%p0", f.index(("%t", stride * size)), of="i8")
    return f.text


def aligned(count):
    raw = np.zeros(count + 32, np.float32)
    return raw[(-raw.ctypes.data % 128) // 4 :][:count]


@pytest.mark.parametrize("stride, sectors", [(1, 4), (2, 8), (8, 32), (0, 1)])
def test_sectors(stride, sectors):
    x, y = aligned(512), aligned(64)
    counts = counted(CUDA, strided(stride), [x, y])
    load, store = counts.global_load, counts.global_store
    assert (load.requests, load.sectors, load.bytes) == (1, sectors, 128)
    assert load.ideal == (4 if stride else 1)
    assert (store.requests, store.sectors, store.ideal, store.extra) == (1, 4, 4, 0)
    counts = counted(HIP, strided(stride), [x, y], 64)  # segments of 64 bytes
    assert counts.global_load.sectors == {1: 4, 2: 8, 8: 32, 0: 1}[stride]


@pytest.mark.parametrize(
    "target, kind, size, stride, cycles",
    [
        (CUDA, "float", 4, 1, 1),
        (CUDA, "float", 4, 2, 2),
        (CUDA, "float", 4, 32, 32),
        (CUDA, "float", 4, 33, 1),
        (CUDA, "float", 4, 0, 1),  # one word for all
        (CUDA, "half", 2, 1, 1),
        (CUDA, "half", 2, 2, 1),
        (CUDA, "<2 x float>", 8, 1, 2),  # by half warps
        (CUDA, "<4 x float>", 16, 1, 4),  # by quarters
        (CUDA, "<4 x float>", 16, 2, 8),
        (HIP, "float", 4, 1, 2),  # 64 lanes
        (HIP, "<4 x float>", 16, 1, 8),
        (HIP, "<4 x float>", 16, 8, 64),
    ],
)
def test_bank_conflicts(target, kind, size, stride, cycles):
    f = Lines()
    f.load(kind, "@s", f.index(("%t", stride * size)), 3, of="i8")
    wave = 64 if target == HIP else 32
    counts = counted(target, f.text, [], wave, shared("s", 64 * 64))
    load = counts.shared_load
    assert (load.requests, load.cycles, load.bytes) == (1, cycles, wave * size)
    assert load.ideal == max(wave * max(size, 4) // 128, 1)


def test_ldmatrix_phases_and_matrix_instructions_are_counted():
    f = Lines()
    four = "{ i32, i32, i32, i32 }"
    name = "llvm.nvvm.ldmatrix.sync.aligned.m8n8.x4.b16.p3"
    for stride in (128, 144):  # all rows in the same banks, or each in others
        at = f.at("i8", "@s", f.index(("%t", stride)), 3)
        f.let(f"call {four} @{name}(ptr addrspace(3) {at})")
    counts = counted(CUDA, f.text, [], 64, shared("s", 64 * 36))
    first, second = counts.sites.values()
    assert (first.requests, first.cycles, first.ideal) == (2, 64, 8)
    assert (second.cycles, second.extra) == (8, 0)
    assert len(counts.sites) == 2
    halves = ", ".join(["<2 x half> zeroinitializer"] * 3 + ["float 0.0"] * 4)
    result = "{ float, float, float, float }"
    text = f"  %r = call {result} @llvm.nvvm.mma.m16n8k8.row.col.f32.f32({halves})"
    assert counted(CUDA, text, [], 96).matrix == {"mma.m16n8k8.f32.f16": 3}


def test_loops_make_requests_of_their_turns():
    f = Lines()
    f.do("br label %loop")
    f.label("loop")
    f.do("%i = phi i32 [ 0, %0 ], [ %next, %loop ]")
    f.load("float", "@s", f.index("%t", ("%i", 32)), 3)
    f.do("%next = add i32 %i, 1")
    f.do("%more = icmp ult i32 %next, 5")
    f.do("br i1 %more, label %loop, label %end")
    f.label("end")
    counts = counted(CUDA, f.text, [], 64, shared("s", 320))
    assert (counts.shared_load.requests, counts.shared_load.cycles) == (10, 10)


def test_an_unknown_intrinsic_is_named():
    text = "  call void @llvm.nvvm.barrier.cluster.arrive()"
    with pytest.raises(TargetError, match=r"kernel k: the intrinsic nvvm.barrier.cluster.arrive"):
        run(kernel("cuda:sm_90", text, 0), "cuda:sm_90", [])


# --- what would end the process ------------------------------------------------------------------


def test_misaligned_accesses_are_reported():
    f = Lines()
    value = f.let(f"load <4 x float>, ptr addrspace(1) {f.at('float', '%p0', '%t')}, align 16")
    f.store("<4 x float>", value, "%p1", f.index(("%t", 16)), of="i8")
    x, y = aligned(64), np.zeros(256, np.float32)
    said = complaint(kernel(CUDA, f.text, 2), [x, y])
    assert "thread (1, 0, 0): an access of 16 bytes at an address that is no multiple of 16" in said
    f = Lines()
    at = f.at("i8", "@s", f.index(("%t", 8)), 3)
    f.let(f"call i32 @llvm.nvvm.ldmatrix.sync.aligned.m8n8.x1.b16.p3(ptr addrspace(3) {at})")
    assert "no multiple of 16" in complaint(kernel(CUDA, f.text, 0, shared("s", 256)), [])


def test_divisions_by_zero_go_on():
    f = Lines()
    for i, how in enumerate(("udiv", "sdiv", "urem", "srem")):
        f.store(
            "i32", f.let(f"{how} i32 100, {f.let('sub i32 %t, 1')}"), "%p0", f.index(i * 4, "%t")
        )
    out = np.zeros((4, 4), np.int32)
    run(kernel(CUDA, f.text, 1), CUDA, [out], threads=4)
    np.testing.assert_array_equal(out[:, 2:], [[100, 50], [100, 50], [0, 0], [0, 0]])


def test_every_block_begins_with_nothing_in_shared_memory():
    f = Lines()
    f.store("float", f.load("float", "@s", 0, 3), "%p0", "%b")
    f.store("float", "1.0", "@s", 0, 3)
    out = np.zeros(3, np.float32)
    run(kernel(CUDA, f.text, 1, shared("s", 4)), CUDA, [out], threads=1, blocks=3)
    assert np.isnan(out).all()


def test_a_thread_that_spins_is_stopped():
    f = Lines()
    f.do("br label %loop")
    f.label("loop")
    value = f.let("load volatile i32, ptr addrspace(1) %p0, align 4")
    f.do(f"br i1 {f.let(f'icmp eq i32 {value}, 1')}, label %end, label %loop")
    f.label("end")
    said = complaint(kernel(CUDA, f.text, 1), [np.zeros(1, np.int32)])
    assert "thread (0, 0, 0): 67108864 accesses without waiting" in said
