"""Tools that other people ship: ptxas for PTX, linkers for AMD's and this CPU's code, C compilers.

None of them is needed to compile and run; where one is present it gives binaries and facts. To save
an executable for a CPU takes a linker.

    >>> cubin, resources = assemble_ptx(kernel.text, "sm_90")
    >>> resources
    {'registers': 24, 'spill_bytes': 0, 'shared_bytes': 0, 'stack_bytes': 0}
"""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

from ..dialect.errors import CompileError, TargetError
from .code_object import read_amdgpu_metadata
from .container import Bytes
from .environment import flag

__all__ = [
    "assemble_ptx",
    "build_c_library",
    "find_c_compiler",
    "find_linker",
    "find_lld",
    "find_ptxas",
    "link_amdgpu",
    "link_library",
    "read_amdgpu_metadata",
]

_OLDEST_LLD = 17  # Debian's 14 rejects today's AMD objects


@cache
def find_ptxas() -> str | None:
    """The path of ptxas: in CUDA_HOME, from PyPI's nvidia-cuda-nvcc, or on PATH."""
    return nvidia_tool("ptxas")


def nvidia_tool(name: str) -> str | None:
    """The path of a tool of CUDA's: in CUDA_HOME, from NVIDIA's wheels, or on PATH."""
    return next(_places(name), None)


def _places(name: str) -> Iterator[str]:
    home = flag("CUDA_HOME") or flag("CUDA_PATH")
    if home and (found := shutil.which(name, path=str(Path(home) / "bin"))):
        yield found
    spec = importlib.util.find_spec("nvidia")  # a namespace package of all of NVIDIA's wheels
    for place in spec.submodule_search_locations or () if spec else ():
        yield from sorted(map(str, Path(place).glob(f"**/bin/{name}")), reverse=True)
    if found := shutil.which(name):
        yield found


def assemble_ptx(text: str, chip: str) -> tuple[bytes, dict[str, int]]:
    """PTX as a cubin for a chip ("sm_90a"), and what its hungriest kernel uses.

    CompileError has ptxas' words and a command that repeats them; TargetError: there is no ptxas.
    """
    tool = find_ptxas()
    if tool is None:
        raise TargetError("ptxas was not found: pip install nvidia-cuda-nvcc, or set CUDA_HOME")
    with tempfile.TemporaryDirectory() as folder:
        source, made = Path(folder) / "kernel.ptx", Path(folder) / "kernel.cubin"
        source.write_text(text)
        command = [tool, "-v", f"-arch={chip}", str(source), "-o", str(made)]
        ran = subprocess.run(command, capture_output=True, text=True, check=False)
        said = ran.stdout + ran.stderr
        if ran.returncode:
            raise _failed("ptxas", command, source, said)
        return made.read_bytes(), _resources(said)


def _failed(tool: str, command: list[str], source: Path, said: str) -> CompileError:
    """The error of a tool: its input is kept, so that the command can be run again."""
    handle, kept = tempfile.mkstemp(suffix=source.suffix, prefix="dodeca-")
    os.close(handle)
    shutil.copyfile(source, kept)
    again = [kept if part == str(source) else part for part in command]
    if "-o" in again:
        again[again.index("-o") + 1] = os.devnull
    return CompileError(f"{tool} failed:\n{said.strip()}\nrepeat it with: {shlex.join(again)}")


def _resources(said: str) -> dict[str, int]:
    def most(pattern: str) -> int:
        return max((int(found) for found in re.findall(pattern, said)), default=0)

    return {
        "registers": most(r"Used (\d+) registers"),
        "spill_bytes": most(r"(\d+) bytes spill stores"),
        "shared_bytes": most(r"(\d+) bytes smem"),
        "stack_bytes": most(r"(\d+) bytes stack frame"),
    }


@cache
def find_lld() -> tuple[str, ...] | None:
    """The start of a command that runs ld.lld 17 or newer: ROCm's, PATH's, or PyPI's ziglang."""
    rocm = Path(flag("ROCM_PATH", "/opt/rocm")) / "llvm" / "bin"
    for place in (str(rocm), os.environ.get("PATH", "")):
        tool = shutil.which("ld.lld", path=place)
        if tool and _lld_version(tool) >= _OLDEST_LLD:
            return (tool,)
    if importlib.util.find_spec("ziglang"):
        return (sys.executable, "-m", "ziglang", "ld.lld")
    return None


def _lld_version(tool: str) -> int:
    ran = subprocess.run([tool, "--version"], capture_output=True, text=True, check=False)
    found = re.search(r"LLD (\d+)", ran.stdout)
    return int(found[1]) if found else 0


def link_amdgpu(data: bytes) -> bytes:
    """An AMD object file as the code object that a driver loads."""
    tool = find_lld()
    if tool is None:
        raise TargetError("ld.lld 17 or newer was not found: pip install ziglang, or set ROCM_PATH")
    with tempfile.TemporaryDirectory() as folder:
        source, made = Path(folder) / "kernel.o", Path(folder) / "kernel.hsaco"
        source.write_bytes(data)
        command = [*tool, "-shared", "--no-undefined", str(source), "-o", str(made)]
        ran = subprocess.run(command, capture_output=True, text=True, check=False)
        if ran.returncode:
            raise _failed("ld.lld", command, source, ran.stdout + ran.stderr)
        return made.read_bytes()


# --- libraries for this CPU ---------------------------------------------------------------------

_MOST_SAID = 4000  # characters of a tool's own words in an error
_ZIG = (sys.executable, "-m", "ziglang")
# Only what is exported is seen from outside; all is bound when the library is loaded, and no page
# is both writable and executable.
_LIBRARY = ("-z", "now", "-z", "relro", "-z", "noexecstack", "-z", "noseparate-code")


@cache
def find_linker() -> tuple[str, ...] | None:
    """The start of a command that links ELF objects of this CPU: ld.lld, ld, or PyPI's ziglang."""
    for name in ("ld.lld", "ld"):
        if tool := shutil.which(name):
            return (tool,)
    return (*_ZIG, "ld.lld") if importlib.util.find_spec("ziglang") else None


@cache
def find_c_compiler() -> tuple[str, ...] | None:
    """The start of a command that compiles C for this CPU: cc, gcc, clang, or PyPI's ziglang."""
    for name in ("cc", "gcc", "clang"):
        if tool := shutil.which(name):
            return (tool,)
    return (*_ZIG, "cc") if importlib.util.find_spec("ziglang") else None


def link_library(objects: Sequence[bytes], exports: str) -> bytes:
    """Objects as a shared library with these exports ("dodeca_*") and no other library in it.

    TargetError: there is no linker. CompileError has the linker's words.
    """
    tool = find_linker()
    if tool is None:
        raise TargetError(
            "no linker was found (ld.lld or ld): pip install ziglang, or install lld or binutils"
        )
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        sources = _write_objects(folder, objects)
        (folder / "exports").write_text(f"{{ global: {exports}; local: *; }};")
        made, script = folder / "library.so", f"--version-script={folder / 'exports'}"
        command = [*tool, "-shared", "--build-id=none", *_LIBRARY, script]
        _run([*command, *map(str, sources), "-o", str(made)], "the linker")
        return made.read_bytes()


def build_c_library(
    source: str, objects: Sequence[bytes], exports: str, name: str, files: Mapping[str, Bytes]
) -> bytes:
    """C source and objects as a shared library of a name that needs the C library alone.

    `files` are what the source includes, headers and data, by name. TargetError: there is no
    compiler. CompileError has the compiler's words.
    """
    tool = find_c_compiler()
    if tool is None:
        raise TargetError("no C compiler was found (cc, gcc, clang): pip install ziglang, or one")
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        sources = _write_objects(folder, objects)
        (folder / "library.c").write_text(source)
        (folder / "exports").write_text(f"{{ global: {exports}; local: *; }};")
        for file, data in files.items():
            (folder / file).write_bytes(data)
        flags = ["-std=c11", "-O2", "-fPIC", "-shared"]
        # it is never unloaded, for its threads stay in it
        linking = [f"-Wl,-z,{word}" for word in ("now", "relro", "noexecstack", "nodelete")]
        linking += ["-Wl,--version-script=exports", f"-Wl,-soname,{name}"]
        command = [*tool, *flags, *linking, "library.c", *(path.name for path in sources)]
        _run([*command, "-o", name, "-lm", "-lpthread"], "the C compiler", folder)
        return (folder / name).read_bytes()


def _write_objects(folder: Path, objects: Sequence[bytes]) -> list[Path]:
    paths = [folder / f"{i}.o" for i in range(len(objects))]
    for path, data in zip(paths, objects, strict=True):
        path.write_bytes(data)
    return paths


def _run(command: Sequence[str], what: str, folder: Path | None = None) -> None:
    ran = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)
    if ran.returncode:
        said = (ran.stdout + ran.stderr).strip()[:_MOST_SAID]
        raise CompileError(f"{what} failed:\n{said}\nthe command was: {shlex.join(command)}")
