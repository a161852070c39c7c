"""Units that move data: ldmatrix, cp.async, mbarriers, TMA, buffers; and rarer barriers."""

import platform

import numpy as np
import pytest
from dodeca.dialect.errors import Error, TargetError
from dodeca.runtime import simt
from dodeca.runtime.async_copies import tensor_map
from dodeca.runtime.fibers import scheduler
from simt_hopper import INIT, LOOP, TARGET, WAIT
from simt_kernels import kernel, run, text_for_chip
from simt_mutants import BARRIER, Lines, shared
from test_simt_checks import CUDA, HIP, branch, complaint

RNG = np.random.default_rng(9)
RDNA4 = "hip:gfx1201"


def launched(target, f, arrays, threads, before="", **more):
    ir = kernel(target, f.text, len(arrays), before)
    assert text_for_chip(ir, target)
    for reverse in (True, False):
        counts = run(ir, target, arrays, threads=threads, reverse=reverse, **more)
    return counts


# --- 8x8 matrices of shared memory ---------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("turned", [False, True])
def test_ldmatrix_and_stmatrix(count, turned):
    """The PTX ISA: lane i has elements 2 (i % 4) and the next of row i / 4 of each matrix, and row
    r of matrix m is at the address in lane 8 m + r."""
    f = Lines()
    kinds = "{ " + ", ".join(["i32"] * count) + " }" if count > 1 else "i32"
    trans = ".trans" if turned else ""
    f.store("<4 x i32>", f.load("<4 x i32>", "%p0", f.index(("%t", 16)), of="i8"), "@s",
            f.index(("%t", 16)), 3, of="i8")  # fmt: skip
    f.do("call void @llvm.nvvm.bar.warp.sync(i32 -1)")
    row = f.load("i32", "%p1", "%t")
    at = f.at("i8", "@s", f.index((row, 16)), 3)
    name = f"llvm.nvvm.ldmatrix.sync.aligned.m8n8.x{count}{trans}.b16.p3"
    loaded = f.let(f"call {kinds} @{name}(ptr addrspace(3) {at})")
    values = [f.let(f"extractvalue {kinds} {loaded}, {i}") if count > 1 else loaded
              for i in range(count)]  # fmt: skip
    for i, value in enumerate(values):
        f.store("i32", value, "%p2", f.index(i * 32, "%t"))
    passed = "".join(f", i32 {value}" for value in values)
    back = f.at("i8", "@d", f.index(("%t", 16)), 3)
    name = f"llvm.nvvm.stmatrix.sync.aligned.m8n8.x{count}{trans}.b16.p3"
    f.do(f"call void @{name}(ptr addrspace(3) {back}{passed})")
    f.do("call void @llvm.nvvm.bar.warp.sync(i32 -1)")
    f.store("<4 x i32>", f.load("<4 x i32>", "@d", f.index(("%t", 16)), 3, of="i8"), "%p3",
            f.index(("%t", 16)), of="i8")  # fmt: skip
    x = RNG.integers(0, 2**16, (32, 8), np.uint16)
    rows = RNG.permutation(32).astype(np.int32)
    out, stored = np.zeros((count, 32, 2), np.uint16), np.zeros((32, 8), np.uint16)
    counts = launched("cuda:sm_90", f, [x, rows, out, stored], 32,
                      shared("s", 512, "i8") + shared("d", 512, "i8"))  # fmt: skip
    for m in range(count):
        tile = x[rows[8 * m : 8 * m + 8]]
        full = tile.T if turned else tile
        np.testing.assert_array_equal(out[m], full.reshape(32, 2))
        np.testing.assert_array_equal(stored[8 * m : 8 * m + 8], tile)
    assert counts is not None


# --- cp.async -----------------------------------------------------------------------------------


@pytest.mark.parametrize("how, size", [("ca", 4), ("ca", 8), ("ca", 16), ("cg", 16)])
@pytest.mark.parametrize("short", [False, True])
def test_cp_async(how, size, short):
    f = Lines()
    to = f.at("i8", "@s", f.index(("%t", size)), 3)
    of = f.at("i8", "%p0", f.index(("%t", size)))
    given = f.let("and i32 %t, 3") if short else ""
    name = f"llvm.nvvm.cp.async.{how}.shared.global.{size}{'.s' if short else ''}"
    passed = f", i32 {given}" if short else ""
    f.do(f"call void @{name}(ptr addrspace(3) {to}, ptr addrspace(1) {of}{passed})")
    for wait in ("", "call void @llvm.nvvm.cp.async.wait.all()"):
        f.do(wait)
        base = "%p1" if not wait else "%p2"
        for word in range(size // 4):
            value = f.load("i32", "@s", f.index(("%t", size), 4 * word), 3, of="i8")
            f.store("i32", value, base, f.index(("%t", size), 4 * word), of="i8")
    x = RNG.integers(0, 256, (32, size), np.uint8)
    before, after = np.zeros_like(x), np.zeros_like(x)
    launched(CUDA, f, [x, before, after], 32, shared("s", 512, "i8"))
    wanted = x.copy()
    if short:  # the rest is zero
        wanted[np.arange(size) >= (np.arange(32) & 3)[:, None]] = 0
    np.testing.assert_array_equal(before, 0xFF)
    np.testing.assert_array_equal(after, wanted)


def test_a_copy_from_outside_is_not_made():
    f = Lines()
    of = f.at("i8", "%p0", f.index(("%t", 16)))
    f.do("call void @llvm.nvvm.cp.async.cg.shared.global.16(ptr addrspace(3) @s, "
         f"ptr addrspace(1) {of})")  # fmt: skip
    said = complaint(kernel(CUDA, f.text, 1, shared("s", 4)), [np.zeros(8, "f4")], threads=3)
    assert "thread (2, 0, 0) reads 16 bytes 0 bytes after the end of argument 0" in said


# --- mbarriers and what reports to them ----------------------------------------------------------


def test_copies_report_to_an_mbarrier():
    """Each thread's cp.async arrives for it; then the whole block reads what others have copied."""
    f = Lines()
    f.do(branch("icmp eq i32 %t, 0", INIT.format("@bar", 64)).strip())
    f.do(BARRIER["cuda"])
    to, of = f.at("float", "@s", "%t", 3), f.at("float", "%p0", "%t")
    f.do("call void @llvm.nvvm.cp.async.ca.shared.global.4(ptr addrspace(3) "
         f"{to}, ptr addrspace(1) {of})")  # fmt: skip
    arrive = "call void @llvm.nvvm.cp.async.mbarrier.arrive.noinc.shared(ptr addrspace(3) @bar)"
    wait = f"%ok = call i1 {WAIT}(ptr addrspace(3) @bar, i32 0)"
    f.do(arrive)
    f.do(wait)
    f.store("float", f.load("float", "@s", f.let("xor i32 %t, 63"), 3), "%p1", "%t")
    before = shared("s", 64) + shared("bar", 1, "i64")
    x, out = RNG.standard_normal(64, "f4"), np.zeros(64, np.float32)
    launched("cuda:sm_90", f, [x, out], 64, before)
    np.testing.assert_array_equal(out, x[::-1])
    ir = kernel("cuda:sm_90", f.text, 2, before)
    out[:] = 0
    with pytest.raises(Error, match="nobody waited for is still on its way"):
        run(ir.replace(wait, ""), "cuda:sm_90", [x, out], threads=64)
    with pytest.raises(Error, match="deadlock: threads 0-63 wait at"):
        run(ir.replace("i32 64)", "i32 65)"), "cuda:sm_90", [x, out], threads=64)
    with pytest.raises(Error, match=r"no thread has made \(mbarrier.init\)"):
        run(ir.replace(INIT.format("@bar", 64), ""), "cuda:sm_90", [x, out], threads=64)


def test_a_barrier_that_is_not_made_for_all_to_see():
    f = Lines()
    f.do(branch("icmp eq i32 %t, 0", INIT.format("@bar", 64)).strip())
    f.let("call i64 @llvm.nvvm.mbarrier.arrive.shared(ptr addrspace(3) @bar)")
    ir = kernel("cuda:sm_90", f.text, 0, shared("bar", 1, "i64"))
    assert "a race on byte 0 of shared memory" in complaint(ir, [], "cuda:sm_90", threads=64)


def test_phases_by_their_state():
    """arrive gives the phase, test_wait takes it: two phases of one barrier."""
    f = Lines()
    f.do(branch("icmp eq i32 %t, 0", INIT.format("@bar", 64)).strip())
    f.do(BARRIER["cuda"])
    for turn in range(2):
        f.store("i32", f.index("%t", 100 * turn), f"@s{turn}", "%t", 3)
        state = f.let("call i64 @llvm.nvvm.mbarrier.arrive.shared(ptr addrspace(3) @bar)")
        f.let(f"call i1 @llvm.nvvm.mbarrier.test.wait.shared(ptr addrspace(3) @bar, i64 {state})")
        value = f.load("i32", f"@s{turn}", f.let("xor i32 %t, 63"), 3)
        f.store("i32", value, "%p0", f.index("%t", 64 * turn))
    before = shared("s0", 64) + shared("s1", 64) + shared("bar", 1, "i64")
    out = np.zeros((2, 64), np.int32)
    launched("cuda:sm_80", f, [out], 64, before)
    np.testing.assert_array_equal(out[0], np.arange(64)[::-1])
    np.testing.assert_array_equal(out[1], np.arange(100, 164)[::-1])


def stored(wait):
    """A tile in shared memory goes out by TMA, and another one takes its place."""
    f = Lines()
    generic = f.let("addrspacecast ptr addrspace(1) %p0 to ptr")
    for turn in range(2):
        f.store("float", f.let(f"uitofp i32 {f.index('%t', 1000 * turn)} to float"), "@s", "%t", 3)
        f.do(BARRIER["cuda"])
        f.do(branch(
            "icmp eq i32 %t, 0",
            "call void @llvm.nvvm.cp.async.bulk.tensor.s2g.tile.2d(ptr addrspace(3) @s, "
            f"ptr {generic}, i32 0, i32 {4 * turn}, i64 0, i1 false)\n"
            "  call void @llvm.nvvm.cp.async.bulk.commit.group()\n"
            f"  {wait if not turn else 'call void @llvm.nvvm.cp.async.bulk.wait.group(i32 0)'}",
        ).replace("then", f"then{turn}").replace("else", f"else{turn}").replace("end", f"end{turn}")
         .replace("%q", f"%q{turn}").strip())  # fmt: skip
        if not turn:
            f.do(BARRIER["cuda"])
    return kernel(TARGET, f.text, 2, shared("s", 64).replace("align 128", "align 1024"))


def test_a_tile_goes_out_by_tma():
    out = np.full((7, 16), -1, np.float32)  # the last row of the second tile hangs over
    arrays = [tensor_map(out, (4, 16)), out]
    wait = "call void @llvm.nvvm.cp.async.bulk.wait.group.read(i32 0)"
    ir = stored(wait)
    assert text_for_chip(ir, TARGET)
    for reverse in (True, False):
        out[:] = -1
        run(ir, TARGET, arrays, threads=64, reverse=reverse)
        wanted = np.concatenate([np.arange(64), 1000 + np.arange(48)]).reshape(7, 16)
        np.testing.assert_array_equal(out, wanted)
    try:  # without the wait, the second tile takes the first one's place
        run(stored(""), TARGET, arrays, threads=64)
    except Error as error:
        assert "a race on byte" in str(error)
    else:
        assert not np.array_equal(out, wanted)


def test_what_nobody_waited_for_is_reported():
    f = Lines()
    copy = "call void @llvm.nvvm.cp.async.bulk.shared.cta.to.global("
    copy += "ptr addrspace(1) %p0, ptr addrspace(3) @s, i32 16, i64 0, i1 false)"
    f.do(branch("icmp eq i32 %t, 0", copy).strip())
    ir = kernel(TARGET, f.text, 1, shared("s", 4))
    said = complaint(ir, [np.zeros(4, np.float32)], TARGET)
    assert "thread 0 has left, and a copy that it began and nobody waited for" in said


def test_tensor_maps_are_checked():
    x = np.zeros((8, 24), np.float32)
    for box, swizzle in (((8,), 0), ((8, 5), 0), ((8, 24), 64), ((8, 8), 100)):
        with pytest.raises(Error, match="tensor map:"):
            tensor_map(x, box, swizzle)
    f = Lines()
    f.do(branch("icmp eq i32 %t, 0", INIT.format("@bar", 1)).strip())
    generic = f.let("addrspacecast ptr addrspace(1) %p0 to ptr")
    to = f.let("addrspacecast ptr addrspace(3) @s to ptr addrspace(7)")
    f.do("call void @llvm.nvvm.cp.async.bulk.tensor.g2s.tile.2d("
         f"ptr addrspace(7) {to}, ptr addrspace(3) @bar, ptr {generic}, i32 0, i32 0, i16 0, "
         "i64 0, i1 false, i1 false, i32 0)")  # fmt: skip
    before = shared("s", 64).replace("align 128", "align 1024") + shared("bar", 1, "i64")
    ir = kernel(TARGET, f.text, 1, before)
    assert "a pointer that is not to a tensor map" in complaint(
        ir, [np.zeros(128, np.uint8)], TARGET, threads=1
    )
    said = complaint(ir, [tensor_map(x, (8, 8), 32)], TARGET, threads=1)
    assert "reads 4 bytes" in said or "writes 4 bytes" in said  # x is no buffer of the launch


# --- barriers in other forms ---------------------------------------------------------------------


def halves(first, second):
    f = Lines()
    f.store("i32", "%t", "@s", "%t", 3)
    f.do(first)
    f.store("i32", f.index("%t", 1000), "@s", f.index("%t", 128), 3)  # between the halves
    f.do(second)
    f.store("i32", f.load("i32", "@s", f.let("xor i32 %t, 127"), 3), "%p0", "%t")
    return kernel(RDNA4, f.text, 1, shared("s", 256))


def test_barriers_in_two_halves():
    signal = "call void @llvm.amdgcn.s.barrier.signal(i32 -1)"
    wait = "call void @llvm.amdgcn.s.barrier.wait(i16 -1)"
    out = np.zeros(128, np.int32)
    ir = halves(signal, wait)
    assert text_for_chip(ir, RDNA4)
    for reverse in (True, False):
        run(ir, RDNA4, [out], threads=128, reverse=reverse)
        np.testing.assert_array_equal(out, np.arange(128)[::-1])
    for broken, message in [
        (halves(signal, ""), "a race on byte"),
        (halves("", wait), "waits for a barrier without a signal"),
        (halves(wait, signal), "waits for a barrier without a signal"),
    ]:
        assert message in complaint(broken, [out], RDNA4, threads=128)
    # what is written between the halves is not ordered by them
    between = ir.replace("xor i32 %t, 127", "xor i32 %t, 255")
    assert "a race on byte" in complaint(between, [out], RDNA4, threads=128)


@pytest.mark.parametrize("how", ["and", "or", "popc"])
def test_barriers_that_reduce(how):
    f = Lines()
    bit = f.let("icmp ult i32 %t, 70")
    f.store("i32", "%t", "@s", "%t", 3)
    kind = "i32" if how == "popc" else "i1"
    name = f"llvm.nvvm.barrier.cta.red.{how}.aligned.all"
    value = f.let(f"call {kind} @{name}(i32 0, i1 {bit})")
    if kind == "i1":
        value = f.let(f"zext i1 {value} to i32")
    f.load("i32", "@s", f.let("xor i32 %t, 64"), 3)  # it is a barrier too
    f.store("i32", value, "%p0", "%t")
    out = np.zeros(128, np.int32)
    launched(CUDA, f, [out], 128, shared("s", 128))
    np.testing.assert_array_equal(out, {"and": 0, "or": 1, "popc": 70}[how])


# --- AMD's buffers ------------------------------------------------------------------------------


@pytest.mark.parametrize("target", [HIP, RDNA4])
def test_buffer_resources_have_their_own_bounds(target):
    f = Lines()
    rsrc = "@llvm.amdgcn.make.buffer.rsrc.p8.p1"
    a = f.let(f"call ptr addrspace(8) {rsrc}(ptr addrspace(1) %p0, i16 0, i64 SIZE, i32 159744)")
    b = f.let(f"call ptr addrspace(8) {rsrc}(ptr addrspace(1) %p1, i16 0, i64 SIZE, i32 159744)")
    at = f.let("mul i32 %t, 16")
    value = f.let("call <4 x float> @llvm.amdgcn.raw.ptr.buffer.load.v4f32("
                  f"ptr addrspace(8) {a}, i32 {at}, i32 4, i32 0)")  # fmt: skip
    f.do("call void @llvm.amdgcn.raw.ptr.buffer.store.v4f32("
         f"<4 x float> {value}, ptr addrspace(8) {b}, i32 {at}, i32 0, i32 0)")  # fmt: skip
    x, y = RNG.standard_normal(100, "f4"), np.full(100, -1, np.float32)
    ir = kernel(target, f.text.replace("SIZE", "360"), 2)
    assert text_for_chip(ir, target)
    run(ir, target, [x, y], threads=64)
    wanted = np.full(100, -1, np.float32)
    wanted[:90] = [*x[1:90], 0]
    np.testing.assert_array_equal(y, wanted)
    large = kernel(target, f.text.replace("SIZE", "404"), 2)
    assert "over the end of argument 0" in complaint(large, [x, y], target, threads=64)


def test_loads_into_lds():
    f = Lines()
    of = f.at("i32", "%p0", f.let("xor i32 %t, 5"))
    wave = f.let("and i32 %t, 64")
    to = f.at("i32", "@s", wave, 3)
    f.do("call void @llvm.amdgcn.global.load.lds(ptr addrspace(1) "
         f"{of}, ptr addrspace(3) {to}, i32 4, i32 0, i32 0)")  # fmt: skip
    f.do("call void @llvm.amdgcn.s.waitcnt(i32 3952)")
    f.do(BARRIER["hip"])
    f.store("i32", f.load("i32", "@s", f.let("xor i32 %t, 127"), 3), "%p1", "%t")
    x, out = RNG.integers(0, 1000, 128, np.int32), np.zeros(128, np.int32)
    launched(HIP, f, [x, out], 128, shared("s", 128))
    np.testing.assert_array_equal(out, x[np.arange(128) ^ 127 ^ 5])
    ir = kernel(HIP, f.text.replace(BARRIER["hip"], ""), 2, shared("s", 128))
    assert "a race on byte" in complaint(ir, [x, out], HIP, threads=128)


# --- the machine --------------------------------------------------------------------------------


def test_large_frames_have_room():
    f = Lines()
    f.do("%big = alloca [50000 x float], align 16")
    f.do("%at = getelementptr float, ptr %big, i32 49999")
    f.do("store volatile float 3.0, ptr %big, align 4")
    f.do("store volatile float 4.0, ptr %at, align 4")
    f.do(BARRIER["cuda"])
    f.do("%a = load volatile float, ptr %big, align 4")
    f.do("%c = load volatile float, ptr %at, align 4")
    f.store("float", f.let("fadd float %a, %c"), "%p0", "%t")
    out = np.zeros(64, np.float32)
    run(kernel(CUDA, f.text, 1), CUDA, [out], threads=64)
    np.testing.assert_array_equal(out, 7)


def test_another_cpu_is_refused(monkeypatch):
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    with pytest.raises(TargetError, match="need an x86-64 CPU; this one is aarch64"):
        scheduler()


def test_inline_assembly_that_is_not_known_is_named():
    text = '  call void asm sideeffect "griddepcontrol.wait;", ""()'
    with pytest.raises(TargetError, match=r"inline assembly is not simulated: .*griddepcontrol"):
        run(kernel(TARGET, text, 0), TARGET, [])
    run(kernel(TARGET, '  call void asm sideeffect "fence.proxy.async;", ""()', 0), TARGET, [])
    run(kernel(HIP, '  call void asm sideeffect "s_waitcnt vmcnt(0)", ""()', 0), HIP, [])


def test_barriers_in_inline_assembly():
    """amdgpu.lds_barrier for older chips; an mbarrier's address as 32 bits."""
    f = Lines()
    f.store("i32", "%t", "@s", "%t", 3)
    f.do(
        r'call void asm sideeffect ";;;WARNING: BREAKS DEBUG WATCHES\0As_waitcnt lgkmcnt(0)\0A'
        r's_barrier", ""()'
    )
    f.store("i32", f.load("i32", "@s", f.let("xor i32 %t, 127"), 3), "%p0", "%t")
    out = np.zeros(128, np.int32)
    launched(HIP, f, [out], 128, shared("s", 128))
    np.testing.assert_array_equal(out, np.arange(128)[::-1])
    f = Lines()
    f.do(branch("icmp eq i32 %t, 0", INIT.format("@bar", 64)).strip())
    f.do(BARRIER["cuda"])
    f.store("i32", "%t", "@s", "%t", 3)
    f.let("call i64 @llvm.nvvm.mbarrier.arrive.shared(ptr addrspace(3) @bar)")
    address = f.let("ptrtoint ptr addrspace(3) @bar to i32")
    loop = (LOOP % ("@bar", 0)).replace("ptr addrspace(3) @bar", f"i32 {address}")
    f.do(loop)
    f.store("i32", f.load("i32", "@s", f.let("xor i32 %t, 63"), 3), "%p0", "%t")
    launched(TARGET, f, [out], 64, shared("s", 64) + shared("bar", 1, "i64"))
    np.testing.assert_array_equal(out[:64], np.arange(64)[::-1])


def test_a_launch_that_failed_leaves_nothing_behind():
    f = Lines()
    f.do(branch("icmp ult i32 %t, 32", BARRIER["cuda"]).strip())
    for _ in range(2):
        with pytest.raises(Error, match="deadlock"):
            run(kernel(CUDA, f.text, 0), CUDA, [], threads=64)
    assert simt.device_kernel.cache_info().hits
