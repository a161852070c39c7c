"""Executables in files: the same results, without the compiler; and what must not be loaded."""

import json
import os
import subprocess
import sys
import threading
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dodeca as dd
import llvmlite.binding as llvm
import ml_dtypes
import numpy as np
import pytest
from dodeca.dialect.errors import ArgumentError, CompileError, Error, ParseError, TargetError
from dodeca.runtime import arguments, artifact, cpu_features, shared_library, toolchain
from dodeca.runtime.container import Container, pack, unpack
from dodeca.runtime.elf import elf_symbols
from dodeca.runtime.executable import Executable
from dodeca.runtime.jit import compile_for_host
from dodeca.runtime.shared_library import LibraryCode, check_library, library
from safetensors.numpy import save_file
from test_runtime_executable import kernel, program, vector
from test_serial import changed as with_change
from test_serial import places, setting

RNG = np.random.default_rng(3)
W = RNG.normal(size=(6, 8)).astype(np.float32)
V = RNG.normal(size=(8, 5)).astype(np.float32)
B = RNG.normal(size=(40,)).astype(np.float32)
X = RNG.normal(size=(40, 6)).astype(np.float32)
NAMES = {"w": W, "v": V, "b": B}
Pair = namedtuple("Pair", "first second")


def model(x: Any) -> Any:
    """w and v are needed once, b in each call; 16-bit results need conversions on some CPUs."""
    y = x @ (dd.Tensor(W, "w") @ dd.Tensor(V, "v"))
    shifted = y + dd.expand_dims(dd.Tensor(B, "b"), 1)
    return {"y": dd.softmax(shifted), "rest": [dd.astype(shifted, "bfloat16"), (x,)]}


@pytest.fixture(scope="module")
def exe() -> Executable:
    return dd.compile(model, dd.spec(X.shape, name="x"), threads=2)


@pytest.fixture(scope="module")
def saved(exe: Executable, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("saved") / "model.dodeca"
    exe.save(path)
    return path


def same(one: Any, other: Any) -> None:
    """The same structure, and the same bits in it."""
    assert type(one) is type(other)
    if isinstance(one, dict):
        assert [*one] == [*other]
        one, other = list(one.values()), list(other.values())
    if isinstance(one, list | tuple):
        assert len(one) == len(other)
        for a, b in zip(one, other, strict=True):
            same(a, b)
    else:
        assert (one.shape, one.dtype) == (other.shape, other.dtype)
        assert one.tobytes() == other.tobytes()


# --- there and back


def test_a_loaded_executable_is_like_the_saved_one(exe: Executable, saved: Path) -> None:
    loaded = dd.load(saved, threads=2)
    same(loaded(X), exe(X))
    assert loaded.plan == exe.plan
    assert loaded.buffers == exe.buffers
    assert loaded.scratch_bytes == exe.scratch_bytes
    assert loaded.threads == 2 and dd.load(saved, threads=1).threads == 1
    assert loaded.ir("dodeca") == exe.ir("dodeca") and loaded.ir("kernels") == exe.ir("kernels")
    called = {launch.kernel for launch in exe.plan}
    assert {k.name for k in loaded.kernels} == called < {k.name for k in exe.kernels}
    for one in loaded.kernels:
        assert one.text == exe.program.kernels[one.name].text
    out = [np.empty_like(exe(X)["y"]), exe(X)["rest"][0].copy(), np.empty_like(X)]
    result = loaded(X, out=out)
    assert result["y"] is out[0]
    same(result, exe(X))
    profile = loaded.profile(X, repeats=2)
    assert len(profile.launches) == len(exe.plan)
    assert loaded.report().startswith("cpu (")
    with pytest.raises(ArgumentError, match=r"argument 0 \('x'\): expected float32 \(40, 6\)"):
        loaded(X[:3])


def test_loading_runs_no_kernel_and_keeps_no_weight_that_is_needed_once(saved: Path) -> None:
    loaded = dd.load(saved)
    assert not loaded.program.prepare
    names = {loaded.buffers[i].name or loaded.buffers[i].role for i in loaded.resident}
    assert names == {"b", "prepared"}
    for array in loaded.resident.values():
        assert not array.flags.writeable and not array.flags.owndata
        assert array.ctypes.data % 64 == 0


def test_saving_a_loaded_one_gives_the_same_file(saved: Path, tmp_path: Path) -> None:
    dd.load(saved).save(tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == saved.read_bytes()


def test_several_threads_may_call(exe: Executable, saved: Path) -> None:
    loaded = [dd.load(saved, threads=2), dd.load(saved, threads=1)]
    expected = {i: exe(X + i) for i in range(4)}
    failed: list[int] = []

    def caller(seed: int) -> None:
        for i in range(20):
            which = (seed + i) % 4
            if not np.array_equal(loaded[i % 2](X + which)["y"], expected[which]["y"]):
                failed.append(which)

    team = [threading.Thread(target=caller, args=(seed,)) for seed in range(4)]
    for one in team:
        one.start()
    for one in team:
        one.join()
    assert not failed


@pytest.mark.parametrize("target", ["cuda:sm_80", "hip:gfx942"])
def test_programs_for_gpus(target: str, tmp_path: Path) -> None:
    made = dd.compile(model, dd.spec(X.shape), target=target)
    made.save(tmp_path / "gpu")
    loaded = dd.load(tmp_path / "gpu")
    same(loaded.simulate(X), made.simulate(X))
    assert loaded.ir("text") == made.ir("text")
    assert [k.binary for k in loaded.kernels] == [k.binary for k in made.kernels]
    with pytest.raises(TargetError, match=target):
        loaded(X)
    loaded.dump(tmp_path / "folder")
    assert (tmp_path / "folder" / "manifest.json").is_file()
    made.save(tmp_path / "reference", weights="reference")
    same(dd.load(tmp_path / "reference", NAMES).simulate(X), made.simulate(X))


def test_programs_without_weights_or_kernels(tmp_path: Path) -> None:
    made = dd.compile(lambda x: x, dd.spec((3,), "int32"))
    for how in ("inside", "reference"):
        made.save(tmp_path / "same", weights=how)
        x = np.arange(3, dtype=np.int32)
        same(dd.load(tmp_path / "same")(x), x)
    empty = dd.compile(lambda x: x + 1, dd.spec((0, 3)))
    empty.save(tmp_path / "empty")
    assert dd.load(tmp_path / "empty")(np.zeros((0, 3), np.float32)).shape == (0, 3)


# --- without the compiler

BLOCKED = ("ml_dtypes", "mlir", "egglog", "llvmlite", "safetensors", "tokenizers")
ALONE = f"""
import sys
BLOCKED = {BLOCKED}
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in BLOCKED:
            raise ImportError(f"{{name}} is blocked")
sys.meta_path.insert(0, Blocker())
import numpy as np
import dodeca as dd
"""


def alone(code: str, *arguments: Any) -> str:
    """What Python code prints in a process that can import numpy only."""
    command = [sys.executable, "-W", "error", "-c", ALONE + code, *map(str, arguments)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def test_loading_needs_numpy_alone(exe: Executable, saved: Path, tmp_path: Path) -> None:
    exe.save(tmp_path / "reference", weights="reference")
    save_file({"w": W, "v": V, "b": B}, tmp_path / "weights.safetensors")
    np.save(tmp_path / "x.npy", X)
    printed = alone(
        """
from pathlib import Path
folder, saved = Path(sys.argv[1]), sys.argv[2]
x = np.load(folder / "x.npy")
one = dd.load(saved, threads=2)
two = dd.load(folder / "reference", weights=folder / "weights.safetensors", threads=1)
for i, exe in enumerate((one, two)):
    result = exe(x)
    assert result["rest"][0].dtype == "V2", result["rest"][0].dtype
    np.save(folder / f"y{i}.npy", result["y"])
    np.save(folder / f"bf{i}.npy", result["rest"][0].view(np.uint16))
    np.testing.assert_array_equal(result["rest"][1][0], x)
    exe.report(), exe.profile(x, repeats=1), exe.ir("text"), exe.plan
try:
    dd.load(saved)(x[:1])
except dd.ArgumentError as error:
    print(error)
try:
    dd.compile
except ImportError as error:
    print(error)
print([name for name in BLOCKED if name in sys.modules])
""",
        tmp_path,
        saved,
    )
    assert "argument 0 ('x'): expected float32 (40, 6), got float32 (1, 6)" in printed
    assert "dodeca needs the upstream MLIR Python bindings" in printed
    assert printed.endswith("[]\n")
    expected = exe(X)
    for i in (0, 1):
        same(np.load(tmp_path / f"y{i}.npy"), expected["y"])
        same(np.load(tmp_path / f"bf{i}.npy"), expected["rest"][0].view(np.uint16))


def test_numbers_of_bfloat16_without_ml_dtypes(tmp_path: Path) -> None:
    """A Python number for a 0-d input is rounded as ml_dtypes rounds it."""
    dd.compile(lambda x: x, dd.spec((), "bfloat16")).save(tmp_path / "same")
    values = [1.0, 1 / 3, -2.7, 1.00390625, 1.01171875, 3.38e38, float("inf"), float("nan"), 1e-40]
    printed = alone(
        "exe = dd.load(sys.argv[1])\n"
        "print([int(exe(float(v)).view(np.uint16)) for v in sys.argv[2:]])",
        tmp_path / "same",
        *values,
    )
    expected = [int(np.array(v, ml_dtypes.bfloat16).view(np.uint16)) for v in values]
    assert json.loads(printed) == expected
    for bits in (0x7FFFFFFF, 0xFF800001):  # NaNs whose rounding would carry into the sign
        value = np.array(bits, np.uint32).view(np.float32)
        assert np.isnan(arguments._bfloat16(float(value)).astype(np.float32))


def test_importing_the_package_imports_no_compiler() -> None:
    printed = subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys, dodeca\n"
            "assert 'softmax' in dir(dodeca) and 'load' in dir(dodeca)\n"
            f"print([name for name in {BLOCKED} if name in sys.modules])\n"
            "import dodeca.trace, dodeca.compile, dodeca.explain\n"
            "assert callable(dodeca.trace) and callable(dodeca.compile)\n"
            "assert dodeca.nn.Linear and dodeca.models.bert and dodeca.dialect.views.View\n"
            "assert all(hasattr(dodeca, name) for name in dodeca.__all__)\n"
            "assert not hasattr(dodeca, 'nothing') and not hasattr(dodeca, '__wrapped__')\n"
            "from dodeca import *\n"
            "assert callable(explain) and concat is dodeca.concatenate\n",
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (printed.returncode, printed.stdout) == (0, "[]\n"), printed.stderr


def test_a_loaded_driver_serves_what_is_compiled_later(saved: Path) -> None:
    code = (
        "import sys, numpy as np, dodeca as dd\n"
        "loaded = dd.load(sys.argv[1], threads=2)\n"
        "assert 'llvmlite' not in sys.modules\n"
        "x, y = np.ones((40, 6), 'f4'), np.ones((64, 64), 'f4')\n"
        "before = loaded(x)['y']\n"
        "made = dd.compile(lambda y: y @ y, dd.spec(y.shape), threads=2)\n"
        "for _ in range(20):\n"
        "    np.testing.assert_array_equal(made(y), y * 64)\n"
        "    np.testing.assert_array_equal(loaded(x)['y'], before)\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code, str(saved)], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr


def test_the_public_names_are_those_of_the_api() -> None:
    from dodeca import api

    public = {name for name in vars(api) if not name.startswith("_")}
    others = {"annotations", "bindings", "DTYPES"}
    assert {*dd.__all__} == (public - others) | {"load"}
    modules = {path.stem for path in Path(dd.__file__ or "").parent.glob("*.py")}
    hidden = {name for name in modules & {*dd.__all__} if callable(getattr(api, name))}
    assert hidden == {*dd._FUNCTIONS}


# --- weights by reference


def test_weights_by_reference(exe: Executable, saved: Path, tmp_path: Path) -> None:
    path = tmp_path / "reference"
    exe.save(path, weights="reference")
    held = Container(memoryview(path.read_bytes()), "it")
    assert not [name for name in held.names if name.startswith("data/")]
    same(dd.load(path, weights=NAMES)(X), exe(X))
    again = dd.load(path, {**NAMES, "more": X})
    again.save(tmp_path / "again", weights="reference")
    assert (tmp_path / "again").read_bytes() == path.read_bytes()
    with pytest.raises(ArgumentError, match=r"3 weights by reference \('b', 'w', 'v'\)|'w'"):
        dd.load(path)
    with pytest.raises(ArgumentError, match="weight 'v': missing; expected float32"):
        dd.load(path, {"w": W, "b": B})
    with pytest.raises(ArgumentError, match="weight 'w': expected float32"):
        dd.load(path, {**NAMES, "w": W.T})
    wrong = W.copy()
    wrong[3, 3] = np.nextafter(wrong[3, 3], 2)
    with pytest.raises(ArgumentError, match="weight 'w': not the one that the file was saved with"):
        dd.load(path, {**NAMES, "w": wrong})
    with pytest.raises(ArgumentError, match="has its weights inside"):
        dd.load(saved, NAMES)
    with pytest.raises(ArgumentError, match="weights is 'inside' or 'reference', not 'both'"):
        exe.save(path, weights="both")


def test_weights_in_a_safetensors_file(tmp_path: Path, exe: Executable) -> None:
    exe.save(tmp_path / "reference", weights="reference")
    file = tmp_path / "w.safetensors"
    save_file({**NAMES, "other": np.zeros(3, np.uint16), "none": np.zeros((0, 2), "f4")}, file)
    same(dd.load(tmp_path / "reference", file)(X), exe(X))
    data = file.read_bytes()
    for wrong in (
        b"",
        b"short",
        data[:-1],
        data[:60],
        data.replace(b"data_offsets", b"data_offset_"),
    ):
        file.write_bytes(wrong)
        with pytest.raises(ParseError, match=r"w\.safetensors"):
            dd.load(tmp_path / "reference", str(file))
    with pytest.raises(FileNotFoundError):
        dd.load(tmp_path / "reference", tmp_path / "none")


def test_a_weight_that_is_gone_cannot_be_referred_to(exe: Executable, saved: Path) -> None:
    with pytest.raises(ArgumentError, match=r"weight '[wv]' is not there any more"):
        dd.load(saved).save(saved.with_name("other"), weights="reference")
    given = {name: array.copy() for name, array in NAMES.items()}
    made = Executable(exe.program, given)
    made.save(saved.with_name("other"), weights="reference")
    del given["v"]
    with pytest.raises(ArgumentError, match="weight 'v' is not there any more"):
        made.save(saved.with_name("other"), weights="reference")


# --- the structure of results


def test_named_tuples_and_keys_that_are_no_text(tmp_path: Path) -> None:
    made = dd.compile(
        lambda x: Pair({0: x, "a": x + 1, None: x, 0.5: x, True: x}, [x, (x - 1,)]), dd.spec((2,))
    )
    made.save(tmp_path / "pair")
    x = np.ones(2, np.float32)
    found, expected = dd.load(tmp_path / "pair")(x), made(x)
    assert type(found).__name__ == "Pair" and found._fields == ("first", "second")
    same(tuple(found), tuple(expected))


def test_results_that_a_file_cannot_keep(exe: Executable, tmp_path: Path) -> None:
    for unflatten, message in (
        (lambda results: results[0] + 1, "a function that a file cannot keep"),
        (lambda results: {Path("a"): results[0]}, "has a key that a file cannot keep: a PosixPath"),
        (lambda results: [results[0], {1, 2}], r"the result\[1\] is a set"),
    ):
        made = Executable(exe.program, NAMES, unflatten=unflatten)
        with pytest.raises(ArgumentError, match=message):
            made.save(tmp_path / "none")
    assert not os.listdir(tmp_path)


@pytest.mark.parametrize(
    "tree",
    [3, -1, True, "x", {}, [], ["list"], ["list", 0], ["list", [3]], ["set", [0]], ["dict", [0]],
     ["dict", [["a"]]], ["dict", [[[1], 0]]], ["named", [0], "Pair"], ["named", [0], "Pair", []],
     ["named", [0], "a b", ["x"]], ["named", [0], "Pair", ["_x"]], ["tuple", [0], 1],
     ["named", [0], "Pair", ["import os"]]],
    ids=str,
)  # fmt: skip
def test_structures_that_make_no_sense(tree: Any, saved: Path, reload: Any) -> None:
    with pytest.raises(ParseError, match="is not a structure of 3 results"):
        reload(with_manifest(saved, setting("results", tree)))
    deep: Any = 0
    for _ in range(100):
        deep = ["list", [deep]]
    with pytest.raises(ParseError, match="is not a structure of 3 results"):
        reload(with_manifest(saved, setting("results", deep)))


# --- files


def test_a_file_is_replaced_as_a_whole(
    exe: Executable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "model"
    exe.save(path)
    before = path.read_bytes()
    loaded = dd.load(path)

    def fail(file: Any, files: Any) -> None:
        file.write(b"half")
        raise OSError("disk full")

    monkeypatch.setattr(artifact, "write_container", fail)
    with pytest.raises(OSError, match="disk full"):
        exe.save(path)
    monkeypatch.undo()
    assert os.listdir(tmp_path) == ["model"] and path.read_bytes() == before
    dd.compile(lambda x: x + 1, dd.spec((2,))).save(path)
    assert path.read_bytes() != before
    same(loaded(X), exe(X))  # what was loaded is still there
    (tmp_path / "folder").mkdir()
    with pytest.raises(ArgumentError, match="folder is a folder; dump writes folders"):
        exe.save(tmp_path / "folder")


def test_files_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        dd.load(tmp_path / "none")
    (tmp_path / "x").write_bytes(b"")
    with pytest.raises(ParseError, match="x is empty"):
        dd.load(tmp_path / "x")
    (tmp_path / "x").write_bytes(pack({"a": b"b"}))
    with pytest.raises(ParseError, match="x: it is not a saved executable"):
        dd.load(tmp_path / "x")


def test_changed_or_cut_files_are_refused(saved: Path, tmp_path: Path) -> None:
    data = saved.read_bytes()
    path = tmp_path / "wrong"
    for at in range(0, len(data), len(data) // 150):
        flipped = bytearray(data)
        flipped[at] ^= 1 << at % 8
        path.write_bytes(flipped)
        with pytest.raises(ParseError, match="wrong"):
            dd.load(path)
    for length in range(1, len(data), len(data) // 40):
        path.write_bytes(data[:length])
        with pytest.raises(ParseError, match="wrong"):
            dd.load(path)


def with_manifest(saved: Path, change: Any, name: str = "manifest.json") -> dict[str, bytes]:
    """The members of a file with a change in one that is JSON."""
    files = unpack(saved.read_bytes())
    renamed = {("program.json" if key == name else key): data for key, data in files.items()}
    done = with_change(renamed, change)["program.json"]
    return {**files, name: done}


@pytest.fixture
def reload(tmp_path: Path) -> Callable[[dict[str, bytes]], Executable]:
    """Load a file with some members, and with the hashes that fit them."""

    def load(files: dict[str, bytes]) -> Executable:
        path = tmp_path / "changed.dodeca"
        path.write_bytes(pack(files))
        return dd.load(path, threads=1)

    return load


def first(key: str, value: Any) -> Any:
    """Set a field of a CPU."""
    return setting("cpu", key, value)


REFUSED = {
    "a later format": (setting("format", 2), ParseError, "it has format 2, by dodeca .*save it"),
    "another driver": (setting("driver", 2), ParseError, "save it again"),
    "no format": (lambda m: m.pop("format"), ParseError, "it has no format"),
    "a field more": (setting("code", "x"), ParseError, "'code' is unknown or missing"),
    "a list": (setting("cpu", []), ParseError, "cpu: expected an architecture"),
    "features as text": (first("features", "avx"), ParseError, "cpu: expected an architecture"),
    "another machine": (
        first("architecture", "s390x"),
        TargetError,
        "was compiled for s390x; this",
    ),
    "features that are missing": (
        first("features", ["sse2", "avx512er", "amx.new"]),
        TargetError,
        r"compiled for a .*; this CPU lacks avx512er, amx.new",
    ),
    "another target": (setting("target", "hip:gfx942"), ParseError, "target are not those"),
    "other inputs": (setting("inputs", 0, "dtype", "int8"), ParseError, "inputs are not those"),
    "other outputs": (setting("outputs", []), ParseError, "outputs are not those"),
    "no data": (setting("data", []), ParseError, r"the array of buffer \d+ is missing"),
    "data of what is none": (setting("data", ["../x"]), ParseError, "expected a list of buffers"),
    "data of no buffer": (setting("data", [99]), ParseError, "there is no buffer 99"),
    "data of an input": (setting("data", [0]), ParseError, "buffer 0 is no weight"),
    "weights": (setting("weights", [1]), ParseError, "weights are not those of the program"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_manifests_that_are_refused(what: str, saved: Path, reload: Any) -> None:
    change, error, message = REFUSED[what]
    with pytest.raises(error, match=message) as caught:
        reload(with_manifest(saved, change))
    assert str(caught.value).count("changed.dodeca") == 1


def test_members_that_are_missing_or_of_another_size(saved: Path, reload: Any) -> None:
    files = unpack(saved.read_bytes())
    data = next(name for name in files if name.startswith("data/"))
    for name, content, message in (
        ("code.so", None, "it has no code.so"),
        (data, None, f"it has no '{data}'"),
        (data, files[data][:-4], "bytes, its buffer"),
        ("program/program.json", None, "the program has no program.json"),
        ("code.so", b"", "not a 64-bit little-endian ELF file"),
        ("code.so", files["code.so"][:200], "cut off"),
        ("code.so", files["code.so"][:64] + b"\xff" * 2000, "is not a shared library"),
    ):
        changed = {**files, name: content}
        if content is None:
            del changed[name]
        with pytest.raises(ParseError, match=message):
            reload(changed)


def test_any_field_may_be_anything(exe: Executable, saved: Path, reload: Any) -> None:
    """Whatever a field becomes, loading fails with an Error of dodeca's, or calls still work."""
    values = [None, True, -1, 0, 3, 1 << 62, 0.5, "", "x", [], [0], {}, {"x": 0}]
    chance = np.random.default_rng(11)
    expected = exe(X)["y"]
    refused = loaded = 0
    for name in ("manifest.json", "program/program.json"):
        paths = places(json.loads(unpack(saved.read_bytes())[name]))
        for i in chance.permutation(len(paths))[:60]:
            change = setting(*paths[i], values[chance.integers(len(values))])
            try:
                made = reload(with_manifest(saved, change, name))
                np.testing.assert_array_equal(made.program.outputs, exe.program.outputs)
                result = made(X)
            except Error:
                refused += 1
                continue
            loaded += 1
            if isinstance(result, dict) and "y" in result:
                np.testing.assert_array_equal(result["y"], expected)
    assert refused > 80 and loaded > 0


# --- code


def test_code_that_would_run_when_it_is_loaded_is_refused(exe: Executable) -> None:
    text = """
@llvm.global_ctors = appending global [1 x { i32, ptr, ptr }]
  [{ i32, ptr, ptr } { i32 65535, ptr @early, ptr null }]
define internal void @early() { ret void }
"""
    made = toolchain.link_library([compile_for_host(llvm.parse_assembly(text), "x", False)], "x")
    for check in (check_library, lambda data: LibraryCode(data, {})):
        with pytest.raises(ParseError, match="it has DT_INIT_ARRAY"):
            check(made)
    check_library(library(exe.program.kernels))


def test_code_of_other_kernels_is_refused(exe: Executable) -> None:
    with pytest.raises(ParseError, match=r"its code has \d kernels, its plan 0"):
        LibraryCode(library(exe.program.kernels), {})
    other = toolchain.link_library(
        [compile_for_host(llvm.parse_assembly("define void @x() { ret void }"), "x")], "x"
    )
    with pytest.raises(ParseError, match="its code is not dodeca's"):
        LibraryCode(other, exe.program.kernels)


def test_code_may_come_by_way_of_a_file(
    exe: Executable, saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the system has no files in memory, or runs no code from them."""

    def none(name: str) -> int:
        raise OSError("not here")

    monkeypatch.setattr(os, "memfd_create", none)
    monkeypatch.setattr(shared_library, "_libraries", {})
    same(dd.load(saved)(X), exe(X))
    assert len(shared_library._libraries) == 1


def test_a_file_that_is_loaded_again_takes_no_more_files(saved: Path) -> None:
    dd.load(saved)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        dd.load(saved)
    assert len(os.listdir("/proc/self/fd")) == before


def test_what_linking_needs(
    exe: Executable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(toolchain, "find_linker", lambda: None)
    with pytest.raises(TargetError, match=r"no linker was found.*pip install ziglang"):
        exe.save(tmp_path / "x")
    monkeypatch.setattr(
        toolchain, "find_linker", lambda: (sys.executable, "-c", "raise SystemExit(3)")
    )
    with pytest.raises(CompileError, match=r"the linker failed:(.|\n)*the command was"):
        exe.save(tmp_path / "x")
    assert not (tmp_path / "x").exists()


def test_each_linker_will_do(exe: Executable, monkeypatch: pytest.MonkeyPatch) -> None:
    found = toolchain.find_linker()
    assert found
    for tool in {found, (*toolchain._ZIG, "ld.lld")}:
        monkeypatch.setattr(toolchain, "find_linker", lambda tool=tool: tool)
        code = LibraryCode(library(exe.program.kernels), exe.program.kernels)
        same(Executable(exe.program, NAMES, code=code, unflatten=exe.unflatten)(X), exe(X))


def hand_made(text: str, dtype: str) -> Executable:
    """float64 (4,) to a dtype, by a kernel `k` in LLVM IR."""
    made = kernel("k", text, 1, (((4,), "float64"), ((4,), dtype)))
    buffers = [vector("input", 4, "x", "float64"), vector("output", 4, "", dtype)]
    return Executable(program([made], buffers, [("k", (0, 1))], (0,), (1,)), {})


def test_conversions_that_the_cpu_lacks_are_inside(tmp_path: Path) -> None:
    made = hand_made(
        """define void @k(ptr %a, ptr %b, i64 %begin, i64 %end) {
  %x = load double, ptr %a
  %y = fptrunc double %x to bfloat
  store bfloat %y, ptr %b
  ret void
}""",
        "bfloat16",
    )
    assert ("__truncdfbf2", False) in elf_symbols(made.kernels[0].binary)
    made.save(tmp_path / "made")
    x = np.array([1 / 3, 0, 0, 0])
    assert dd.load(tmp_path / "made")(x)[0] == x.astype(ml_dtypes.bfloat16)[0]


def test_code_that_uses_more_of_this_process_cannot_be_saved(tmp_path: Path) -> None:
    made = hand_made(
        """declare double @erfc(double)
define void @k(ptr %a, ptr %b, i64 %begin, i64 %end) {
  %x = load double, ptr %a
  %y = call double @erfc(double %x)
  store double %y, ptr %b
  ret void
}""",
        "float64",
    )
    assert made(np.zeros(4))[0] == 1
    with pytest.raises(CompileError, match="uses 'erfc', which a file cannot bring along"):
        made.save(tmp_path / "made")


def test_kernels_with_many_arguments(tmp_path: Path) -> None:
    """More than those whose trampolines come with the driver."""
    made = dd.compile(lambda *xs: sum(xs[1:], start=xs[0]), *[dd.spec((4,))] * 30, threads=1)
    assert max(len(kernel.arguments) for kernel in made.kernels) > 17
    xs = RNG.normal(size=(30, 4)).astype(np.float32)
    made.save(tmp_path / "many")
    same(dd.load(tmp_path / "many")(*xs), made(*xs))


# --- the CPU


def test_what_this_cpu_has_is_found_without_llvm() -> None:
    needs = cpu_features.host_needs()
    assert cpu_features.missing_features(needs) == []
    if needs.architecture == "x86_64":
        assert {"sse2", "sse4.2"} <= {*needs.features}
        assert not {"aes", "rdrnd", "xsave", "64bit"} & {*needs.features}
        has = {name for name, here in llvm.get_host_cpu_features().items() if here}
        renamed = {"sse3", "bmi", "lzcnt", "sahf", "avx512vnni", "avx512bf16", "avxvnni"}
        assert has & renamed <= {*needs.features}  # Linux knows them by other names


def test_without_proc_nothing_is_taken_for_granted(
    saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(artifact, "host_flags", frozenset)
    with pytest.raises(TargetError, match="/proc/cpuinfo cannot be read"):
        dd.load(saved)
    monkeypatch.undo()
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(TargetError, match="was compiled for Linux; this system is darwin"):
        dd.load(saved)
