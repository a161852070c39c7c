"""Tools that other people ship: ptxas, which assembles PTX, and lld, which links AMD code objects.

None of them is needed to compile; where one is present it gives binaries and facts.

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
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from ..dialect.errors import CompileError, TargetError
from .code_object import read_amdgpu_metadata
from .environment import flag

__all__ = ["assemble_ptx", "find_lld", "find_ptxas", "link_amdgpu", "read_amdgpu_metadata"]

_OLDEST_LLD = 17  # Debian's 14 rejects today's AMD objects


@cache
def find_ptxas() -> str | None:
    """The path of ptxas: in CUDA_HOME, from PyPI's nvidia-cuda-nvcc, or on PATH."""
    return next(_ptxas_places(), None)


def _ptxas_places() -> Iterator[str]:
    home = flag("CUDA_HOME") or flag("CUDA_PATH")
    if home and (found := shutil.which("ptxas", path=str(Path(home) / "bin"))):
        yield found
    spec = importlib.util.find_spec("nvidia")  # a namespace package of all of NVIDIA's wheels
    for place in spec.submodule_search_locations or () if spec else ():
        yield from sorted(map(str, Path(place).glob("**/bin/ptxas")), reverse=True)
    if found := shutil.which("ptxas"):
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
