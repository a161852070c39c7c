"""Programs on a GPU, against a driver whose memory is the host's: what is called, and when."""

import ctypes
import gc
import subprocess
import sys
import threading
import weakref
from dataclasses import replace
from pathlib import Path

import dodeca as dd
import numpy as np
import pytest
from dodeca.dialect.errors import ArgumentError, DeviceError, TargetError
from dodeca.runtime import gpu, gpu_array, gpu_session
from dodeca.runtime.device_cases import CHECKS
from dodeca.runtime.executable import Executable
from dodeca.runtime.gpu import VENDORS, best_target, device_for
from dodeca.runtime.gpu_array import DeviceArray, on_device
from dodeca.runtime.gpu_runner import GpuRunner
from dodeca.runtime.gpu_timing import BATCH, WARM_UP, time_kernel, time_plan
from dodeca.runtime.memory import scratch
from fake_gpu import FILL, LAUNCH, Foreign, HostDriver

RNG = np.random.default_rng(3)
X = RNG.standard_normal((16, 24)).astype(np.float32)
W = RNG.standard_normal((24, 8)).astype(np.float32)


def two(x, y):
    """Several kernels: a statistic of the whole array, read by all of the rest."""
    z = x @ y
    return z - dd.max(z), dd.sum(x, axis=1)


@pytest.fixture(scope="module")
def exe() -> Executable:
    return dd.compile(two, dd.spec((16, 24)), dd.spec((24, 8)), target="cuda:sm_90")


def wanted(x: np.ndarray, y: np.ndarray) -> list[np.ndarray]:
    z = x @ y
    return [z - z.max(), x.sum(1)]


def check(results, x=X, y=W) -> None:
    for result, expected in zip(results, wanted(x, y), strict=True):
        np.testing.assert_allclose(np.asarray(result), expected, rtol=1e-5, atol=1e-5)


def runner_of(exe: Executable, driver: HostDriver) -> GpuRunner:
    return GpuRunner(exe.program, exe.resident, driver)


# --- numpy arrays -------------------------------------------------------------------------------


def test_arrays_of_the_host_go_and_come_back(exe: Executable) -> None:
    driver = HostDriver(exe.program)
    runner = runner_of(exe, driver)
    check(runner.call([X, W]))
    check(runner.call([X + 1, W - 1]), X + 1, W - 1)
    assert len(driver.named("upload")) == 4 and len(driver.named("download")) == 4


def test_a_call_of_an_executable_goes_through_the_driver_of_its_target(
    exe: Executable, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = HostDriver(exe.program)
    monkeypatch.setattr("dodeca.runtime.gpu_runner.open_driver", lambda target: driver)
    own = Executable(exe.program, {})
    check(own(X, W))
    check(own(X, W))
    assert len(driver.named("load")) == len(exe.plan)
    outs = [np.empty((16, 8), np.float32), np.empty((2, 16), np.float32)[1]]
    assert own(X, W, out=outs)[0] is outs[0]
    check(outs)
    profile = own.profile(X, W, repeats=2)
    assert [one.measured for one in profile.launches] == [pytest.approx(LAUNCH)] * len(own.plan)
    assert str(profile).endswith("medians over 2 repeats, on Fake 0")
    check(profile.result)


def test_the_plan_is_one_graph_that_stays_as_it_is(exe: Executable) -> None:
    driver = HostDriver(exe.program)
    runner = runner_of(exe, driver)
    assert len(exe.plan) > 1
    for _ in range(3):
        runner.call([X, W])
    assert driver.named("new_graph") == [tuple(launch.kernel for launch in exe.plan)]
    assert len(driver.named("replay")) == 3
    assert not driver.named("update") and not driver.named("launch")


@pytest.mark.parametrize("flag", [("DODECA_GRAPHS", "off"), ("DODECA_GPU_CHECK", "1")])
def test_launches_one_by_one(
    exe: Executable, flag: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(*flag)
    driver = HostDriver(exe.program)
    check(runner_of(exe, driver).call([X, W]))
    launched = driver.named("launch")
    assert [(one[0], one[1], one[2]) for one in launched] == [
        (launch.kernel, launch.grid, launch.block) for launch in exe.plan
    ]
    assert not driver.named("new_graph")
    for one, launch in zip(launched, exe.plan, strict=True):
        assert len(one) == 4 + len(launch.arguments)


def test_memory_is_taken_once(exe: Executable) -> None:
    driver = HostDriver(exe.program)
    runner = runner_of(exe, driver)
    runner.call([X, W])
    before = len(driver.named("allocate"))
    for _ in range(3):
        runner.call([X, W])
    assert len(driver.named("allocate")) == before
    assert len(driver.named("new_pinned")) == 2


def test_large_arrays_go_through_small_slots(
    exe: Executable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_session, "SLOT", 1024)  # X has 1536 bytes
    driver = HostDriver(exe.program)
    runner = runner_of(exe, driver)
    for shift in range(3):
        check(runner.call([X + shift, W]), X + shift)
    assert max(size for _, _, size in driver.named("upload")) <= 1024
    assert driver.named("wait_event")


def test_weights_are_uploaded_and_prepared_once() -> None:
    weight = RNG.standard_normal((24, 8)).astype(np.float32)
    other = RNG.standard_normal((8,)).astype(np.float32)
    held = dd.asarray(weight), dd.asarray(other)
    exe = dd.compile(
        lambda x: x @ dd.exp(held[0]) + held[1], dd.spec((16, 24)), target="cuda:sm_90"
    )
    assert exe.program.prepare
    driver = HostDriver(exe.program)
    runner = runner_of(exe, driver)
    prepared = len(driver.named("launch"))
    assert prepared == len(exe.program.prepare)
    uploads = len(driver.named("upload"))
    assert uploads == len(exe.program.weights)
    for x in (X, X + 1):
        (result,) = runner.call([x])
        np.testing.assert_allclose(result, x @ np.exp(weight) + other, rtol=1e-4, atol=1e-4)
    assert len(driver.named("upload")) == uploads + 2
    loads = [name for name, *_ in driver.named("load")]
    assert len(loads) == len(set(loads))


def test_outputs_that_are_inputs_or_weights_or_twice_the_same() -> None:
    held = dd.asarray(W)
    exe = dd.compile(lambda x: (x, held, x + 1, x + 1), dd.spec((16, 24)), target="cuda:sm_90")
    driver = HostDriver(exe.program)
    runner = runner_of(exe, driver)
    on_device = runner.call([Foreign(driver, X, "float32")])
    for results in (runner.call([X]), on_device):
        for result, expected in zip(results, [X, W, X + 1, X + 1], strict=True):
            np.testing.assert_array_equal(np.asarray(result), expected)
    places = {result.memory.address for result in on_device}
    assert len(places) == 4, "results share memory"


def test_scratch_buffers_lie_apart() -> None:
    case = next(case for case in CHECKS if case.name.startswith("several"))
    graph = dd.trace(case.build(dd), *(dd.spec(*one) for one in case.specs))
    exe = dd.compile(graph, target="cuda:sm_90")
    assert len({index for n in exe.plan for index in n.arguments} & scratch(exe.program)) > 1
    arrays = case.arrays()
    results = runner_of(exe, HostDriver(exe.program)).call(arrays)
    for result, expected in zip(results, graph.interpret(*arrays), strict=True):
        np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-4)


# --- arrays on the device -----------------------------------------------------------------------


def test_arrays_on_the_device_are_not_copied(exe: Executable) -> None:
    driver = HostDriver(exe.program)
    runner = runner_of(exe, driver)
    x, y = Foreign(driver, X, "float32"), Foreign(driver, W, "float32")
    results = runner.call([x, y])
    assert all(isinstance(result, DeviceArray) for result in results)
    assert not driver.named("upload") and not driver.named("copy") and not driver.named("download")
    assert not driver.named("wait_stream")
    assert x.streams == [runner.session.stream]
    check(results)


def test_other_arrays_update_only_the_nodes_that_use_them(exe: Executable) -> None:
    driver = HostDriver(exe.program)
    runner = runner_of(exe, driver)
    y = Foreign(driver, W, "float32")
    first = runner.call([Foreign(driver, X, "float32"), y])
    second = runner.call([Foreign(driver, X + 1, "float32"), y])
    check(first)
    check(second, X + 1)
    moved = {exe.program.inputs[0], *exe.program.outputs}
    users = [i for i, n in enumerate(exe.program.plan) if moved & {*n.arguments}]
    assert [number for (number,) in driver.named("update")] == users
    assert len(driver.named("new_graph")) == 1


def test_a_result_is_the_next_argument(exe: Executable) -> None:
    step = dd.compile(lambda x: x * 2, dd.spec((16, 8)), target="cuda:sm_90")
    driver = HostDriver(exe.program, step.program)
    (z, _) = runner_of(exe, driver).call([Foreign(driver, X, "float32"), W])
    again = runner_of(step, driver)
    for _ in range(3):
        (z,) = again.call([z])
    np.testing.assert_allclose(z.numpy(), wanted(X, W)[0] * 8, rtol=1e-5, atol=1e-4)


def test_memory_comes_back_when_the_array_is_gone(exe: Executable) -> None:
    driver = HostDriver(exe.program)
    runner = runner_of(exe, driver)
    x = Foreign(driver, X, "float32")
    runner.call([x, W])
    before = driver.used
    for _ in range(4):
        results = runner.call([x, W])
        assert driver.used > before - 1
        del results
        assert driver.used <= before
    assert driver.named("release")


def test_what_the_device_still_reads_is_held(exe: Executable) -> None:
    driver = HostDriver(exe.program)
    runner = runner_of(exe, driver)
    x = Foreign(driver, X, "float32")
    inner = weakref.ref(x.inner)
    results = runner.call([x, W])
    del x
    gc.collect()
    assert inner() is not None, "an argument may be overwritten while a kernel reads it"
    check(results)  # which waits
    runner.call([X, W])
    assert inner() is None


def test_an_array_that_begins_anywhere_is_copied(exe: Executable) -> None:
    driver = HostDriver(exe.program)
    runner = runner_of(exe, driver)
    check(runner.call([Foreign(driver, X, "float32", offset=4), W]))
    assert len(driver.named("copy")) == 1
    there = Foreign(driver, X, "float32", offset=16)
    capsule = there.inner.__dlpack__()
    tensor = next(one[0] for one in gpu_array._out.values() if one[3] is there.inner).tensor
    tensor.data, tensor.byte_offset = tensor.data - 16, 16
    there.__class__ = type("T", (Foreign,), {"__dlpack__": lambda self, stream: capsule})
    check(runner.call([there, W]))
    assert len(driver.named("copy")) == 1


def test_out_on_the_device(exe: Executable) -> None:
    driver = HostDriver(exe.program)
    runner = runner_of(exe, driver)
    outs = [
        Foreign(driver, np.zeros((16, 8), np.float32), "float32"),
        np.zeros((16,), np.float32),
    ]
    results = runner.call([X, W], out=outs)
    assert results[0] is outs[0] and results[1] is outs[1]
    check([outs[0].inner, outs[1]])


# --- DLPack -------------------------------------------------------------------------------------


@pytest.fixture
def near(exe: Executable) -> tuple[HostDriver, DeviceArray]:
    """A result on a device of which numpy believes that it is the CPU."""
    driver = HostDriver(exe.program, vendor=replace(VENDORS["cuda"], dlpack=1))
    results = runner_of(exe, driver).call([Foreign(driver, X, "float32"), W])
    return driver, results[0]


def test_numpy_reads_our_capsules(near: tuple[HostDriver, DeviceArray]) -> None:
    driver, result = near
    address, expected = result.memory.address, result.numpy()
    taken = np.from_dlpack(result)
    assert taken.shape == (16, 8) and taken.dtype == np.float32
    np.testing.assert_array_equal(taken, expected)
    assert taken.ctypes.data == address
    used = driver.used
    del result
    near = None
    gc.collect()
    assert driver.used == used, "the memory went while numpy has it"


def test_a_capsule_that_is_taken_frees_the_array_once(exe: Executable) -> None:
    driver = HostDriver(exe.program, vendor=replace(VENDORS["cuda"], dlpack=1))
    results = runner_of(exe, driver).call([Foreign(driver, X, "float32"), W])
    out = len(gpu_array._out)
    taken, capsule = np.from_dlpack(results[0]), results[1].__dlpack__()
    assert len(gpu_array._out) == out + 2
    used = driver.used
    del results
    gc.collect()
    assert driver.used == used
    del taken
    assert len(gpu_array._out) == out + 1 and driver.used < used
    del capsule
    assert len(gpu_array._out) == out


def test_what_an_array_says_of_itself(exe: Executable) -> None:
    driver = HostDriver(exe.program)
    result = runner_of(exe, driver).call([Foreign(driver, X, "float32"), W])[0]
    assert result.__dlpack_device__() == (2, 0)
    stream = result.memory.session.stream
    assert result.__cuda_array_interface__ == {
        "shape": (16, 8),
        "typestr": "<f4",
        "data": (result.memory.address, False),
        "strides": None,
        "stream": stream,
        "version": 3,
    }
    assert "Fake 0" in repr(result)
    with pytest.raises(BufferError, match="not on"):
        result.__dlpack__(dl_device=(2, 1))
    with pytest.raises(BufferError, match="cannot have it uncopied"):
        result.__dlpack__(dl_device=(1, 0), copy=False)
    with pytest.raises(BufferError, match="a copy on the device"):
        result.__dlpack__(copy=True)
    with pytest.raises(ValueError, match="without a copy"):
        result.__array__(copy=False)
    hip = HostDriver(exe.program, family="hip", chips=("gfx942",))
    there = Foreign(hip, X, "float32").inner
    assert there.__dlpack_device__() == (10, 0)
    with pytest.raises(AttributeError, match="NVIDIA"):
        there.__cuda_array_interface__  # noqa: B018


def test_a_stream_of_its_own_waits_for_our_work(exe: Executable) -> None:
    driver = HostDriver(exe.program)
    result = runner_of(exe, driver).call([Foreign(driver, X, "float32"), W])[0]
    result.__dlpack__(stream=1)
    result.__dlpack__()
    assert not driver.named("stream_waits"), "the default stream needs no event"
    result.__dlpack__(stream=-1)
    assert not driver.named("stream_waits")
    result.__dlpack__(stream=77)
    assert [stream for stream, _ in driver.named("stream_waits")] == [77]
    assert not driver.named("wait_device")
    del result
    assert driver.named("wait_device"), "the other stream may still read what is freed"


# --- errors -------------------------------------------------------------------------------------


def test_arguments_that_do_not_fit(exe: Executable) -> None:
    driver = HostDriver(exe.program, chips=("sm_90", "sm_90"))
    runner = runner_of(exe, driver)
    with pytest.raises(ArgumentError, match=r"expected 2 \(x, y\) arguments, got 1"):
        runner.call([X])
    with pytest.raises(ArgumentError, match=r"'x'\): expected float32 \(16, 24\), got float32"):
        runner.call([Foreign(driver, W, "float32"), W])
    with pytest.raises(ArgumentError, match=r"got int32 \(16, 24\)"):
        runner.call([Foreign(driver, X, "int32"), W])
    with pytest.raises(ArgumentError, match=r"out: expected 2 arrays, got 1"):
        runner.call([X, W], out=[np.zeros((16, 8), np.float32)])
    with pytest.raises(ArgumentError, match=r"out\[0\]: expected a numpy array or one on"):
        runner.call([X, W], out=[[], []])
    elsewhere = type("There", (), {"__dlpack_device__": lambda self: (2, 1)})()
    with pytest.raises(ArgumentError, match="the array is on device 1, the program on 0"):
        runner.call([elsewhere, W])
    strided = Foreign(driver, X, "float32")
    strided.inner.shape = (24, 16)
    capsule = strided.inner.__dlpack__()
    tensor = next(one[0] for one in gpu_array._out.values() if one[3] is strided.inner)
    tensor.tensor.strides[0], tensor.tensor.strides[1] = 1, 24
    strided.__class__ = type("T", (Foreign,), {"__dlpack__": lambda self, stream: capsule})
    with pytest.raises(ArgumentError, match="is not row-major: make it contiguous"):
        runner.call([strided, W])


def test_a_chip_that_does_not_run_the_code() -> None:
    exe = dd.compile(lambda x: x + 1, dd.spec((4,)), target="cuda:sm_90a")
    message = (
        r"cuda:sm_90a: code for sm_90a does not run on this machine's Fake 0 \(sm_80\); "
        r"compile for 'cuda:sm_80'"
    )
    with pytest.raises(TargetError, match=message):
        runner_of(exe, HostDriver(exe.program, chips=("sm_80",)))
    two = HostDriver(exe.program, chips=("sm_80", "sm_90"))
    assert runner_of(exe, two).session.device == 1


RUNS = [
    ("cuda", "sm_80", "sm_90", True, True),
    ("cuda", "sm_80", "sm_90", False, False),
    ("cuda", "sm_80", "sm_86", False, True),
    ("cuda", "sm_90", "sm_80", True, False),
    ("cuda", "sm_90a", "sm_90", True, True),
    ("cuda", "sm_90a", "sm_100", True, False),
    ("cuda", "sm_100a", "sm_103", True, False),
    ("cuda", "sm_100f", "sm_103", True, True),
    ("cuda", "sm_100f", "sm_120", True, False),
    ("cuda", "sm_90", "sm_120", True, True),
    ("hip", "gfx942", "gfx942", True, True),
    ("hip", "gfx942", "gfx90a", True, False),
]


@pytest.mark.parametrize(("family", "code", "device", "text", "expected"), RUNS)
def test_which_code_runs_where(
    family: str, code: str, device: str, text: bool, expected: bool
) -> None:
    assert VENDORS[family].runs(code, device, text) is expected


def test_the_best_target_for_a_chip() -> None:
    best = {"sm_80": "sm_80", "sm_87": "sm_86", "sm_90": "sm_90a", "sm_100": "sm_100a"}
    for chip, name in best.items():
        assert best_target(VENDORS["cuda"], chip) == f"cuda:{name}"
    assert best_target(VENDORS["cuda"], "sm_70") is None
    assert best_target(VENDORS["hip"], "gfx950") == "hip:gfx950"
    assert best_target(VENDORS["hip"], "gfx906") is None


def test_a_family_is_the_device_that_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = HostDriver(chips=("sm_90",))
    monkeypatch.setattr(gpu, "open_driver", lambda target: driver)
    exe = dd.compile(lambda x: x + 1, dd.spec((4,)), target="cuda")
    assert exe.target == "cuda:sm_90a"
    driver.chips = ("sm_70",)
    with pytest.raises(TargetError, match=r"no code for this machine's Fake 0 \(sm_70\); it know"):
        dd.compile(lambda x: x + 1, dd.spec((4,)), target="cuda")


def test_out_of_memory_says_what_was_asked_for(exe: Executable) -> None:
    driver = HostDriver(exe.program, memory=1 << 10)
    with pytest.raises(DeviceError, match=r"Fake 0 \(0 MiB\): no room for \d+ bytes: cuMemAlloc"):
        runner_of(exe, driver).call([X, W])
    assert driver.named("trim"), "what the pool keeps was not given up first"


def test_a_fault_names_the_kernels(exe: Executable, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = HostDriver(exe.program)
    runner = runner_of(exe, driver)
    driver.fail["wait_stream"] = DeviceError("cuStreamSynchronize: an illegal address")
    driver.fail["wait_event"] = driver.fail["wait_stream"]
    names = [launch.kernel for launch in exe.plan]
    with pytest.raises(DeviceError, match=f"after one of the kernels .*{names[-1]}.*GPU_CHECK"):
        runner.call([X, W])
    driver.fail.clear()
    other = dd.compile(lambda x: x * 2, dd.spec((3,)), target="cuda:sm_90")
    driver.kernels.update(other.program.kernels)
    runner.call([X, W])
    driver.fail["wait_event"] = DeviceError("cuEventSynchronize: an illegal address")
    with pytest.raises(DeviceError, match=f"after kernel {other.plan[0].kernel}$"):
        runner_of(other, driver).call([np.ones(3, np.float32)])
    driver.fail.clear()
    monkeypatch.setenv("DODECA_GPU_CHECK", "1")
    checked = runner_of(exe, driver)
    driver.fail["wait_stream"] = DeviceError("cuStreamSynchronize: an illegal address")
    with pytest.raises(DeviceError, match=f"met after kernel {names[0]}$"):
        checked.call([X, W])


def test_a_graph_that_is_refused_has_a_way_around(exe: Executable) -> None:
    driver = HostDriver(exe.program)
    driver.fail["new_graph"] = DeviceError("hipGraphAddKernelNode (kernel k): invalid")
    with pytest.raises(DeviceError, match=r"\(kernel k\): invalid; DODECA_GRAPHS=off launches"):
        runner_of(exe, driver).call([X, W])


def test_shared_memory_is_asked_for() -> None:
    exe = dd.compile(lambda x: x + 1, dd.spec((4,)), target="cuda:sm_90")
    (name,) = exe.program.kernels
    kernel = replace(exe.program.kernels[name], resources={"dynamic_shared_bytes": 65536})
    driver = HostDriver(replace(exe.program, kernels={name: kernel}))
    runner = GpuRunner(replace(exe.program, kernels={name: kernel}), {}, driver)
    np.testing.assert_array_equal(runner.call([np.ones(4, np.float32)])[0], np.full(4, 2.0))
    assert driver.named("allow_shared") == [(name, 65536)]
    assert driver.named("launch")[0][:4] == (name, kernel.blocks, kernel.block, 65536)


def test_kernels_without_programs_are_not_launched() -> None:
    exe = dd.compile(lambda x: (x * 2, dd.sum(x)), dd.spec((0, 3)), target="cuda:sm_90")
    driver = HostDriver(exe.program)
    twice, total = runner_of(exe, driver).call([np.ones((0, 3), np.float32)])
    assert twice.shape == (0, 3) and total == 0
    plain = dd.compile(lambda x: x + 1, dd.spec((4,)), target="cuda:sm_90").program
    empty = {name: replace(kernel, grid=0) for name, kernel in plain.kernels.items()}
    driver = HostDriver(plain)
    GpuRunner(replace(plain, kernels=empty), {}, driver).call([np.ones(4, np.float32)])
    assert not driver.named("launch")


def test_an_executable_that_ends_gives_back_what_it_has(exe: Executable) -> None:
    driver = HostDriver(exe.program)
    runner = runner_of(exe, driver)
    runner.call([X, W])
    del runner
    gc.collect()
    assert driver.named("end_graph") and driver.used == 0
    assert len(driver.named("unload")) == len(driver.named("load"))


# --- timers -------------------------------------------------------------------------------------


def test_a_kernel_is_timed_with_a_cold_cache(exe: Executable) -> None:
    driver = HostDriver(exe.program)
    timing = time_kernel(exe.kernels[0], seconds=0.0, driver=driver)
    assert timing.seconds == pytest.approx(LAUNCH) and timing.noise < 1e-6
    assert timing.samples == 5
    runs = [call[0] for call in driver.log if call[0] in ("fill", "record", "launch")]
    assert runs == ["fill", "record", "launch", "record"] * (WARM_UP + 5)
    assert {size for _, _, size in driver.named("fill")} == {64 << 20}
    assert len(driver.named("end_event")) == 2 * BATCH
    assert time_kernel(exe.kernels[0], limit=FILL / 1e6, driver=driver).samples == 1


def test_a_plan_is_timed_as_calls_run_it(exe: Executable) -> None:
    driver = HostDriver(exe.program)
    runner = runner_of(exe, driver)
    timing = time_plan(runner, [X, W], seconds=0.0)
    assert timing.seconds == pytest.approx(LAUNCH * len(exe.plan))
    assert len(driver.named("replay")) == 1 + WARM_UP + 5
    check(runner.results())


def test_arguments_are_packed_as_pointers_to_pointers() -> None:
    call = gpu.Call("k", 1, 2, 128, 0, 3)
    call.pointers[:] = [7, 8, 9]
    table = (ctypes.c_void_p * 3).from_address(call.params)
    assert [ctypes.c_uint64.from_address(place).value for place in table] == [7, 8, 9]


def test_no_driver_at_all() -> None:
    with pytest.raises(TargetError, match="no device runs the target 'tpu'"):
        gpu.open_driver("tpu")
    driver = HostDriver(chips=("gfx942",), family="hip")
    assert device_for(driver, "hip:gfx942") == 0


# --- what is loaded, and saved files ------------------------------------------------------------


def test_a_cpu_loads_nothing_of_this() -> None:
    code = (
        "import sys, numpy as np, dodeca as dd\n"
        "exe = dd.compile(lambda x: x + 1, dd.spec((2,)))\n"
        "exe(np.ones(2, np.float32)); exe.profile(np.ones(2, np.float32))\n"
        "print([m for m in sys.modules if m.startswith(('dodeca.runtime.gpu', 'cuda', 'torch'))"
        " or '.device_' in m])"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "[]\n"


def test_a_saved_program_runs_on_a_device(tmp_path: Path) -> None:
    held = dd.asarray(W)
    exe = dd.compile(lambda x: x @ dd.exp(held), dd.spec((16, 24)), target="cuda:sm_90")
    exe.save(tmp_path / "m.dodeca")
    loaded = dd.load(tmp_path / "m.dodeca")
    driver = HostDriver(exe.program)
    (result,) = runner_of(loaded, driver).call([X])
    np.testing.assert_allclose(result, X @ np.exp(W), rtol=1e-4, atol=1e-4)


def test_calls_from_several_threads(exe: Executable) -> None:
    driver = HostDriver(exe.program)
    runner = runner_of(exe, driver)
    wrong: list[BaseException] = []

    def work(shift: int) -> None:
        try:
            for _ in range(5):
                check(runner.call([X + shift, W]), X + shift)
                there = on_device(runner.session, X + shift)
                check(runner.call([there, W]), X + shift)
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong, wrong[0]
