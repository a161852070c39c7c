"""From the LLVM dialect to machine code: LLVM IR, assembly (x86, PTX, AMDGPU ISA) and an object.

    code = generate(to_llvm_ir(lowered), find_target("cpu"))
    code.text                             # assembly

Nothing but LLVM; no library of device functions is linked.
"""

from __future__ import annotations

from dataclasses import dataclass

import llvmlite.binding as llvm
from mlir import ir
from mlir.dialects.llvm import (
    translate_module_to_llvmir as translate,  # pyright: ignore[reportAttributeAccessIssue]
)

from .passes.targets import Target


def to_llvm_ir(module: ir.Operation) -> str:
    """The text of the LLVM IR of a lowered module."""
    root = module
    for op in module.regions[0].blocks[0].operations:
        if op.operation.name == "gpu.module":
            root = op.operation
    return translate(root)


@dataclass(frozen=True)
class Code:
    """Machine code of a module: optimised LLVM IR, assembly text, and the object's bytes."""

    llvm_ir: str
    text: str
    binary: bytes


def generate(llvm_ir: str, target: Target, readable: bool = True) -> Code:
    """Optimise LLVM IR for a target and emit it as text and as an object (for PTX, the text).

    Where there is an object, text that nobody will read may be left out; the object is the same.
    """
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    module = llvm.parse_assembly(llvm_ir)
    chosen = llvm.Target.from_triple(target.triple)
    machine = chosen.create_target_machine(
        cpu=target.chip, features=target.features, opt=3, reloc="pic", codemodel="default"
    )
    module.triple, module.data_layout = target.triple, str(machine.target_data)
    options = llvm.create_pipeline_tuning_options(speed_level=3)
    builder = llvm.create_pass_builder(machine, options)
    builder.getModulePassManager().run(module, builder)
    optimised = str(module)
    # code generation changes the module, so each emission parses it anew
    if target.family == "cuda":
        text = machine.emit_assembly(llvm.parse_assembly(optimised))
        return Code(optimised, text, text.encode())
    binary = machine.emit_object(llvm.parse_assembly(optimised))
    if not readable:
        return Code("", "", binary)
    return Code(optimised, machine.emit_assembly(llvm.parse_assembly(optimised)), binary)
