"""From the LLVM dialect to machine code: LLVM IR and an object (for PTX and AMDGPU ISA, text too).

    target = find_target("cpu")
    code = generate(to_llvm_ir(lowered, target), target)
    code.binary                           # the bytes of an ELF file

Nothing but LLVM; no library of device functions is linked.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import llvmlite.binding as llvm
from mlir import ir
from mlir.dialects.llvm import (
    translate_module_to_llvmir as translate,  # pyright: ignore[reportAttributeAccessIssue]
)

from .passes.targets import Target


def to_llvm_ir(module: ir.Operation, target: Target) -> str:
    """The text of the LLVM IR of a lowered module.

    A CPU's says for which chip it is, so that it gives the same code wherever it is compiled.
    """
    root = module
    for op in module.regions[0].blocks[0].operations:
        if op.operation.name == "gpu.module":
            root = op.operation
        elif op.operation.name == "llvm.func" and not target.is_gpu:
            op.attributes["target_cpu"] = ir.StringAttr.get(target.chip)
            if target.features:
                op.attributes["target_features"] = _features(target)
    # shared memory has the size that a launch says: defined here, it would have no bytes
    return re.sub(
        r"= private (addrspace\(3\) global \[0 x i8\]) undef", r"= external \1", translate(root)
    )


def _features(target: Target) -> ir.Attribute:
    names = ", ".join(f'"{name}"' for name in target.features.split(","))
    return ir.Attribute.parse(f"#llvm.target_features<[{names}]>")


@dataclass(frozen=True)
class Code:
    """Machine code of a module: optimised LLVM IR, the object's bytes, and a GPU's as text."""

    llvm_ir: str
    binary: bytes
    assembly: str = ""


def generate(llvm_ir: str, target: Target) -> Code:
    """Optimise LLVM IR for a target and emit it as an object; for PTX that is the text."""
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
    # code generation changes the module, and text that is parsed is what others compile again
    if not target.is_gpu:
        return Code(optimised, machine.emit_object(llvm.parse_assembly(optimised)))
    text = machine.emit_assembly(llvm.parse_assembly(optimised))
    if target.family == "cuda":
        return Code(optimised, text.encode(), text)
    return Code(optimised, machine.emit_object(llvm.parse_assembly(optimised)), text)
