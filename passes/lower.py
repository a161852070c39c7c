"""`dodeca-lower`: from tile programs to the LLVM dialect, and from there to machine code.

In: a module of tile functions (`func.func` for a CPU, a `gpu.module` for a GPU). Out: the `llvm`
dialect, LLVM IR, assembly (x86, PTX, AMDGPU ISA) and an object. Nothing but upstream passes and
LLVM; no library of device functions is linked.
"""

from __future__ import annotations

from dataclasses import dataclass

import llvmlite.binding as llvm
from mlir import ir
from mlir.dialects.llvm import (
    translate_module_to_llvmir as translate,  # pyright: ignore[reportAttributeAccessIssue]
)

from .expand import keep_sqrt
from .registry import NoOptions, register, register_pipeline
from .targets import Target, find_target

_CPU = (
    "convert-scf-to-cf,convert-vector-to-llvm,finalize-memref-to-llvm,"
    "convert-math-to-llvm,convert-arith-to-llvm,convert-index-to-llvm,"
    "convert-func-to-llvm{use-bare-ptr-memref-call-conv=1},convert-cf-to-llvm,convert-ub-to-llvm,"
    "reconcile-unrealized-casts,canonicalize,cse"
)
_GPU_FIRST = "gpu.module(convert-scf-to-cf,convert-vector-to-llvm,convert-math-to-llvm)"
_GPU_LAST = {
    "cuda": "gpu.module(convert-gpu-to-nvvm{use-bare-ptr-memref-call-conv=1},convert-nvvm-to-llvm,"
    "reconcile-unrealized-casts,canonicalize,cse)",
    "hip": "gpu.module(convert-gpu-to-rocdl{chipset=CHIP use-bare-ptr-memref-call-conv=1 "
    "runtime=HIP},reconcile-unrealized-casts,canonicalize,cse)",
}


@dataclass(frozen=True)
class LowerOptions:
    """For which target."""

    target: str = "cpu"


@register("dodeca-keep-sqrt", "Hides square roots from the lowering that wants library calls")
def _keep_sqrt_pass(module: ir.Operation, options: NoOptions) -> None:
    keep_sqrt(module)


@register_pipeline("dodeca-lower", "Lowers tile programs to the LLVM dialect", LowerOptions)
def lowering(options: LowerOptions) -> str:
    """The passes, upstream's but for one, that lower tile programs for a target."""
    target = find_target(options.target)
    if not target.is_gpu:
        return _CPU
    last = _GPU_LAST[target.family].replace("CHIP", target.chip)
    return f"{_GPU_FIRST},dodeca-keep-sqrt,{last}"


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


def generate(llvm_ir: str, target: Target) -> Code:
    """Optimise LLVM IR for a target and emit it as text and as an object (for PTX, the text)."""
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
    text = machine.emit_assembly(llvm.parse_assembly(optimised))
    if target.family == "cuda":
        return Code(optimised, text, text.encode())
    return Code(optimised, text, machine.emit_object(llvm.parse_assembly(optimised)))
