"""Programs for users of C: the example that is written beside the library, and each error."""

import ctypes
import importlib.util
import os
import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import dodeca as dd
import numpy as np
import pytest
from dodeca.dialect.errors import ArgumentError, CompileError, TargetError
from dodeca.runtime import c_library, toolchain
from dodeca.runtime.executable import Executable
from dodeca.runtime.memory import aligned

RNG = np.random.default_rng(9)
W = RNG.normal(size=(6, 8)).astype(np.float32)
V = RNG.normal(size=(8, 64)).astype(np.float32)
X = RNG.normal(size=(32, 6)).astype(np.float32)
KEEP = np.arange(32) % 3 > 0


def model(x: Any, keep: Any) -> Any:
    """A prepared weight, an input and a weight given back, a result twice, bool and float16."""
    y = dd.softmax(x @ (dd.Tensor(W, "w") @ dd.Tensor(V, "v")))
    chosen = dd.where(dd.expand_dims(keep, 1), y, 0)
    return chosen, dd.astype(chosen, "float16"), x, dd.Tensor(W, "w"), chosen, dd.logical_not(keep)


@pytest.fixture(scope="module")
def exe() -> Executable:
    return dd.compile(model, dd.spec(X.shape, name="x"), dd.spec(KEEP.shape, "bool"), threads=2)


@pytest.fixture(scope="module")
def folder(exe: Executable, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The exported library, compiled without a warning."""
    compiler = toolchain.find_c_compiler()
    assert compiler, "no C compiler: pip install ziglang"
    made = tmp_path_factory.mktemp("c")
    with pytest.MonkeyPatch.context() as patch:
        strict = (*compiler, "-Wall", "-Wextra", "-Werror")
        patch.setattr(toolchain, "find_c_compiler", lambda: strict)
        exe.export_c(made, name="net")
    return made


def example(folder: Path, *compiler: str) -> bytes:
    """What the example program writes."""
    command = [*compiler, "-std=c11", "-Wall", "-Wextra", "-Werror", "example.c", "-L.", "-lnet"]
    subprocess.run([*command, "-Wl,-rpath,$ORIGIN", "-o", "example"], cwd=folder, check=True)
    X.tofile(folder / "x")
    KEEP.tofile(folder / "keep")
    done = subprocess.run(
        ["./example", "x", "keep"], cwd=folder, check=False, capture_output=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_example_gives_what_python_gives(exe: Executable, folder: Path) -> None:
    assert sorted(os.listdir(folder))[:3] == ["example.c", "libnet.so", "net.h"]
    code = (folder / "example.c").read_text()
    assert 10 <= len(code[code.index("int main") :].splitlines()) <= 20
    compiler = toolchain.find_c_compiler()
    assert compiler
    results = exe(X, KEEP)
    assert example(folder, *compiler) == b"".join(one.tobytes() for one in results)
    done = subprocess.run(["./example", "x"], cwd=folder, check=False, capture_output=True)
    assert done.returncode == 2


def test_zig_is_a_compiler_as_well(
    exe: Executable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    zig = (*toolchain._ZIG, "cc")
    monkeypatch.setattr(toolchain, "find_c_compiler", lambda: zig)
    exe.export_c(tmp_path, "net")
    results = exe(X, KEEP)
    assert example(tmp_path, *zig) == b"".join(one.tobytes() for one in results)


def test_the_header_says_what_goes_in_and_out(folder: Path) -> None:
    header = (folder / "net.h").read_text()
    assert "input 0: float32 [32][6], 768 bytes  x" in header
    assert "output 1: float16 [32][64], 4096 bytes" in header
    assert "#define NET_INPUTS 2\n#define NET_OUTPUTS 6\n" in header
    assert "#define NET_INPUT_1_BYTES 32\n" in header
    assert not re.search(r"@[A-Z]", header)


class Tensor(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p),
        ("dtype", ctypes.c_char_p),
        ("rank", ctypes.c_int),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("bytes", ctypes.c_size_t),
        ("element_bytes", ctypes.c_size_t),
    )


@pytest.fixture(scope="module")
def library(folder: Path) -> ctypes.CDLL:
    loaded = ctypes.CDLL(str(folder / "libnet.so"))
    loaded.net_input.restype = loaded.net_output.restype = ctypes.POINTER(Tensor)
    loaded.net_error.restype = ctypes.c_char_p
    return loaded


def call(
    library: ctypes.CDLL, inputs: list[Any], outputs: list[Any], threads: int = 1
) -> tuple[int, str]:
    """The code of a call on arrays, or None for a null pointer, and its words."""

    def pointers(arrays: list[Any]) -> Any:
        addresses = [None if one is None else one.ctypes.data for one in arrays]
        return (ctypes.c_void_p * len(arrays))(*addresses)

    code = library.net_run(pointers(inputs), pointers(outputs), threads)
    return code, library.net_error(code).decode()


def places(exe: Executable) -> list[np.ndarray]:
    return [np.empty_like(one) for one in exe(X, KEEP)]


def test_inputs_and_outputs_are_described(exe: Executable, library: ctypes.CDLL) -> None:
    assert library.net_abi() == c_library.ABI
    first = library.net_input(0).contents
    assert (first.name, first.dtype, first.rank) == (b"x", b"float32", 2)
    assert (first.shape[:2], first.bytes, first.element_bytes) == ([32, 6], 768, 4)
    for i, result in enumerate(exe(X, KEEP)):
        said = library.net_output(i).contents
        assert (said.dtype.decode(), said.bytes) == (result.dtype.name, result.nbytes)
        assert tuple(said.shape[: said.rank]) == result.shape
    assert not library.net_input(2) and not library.net_input(-1) and not library.net_output(6)


@pytest.mark.parametrize("threads", [0, 1, 2, 3, 1000])
def test_any_number_of_threads(exe: Executable, library: ctypes.CDLL, threads: int) -> None:
    for _ in range(20):
        outputs = places(exe)
        assert call(library, [X, KEEP], outputs, threads) == (0, "no error")
        for found, expected in zip(outputs, exe(X, KEEP), strict=True):
            assert found.tobytes() == expected.tobytes()


def test_several_callers_at_once(exe: Executable, library: ctypes.CDLL) -> None:
    wrong = []

    def caller(seed: int) -> None:
        x = X + seed
        expected = exe(x, KEEP)[0].tobytes()
        for i in range(150):
            outputs = places(exe)
            code, _ = call(library, [x, KEEP], outputs, 1 if i % 5 == seed else 2)
            if code or outputs[0].tobytes() != expected:
                wrong.append(seed)

    team = [threading.Thread(target=caller, args=(seed,)) for seed in range(4)]
    for one in team:
        one.start()
    for one in team:
        one.join()
    assert not wrong


def test_each_error_has_its_words(exe: Executable, library: ctypes.CDLL) -> None:
    out = places(exe)
    assert call(library, [None, KEEP], out) == (1, "an array is a null pointer")
    assert call(library, [X, KEEP], [*out[:5], None])[0] == 1
    assert library.net_run(None, None, 1) == 1
    odd = aligned(X.nbytes + 4)[2:]
    assert call(library, [odd, KEEP], out)[0] == 2
    assert call(library, [X, KEEP], [odd, *out[1:]])[1].startswith("an array does not start at a")
    assert call(library, [X, KEEP], [*out[:2], X, *out[3:]])[0] == 3
    assert call(library, [X, KEEP], [*out[:4], out[0], out[5]])[1].startswith("an output overlaps")
    assert call(library, [X, KEEP], out, -1)[0] == 4
    assert call(library, [X, KEEP], out, 1 << 20)[1].startswith("the number of threads is wrong")
    assert library.net_error(77) == b"unknown error"
    assert call(library, [X, KEEP], out)[0] == 0


def test_a_forked_child_starts_its_own_threads(exe: Executable, folder: Path) -> None:
    code = f"""
import ctypes, os, sys
import numpy as np
net = ctypes.CDLL({str(folder / "libnet.so")!r})
arrays = [np.load(path) for path in sys.argv[1:3]]
outputs = [np.empty(size, "u1") for size in (8192, 4096, 768, 192, 8192, 32)]
pointers = lambda some: (ctypes.c_void_p * len(some))(*[one.ctypes.data for one in some])
def run():
    outputs[0][:] = 0
    assert net.net_run(pointers(arrays), pointers(outputs), 2) == 0
    return outputs[0].tobytes()
first = run()
child = os.fork()
if child == 0:
    os._exit(0 if run() == first else 1)
assert os.waitpid(child, 0)[1] == 0 and run() == first
"""
    np.save(folder / "x.npy", X)
    np.save(folder / "keep.npy", KEEP)
    arguments = [folder / "x.npy", folder / "keep.npy"]
    subprocess.run([sys.executable, "-c", code, *arguments], check=True, timeout=60)


@pytest.mark.parametrize("flag", ["vx", "av"])  # parts of "avx"
def test_a_cpu_that_lacks_something_is_told(
    exe: Executable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flag: str
) -> None:
    from dodeca.runtime import artifact

    needs = artifact.needs_of(exe)
    more = type(needs)(needs.architecture, needs.core, (*needs.features, flag))
    monkeypatch.setattr(artifact, "needs_of", lambda _: more)
    exe.export_c(tmp_path, "net")
    loaded = ctypes.CDLL(str(tmp_path / "libnet.so"))
    loaded.net_error.restype = ctypes.c_char_p
    code, words = call(loaded, [X, KEEP], places(exe))
    assert code == 6 and words.endswith(f"it was compiled for a {needs.core}")


def test_what_cannot_be_exported(
    exe: Executable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("", "Net", "a-b", "1x", "dodeca", "x" * 100):
        with pytest.raises(ArgumentError, match="cannot begin the names of C functions"):
            exe.export_c(tmp_path, name)
    with pytest.raises(TargetError, match="the program is for cuda:sm_80"):
        dd.compile(lambda x: x + 1, dd.spec((2,)), target="cuda:sm_80").export_c(tmp_path)
    exe.save(tmp_path / "saved")
    with pytest.raises(ArgumentError, match="a loaded executable cannot be linked again"):
        dd.load(tmp_path / "saved").export_c(tmp_path / "out")
    monkeypatch.setattr(c_library, "_LARGEST", 100)
    with pytest.raises(CompileError, match="bytes of weights; a library holds 100"):
        exe.export_c(tmp_path / "out")
    monkeypatch.undo()
    monkeypatch.setattr(toolchain, "find_c_compiler", lambda: None)
    with pytest.raises(TargetError, match=r"no C compiler was found.*pip install ziglang"):
        exe.export_c(tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_program_without_arrays(tmp_path: Path) -> None:
    """C has no arrays of no elements, so the tables have one that nobody reads."""
    empty = dd.compile(lambda x: (x, x + 1), dd.spec((0,)))
    empty.export_c(tmp_path, "net")
    loaded = ctypes.CDLL(str(tmp_path / "libnet.so"))
    loaded.net_error.restype = ctypes.c_char_p
    assert call(loaded, [None], [None, None]) == (0, "no error")


def test_the_example_of_a_whole_way(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = Path(__file__).resolve().parents[1] / "examples" / "from_c.py"
    spec = importlib.util.spec_from_file_location("from_c", path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.main(["--output", str(tmp_path / "out")]) == 0
    printed = capsys.readouterr().out
    assert "input 0: float32 [8][64], 2048 bytes  x" in printed
    assert printed.endswith("gives the same bits as Python\n")
