"""An executable to look into: a folder with the code at every stage and a manifest.

    manifest.json   buffers, plan, kernels and what is known of them, as plain data
    module.mlir     the graph;  kernels.mlir  the kernels as the e-graph left them
    k0.tile.mlir  k0.llvm.mlir  k0.ll  k0.s (or .ptx, .isa)  k0.o    for every kernel

Weights are not in it, and nothing reads it again: `artifact.py` writes files that run.
"""

from __future__ import annotations

import json
import os
import shutil
import uuid
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..dialect.errors import ArgumentError
from .program import Kernel, Program

FORMAT = 1
_TEXT = {"cpu": "s", "cuda": "ptx", "hip": "isa"}
_MODULES = {"dodeca": "module.mlir", "kernels": "kernels.mlir"}


def dump(program: Program, scratch_bytes: int, path: str | os.PathLike[str]) -> None:
    """Write the folder beside `path`, then give it its name: a reader never sees half of one.

    A folder that was written earlier is replaced; anything else of that name raises ArgumentError.
    """
    final = Path(path)
    if final.exists() and not (final / "manifest.json").is_file():
        raise ArgumentError(f"dump: {final} exists and is not the folder of an executable")
    mark = uuid.uuid4().hex[:8]
    made = final.with_name(f".{final.name}.{mark}.new")
    old = final.with_name(f".{final.name}.{mark}.old")
    made.mkdir(parents=True)
    try:
        for name, data in _files(program, scratch_bytes).items():
            (made / name).write_bytes(data)
        if final.exists():
            final.rename(old)
        made.rename(final)
    finally:
        shutil.rmtree(made, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)


def _files(program: Program, scratch_bytes: int) -> dict[str, bytes]:
    texts = {_MODULES.get(stage, f"{stage}.mlir"): text for stage, text in program.stages.items()}
    manifest = json.dumps(_manifest(program, scratch_bytes), indent=1, default=str)
    texts["manifest.json"] = manifest + "\n"
    files = {name: text.encode() for name, text in texts.items()}
    for kernel in program.kernels.values():
        files.update(_kernel_files(kernel))
    return files


def _kernel_files(kernel: Kernel) -> dict[str, bytes]:
    files = {f"{kernel.name}.{stage}.mlir": text.encode() for stage, text in kernel.stages.items()}
    text = kernel.text.encode()
    files[f"{kernel.name}.ll"] = kernel.llvm_ir.encode()
    files[f"{kernel.name}.{_TEXT.get(kernel.target.split(':')[0], 'txt')}"] = text
    if kernel.binary not in (text, b""):  # for PTX the text is the binary; a loaded CPU has none
        files[f"{kernel.name}.o"] = kernel.binary
    return files


def _manifest(program: Program, scratch_bytes: int) -> dict[str, Any]:
    def launches(plan: tuple[Any, ...]) -> list[dict[str, Any]]:
        return [asdict(launch) for launch in plan]

    kernels = {}
    for key, kernel in program.kernels.items():
        kernels[key] = {
            "name": kernel.name,
            "grid": kernel.grid,
            "block": kernel.block,
            "arguments": [{"shape": shape, "dtype": dtype} for shape, dtype in kernel.arguments],
            "outputs": kernel.outputs,
            "fused": kernel.fused,
            "resources": kernel.resources,
            "files": sorted(_kernel_files(kernel)),
        }
    return {
        "format": FORMAT,
        "target": program.target,
        "kernels": kernels,
        "buffers": [asdict(buffer) | {"bytes": buffer.bytes} for buffer in program.buffers],
        "prepare": launches(program.prepare),
        "plan": launches(program.plan),
        "inputs": program.inputs,
        "outputs": program.outputs,
        "weights": program.weights,
        "scratch_bytes": scratch_bytes,
        "report": program.report,
    }
