"""The two vendors' drivers at the boundary to C, against libraries that write down their calls.

The package cuda-bindings is the real one, on a libcuda.so.1 of ours that NVIDIA's header has
checked; ctypes has a libamdhip64.so of ours. Nothing here computes anything: no device is claimed.
"""

import ast
import importlib
import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from dodeca.runtime import gpu_cuda, gpu_hip
from dodeca.runtime.toolchain import find_c_compiler

HERE = Path(__file__).parent
SCRIPT = """
import sys
from dodeca.dialect.errors import Error
from dodeca.runtime.gpu import Call, open_driver
family, image = sys.argv[1], bytes.fromhex(sys.argv[2])
try:
    driver = open_driver(family)
    print(driver.devices(), driver.facts(1))
    with driver.current(1):
        stream, pool = driver.new_stream(), driver.new_pool(2, 12345)
        a = driver.allocate(pool, 256, stream)
        pinned = driver.new_pinned(4096)
        driver.upload(a, pinned, 16, stream)
        driver.download(pinned, a, 17, stream)
        driver.copy(a + 64, a, 18, stream)
        driver.fill(a, 171, 19, stream)
        timed, plain = driver.new_event(True), driver.new_event(False)
        driver.record(timed, stream)
        driver.wait_event(timed)
        print(driver.is_done(timed), driver.seconds(timed, plain))
        driver.stream_waits((0x55 << 32) + 77, plain)
        driver.wait_stream(stream)
        module = driver.load(image, "sm_90", "k")
        function = driver.function(module, "k")
        driver.allow_shared(function, 49152, "k")
        driver.allow_shared(function, 65536, "k")
        call = Call("k", function, 5, 128, 65536, 3)
        call.pointers[:] = [a, a + 256, (1 << 63) + 1]
        driver.launch(call, stream)
        graph = driver.new_graph([call, call])
        call.pointers[1] = 3
        driver.update(graph, 1, call)
        driver.replay(graph, stream)
        driver.end_graph(graph)
        driver.end_event(plain)
        driver.unload(module)
        driver.release(a, stream)
        driver.trim(pool)
        driver.wait_device()
except Error as error:
    print(type(error).__name__, error)
"""
ELF = b"\x7fELF" + bytes(12) + b"\3\0" + bytes(6)  # of a linked file
PTX = b".version"
POINTERS, CHANGED = "7f0000000000,7f0000000100,8000000000000001", "7f0000000000,3,8000000000000001"
SHAPE = "600 5 1 1 128 1 1 65536"
EXPECTED = {
    "cuda": """
        cuInit 0|cuDeviceGetCount|cuDeviceGetCount|cuDeviceGet 1
        cuDeviceGetAttribute 75 11|cuDeviceGetName 256 11|cuDeviceGetAttribute 76 11
        cuDeviceGetAttribute 16 11|cuDeviceTotalMem 11|cuDeviceGetAttribute 38 11
        cuDeviceGet 1|cuDevicePrimaryCtxRetain 11|cuCtxPushCurrent 100
        cuStreamCreate 0|cuMemPoolCreate 1 0 1 2 0|cuMemPoolSetAttribute 200 4 12345
        cuMemAllocFromPoolAsync 256 200 300|cuMemHostAlloc 4096 0
        cuMemcpyHtoDAsync 7f0000000000 7e0000000000 16 300
        cuMemcpyDtoHAsync 7e0000000000 7f0000000000 17 300
        cuMemcpyDtoDAsync 7f0000000040 7f0000000000 18 300
        cuMemsetD8Async 7f0000000000 171 19 300|cuEventCreate 0|cuEventCreate 2
        cuEventRecord 400 300|cuEventSynchronize 400|cuEventQuery 400
        cuEventElapsedTime 400 402|cuStreamWaitEvent 4d 402 0|cuStreamSynchronize 300
        cuModuleLoadDataEx .version 2 5 6 8192|cuModuleGetFunction 501 k
        cuFuncSetAttribute 600 8 65536|cuLaunchKernel SHAPE 300 POINTERS 0
        cuGraphCreate 0|cuGraphAddKernelNode 700 0 SHAPE POINTERS 0
        cuGraphAddKernelNode 700 800 SHAPE POINTERS 0|cuGraphInstantiate 700 0
        cuGraphExecKernelNodeSetParams 900 801 SHAPE CHANGED 0|cuGraphLaunch 900 300
        cuGraphExecDestroy 900|cuGraphDestroy 700|cuEventDestroy 402|cuModuleUnload 501
        cuMemFreeAsync 7f0000000000 300|cuMemPoolTrimTo 200 0|cuCtxSynchronize|cuCtxPopCurrent
    """,
    "hip": """
        hipInit 0|hipGetDeviceCount|hipGetDeviceCount|hipDeviceGetName 256 1
        hipDeviceTotalMem 1|hipDeviceGetAttribute 63 1|hipDeviceGetAttribute 19 1
        hipGetDeviceProperties 1|hipGetDevice|hipSetDevice 1|hipStreamCreateWithFlags 0
        hipMemPoolCreate 1 0 1 2|hipMemPoolSetAttribute 200 4 12345
        hipMallocFromPoolAsync 256 200 300|hipHostMalloc 4096 0
        hipMemcpyHtoDAsync 7f0000000000 7e0000000000 16 300
        hipMemcpyDtoHAsync 7e0000000000 7f0000000000 17 300
        hipMemcpyDtoDAsync 7f0000000040 7f0000000000 18 300
        hipMemsetD8Async 7f0000000000 171 19 300|hipEventCreateWithFlags 0
        hipEventCreateWithFlags 2|hipEventRecord 400 300|hipEventSynchronize 400
        hipEventQuery 400|hipEventElapsedTime 400 402|hipStreamWaitEvent 4d 402 0
        hipStreamSynchronize 300|hipModuleLoadData ELF 3|hipModuleGetFunction 500 k
        hipModuleLaunchKernel SHAPE 300 POINTERS 0|hipGraphCreate 0
        hipGraphAddKernelNode 700 0 SHAPE POINTERS 0
        hipGraphAddKernelNode 700 800 SHAPE POINTERS 0|hipGraphInstantiate 700 0 0 0
        hipGraphExecKernelNodeSetParams 900 801 SHAPE CHANGED 0|hipGraphLaunch 900 300
        hipGraphExecDestroy 900|hipGraphDestroy 700|hipEventDestroy 402|hipModuleUnload 500
        hipFreeAsync 7f0000000000 300|hipMemPoolTrimTo 200 0|hipDeviceSynchronize|hipSetDevice 0
    """,
}
IMAGES = {"cuda": PTX, "hip": ELF}


def header_folder() -> Path:
    """Where cuda.h is, of the packages that ptxas comes with."""
    spec = importlib.util.find_spec("nvidia")
    for place in spec.submodule_search_locations or () if spec else ():
        for found in Path(place).glob("*/include/cuda.h"):
            return found.parent
    pytest.skip("cuda.h is not here: pip install nvidia-cuda-runtime")


@pytest.fixture(scope="module")
def library(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory):
    """A folder with a family's library of ours."""
    family: str = request.param
    compiler = find_c_compiler()
    if compiler is None or sys.platform != "linux":
        pytest.skip("no C compiler")
    flags: list[str] = []
    if family == "cuda":
        pytest.importorskip("cuda.bindings.driver")
        flags = ["-I", str(header_folder())]
    folder = tmp_path_factory.mktemp(family)
    name = {"cuda": "libcuda.so.1", "hip": "libamdhip64.so"}[family]
    source = str(HERE / f"stub_{family}.c")
    command = [*compiler, "-shared", "-fPIC", "-Wall", "-Werror", *flags, source, "-ldl"]
    subprocess.run([*command, "-o", str(folder / name)], check=True)
    return family, folder


def driven(library: tuple[str, Path], fail: str = "", image: bytes = b"") -> tuple[str, list[str]]:
    """What the script prints on a library, and the calls."""
    family, folder = library
    log = folder / "log"
    log.unlink(missing_ok=True)
    settings = {"LD_LIBRARY_PATH": str(folder), "STUB_LOG": str(log), "STUB_FAIL": fail}
    argument = (image or IMAGES[family]).hex()
    ran = subprocess.run(
        [sys.executable, "-c", SCRIPT, family, argument],
        env={**os.environ, **settings},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout, [line.strip() for line in log.read_text().splitlines()]


BOTH = pytest.mark.parametrize("library", ["cuda", "hip"], indirect=True)


@BOTH
def test_every_call_arrives_with_its_arguments(library: tuple[str, Path]) -> None:
    family, _ = library
    said, calls = driven(library)
    words = {"SHAPE": SHAPE, "POINTERS": POINTERS, "CHANGED": CHANGED}
    text = re.sub("SHAPE|POINTERS|CHANGED", lambda found: words[found[0]], EXPECTED[family])
    assert calls == [one.strip() for one in re.split(r"[|\n]", text.strip())]
    chip, units = {"cuda": ("sm_90", 132), "hip": ("gfx942", 304)}[family]
    facts = f"DeviceFacts(name='Stub', chip='{chip}', units={units}, memory=1048576, cache=4096)"
    assert said.splitlines() == [f"2 {facts}", "True 0.0025"]


FAILURES = {
    "cuda": {
        "cuInit:100": "TargetError cuda: NVIDIA's driver is here, but does not start: cuInit: CUDA",
        "cuMemAllocFromPoolAsync:2": "DeviceError cuMemAllocFromPoolAsync (256 bytes): "
        "CUDA_ERROR_OUT_OF_MEMORY: out of memory",
        "cuLaunchKernel:700": "DeviceError cuLaunchKernel (kernel k): CUDA_ERROR_OTHER: something",
        "cuModuleLoadDataEx:218": "DeviceError cuModuleLoadDataEx (kernel k): CUDA_ERROR_OTHER: "
        "something else\nline 3: no such instruction",
        "cuModuleLoadDataEx:222": "DeviceError kernel k: this driver is too old for its PTX; insta",
        "cuEventQuery:600": "False 0.0025",
        "cuEventQuery:700": "DeviceError cuEventQuery: CUDA_ERROR_OTHER",
        "cuGraphAddKernelNode:1": "DeviceError cuGraphAddKernelNode (kernel k): CUDA_ERROR_OTHER",
    },
    "hip": {
        "hipInit:100": "TargetError hip: AMD's driver is here, but does not start: hipInit: hipErr",
        "hipGetDeviceCount:100": "TargetError hip: AMD's driver is here, but it finds no device",
        "hipMallocFromPoolAsync:2": "DeviceError hipMallocFromPoolAsync (256 bytes): "
        "hipErrorOutOfMemory: out of memory",
        "hipModuleLaunchKernel:1": "DeviceError hipModuleLaunchKernel (kernel k): hipErrorOther",
        "hipEventQuery:600": "False 0.0025",
        "hipEventQuery:1": "DeviceError hipEventQuery: hipErrorOther: something else",
    },
}


@BOTH
def test_errors_name_the_call_and_the_kernel(library: tuple[str, Path]) -> None:
    for fail, message in FAILURES[library[0]].items():
        said, _ = driven(library, fail)
        assert message in said, fail


@pytest.mark.parametrize("library", ["cuda"], indirect=True)
def test_a_cubin_is_loaded_as_it_is(library: tuple[str, Path]) -> None:
    _, calls = driven(library, image=ELF)
    assert "cuModuleLoadData ELF" in calls


def test_an_object_file_is_linked_first(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bytes] = []
    monkeypatch.setattr(
        "dodeca.runtime.toolchain.link_amdgpu", lambda data: seen.append(data) or b""
    )
    driver = gpu_hip.HipDriver.__new__(gpu_hip.HipDriver)
    monkeypatch.setattr(gpu_hip.HipDriver, "_made", lambda *_, **__: 5)
    relocatable = ELF[:16] + b"\1\0"
    assert driver.load(relocatable, "gfx942", "k") == 5 and seen == [relocatable]
    assert driver.load(ELF, "gfx942", "k") == 5 and len(seen) == 1


def used_names(module) -> set[str]:
    """The names of a driver's functions in a module's text."""
    tree = ast.parse(Path(module.__file__).read_text())
    return {
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        if re.fullmatch(r"(cu|hip)[A-Z]\w+", node.value)
    }


def test_what_the_cuda_row_uses_is_in_the_package() -> None:
    package = pytest.importorskip("cuda.bindings.driver")
    names = used_names(gpu_cuda)
    assert len(names) > 30
    text = Path(gpu_cuda.__file__).read_text()
    names |= set(re.findall(r"cuda\.(\w+)", text)) - {"bindings", "CudaDriver"}
    assert not [name for name in names if not hasattr(package, name) and name[:2] in ("cu", "CU")]
    for kind, member in re.findall(r"(CU\w+)\.(CU_\w+|CUDA_\w+)", text):
        assert hasattr(getattr(package, kind), member), f"{kind}.{member}"


def test_every_hip_function_is_declared() -> None:
    names = used_names(gpu_hip) - {"hipGetDevicePropertiesR0600", "hipGetDeviceProperties"}
    assert names - {"hipGetErrorName", "hipGetErrorString"} == {*gpu_hip.PROTOTYPES}


def test_the_package_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from dodeca.dialect.errors import TargetError
    from dodeca.runtime import gpu

    def missing(name: str, package: str | None = None):
        if name.startswith("cuda"):
            raise ImportError(name)
        return importlib.import_module(name, package)

    monkeypatch.setattr(gpu, "_loads", lambda library: True)
    monkeypatch.setattr(gpu, "import_module", missing)
    with pytest.raises(
        TargetError, match=r"cuda-bindings is missing: pip install 'dodeca\[cuda\]'"
    ):
        gpu._opened.__wrapped__("cuda")
