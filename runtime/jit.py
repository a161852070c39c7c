"""LLVM's just-in-time compiler: IR to objects for this CPU, objects to code in memory.

engine = load_objects([compile_for_host(llvm.parse_assembly(text), "k0")])
address = engine.get_function_address("k0")
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import llvmlite.binding as llvm

from ..dialect.errors import CompileError
from .conversions import CONVERSIONS, CONVERSIONS_IR
from .elf import elf_symbols


def host_machine() -> llvm.TargetMachine:
    """LLVM's code generator for this CPU, for code that is run in this process."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return llvm.Target.from_default_triple().create_target_machine(
        cpu=llvm.get_host_cpu_name(), features=llvm.get_host_cpu_features().flatten(), jit=True
    )


def compile_for_host(module: llvm.ModuleRef, name: str, optimise: bool = True) -> bytes:
    """An LLVM module as an object file for this CPU. The module is used up."""
    machine = host_machine()
    module.triple, module.data_layout = machine.triple, str(machine.target_data)
    try:
        module.verify()
    except RuntimeError as error:
        raise CompileError(f"{name}: {error}\n{module}") from error
    if optimise:
        builder = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options())
        builder.getModulePassManager().run(module, builder)
    return machine.emit_object(module)


def load_objects(objects: Sequence[bytes]) -> llvm.ExecutionEngine:
    """Object files in executable memory, linked with each other; freed with the engine.

    A name that neither they nor this process define raises CompileError: LLVM would abort.
    """
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), host_machine())
    symbols = [symbol for data in objects for symbol in elf_symbols(data)]
    defined = {name for name, here in symbols if here}
    for name in {name for name, _ in symbols} - defined:
        if not llvm.address_of_symbol(name) and name in CONVERSIONS:
            _provide_conversions()
        if not llvm.address_of_symbol(name):
            raise CompileError(f"compiled code uses {name!r}, which this process does not have")
    for data in objects:
        engine.add_object_file(llvm.ObjectFileRef.from_data(data))
    engine.finalize_object()
    return engine


@cache
def _provide_conversions() -> None:
    engine = load_objects([compile_for_host(llvm.parse_assembly(CONVERSIONS_IR), "conversions")])
    for name in CONVERSIONS:
        if not llvm.address_of_symbol(name):
            llvm.add_symbol(name, engine.get_function_address(name))
    engine.detach()  # never freed: any code may call into it
