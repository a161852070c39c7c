"""What a cubin is made of: its instructions, by opcode, as nvdisasm writes them.

    >>> cubin, _ = assemble_ptx(kernel.text, "sm_80")
    >>> opcodes(cubin)["HMMA"]
    64

nvdisasm is found as ptxas is (`toolchain`): in CUDA_HOME, from PyPI's nvidia-cuda-nvdisasm, or on
PATH.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections import Counter
from functools import cache
from pathlib import Path

from ..dialect.errors import CompileError, TargetError
from .toolchain import nvidia_tool

# /*0250*/   @!P0 LDG.E.128.CONSTANT R4, [R2.64] ;
_INSTRUCTION = re.compile(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_]*)")


@cache
def find_nvdisasm() -> str | None:
    """The path of nvdisasm."""
    return nvidia_tool("nvdisasm")


def disassemble(cubin: bytes) -> str:
    """A cubin's instructions as text.

    TargetError: there is no nvdisasm. CompileError has its words.
    """
    tool = find_nvdisasm()
    if tool is None:
        raise TargetError("nvdisasm was not found: pip install nvidia-cuda-nvdisasm")
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "kernel.cubin"
        source.write_bytes(cubin)
        ran = subprocess.run([tool, "-c", str(source)], capture_output=True, text=True, check=False)
    if ran.returncode:
        raise CompileError(f"nvdisasm failed:\n{(ran.stdout + ran.stderr).strip()}")
    return ran.stdout


def opcodes(cubin: bytes) -> dict[str, int]:
    """How many instructions of each opcode a cubin has, without what fills it up (NOP)."""
    found = Counter(_INSTRUCTION.findall(disassemble(cubin)))
    found.pop("NOP", None)
    return dict(found.most_common())
