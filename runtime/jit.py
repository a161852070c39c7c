"""LLVM's just-in-time compiler: IR to objects for this CPU, objects to code in memory.

engine = load_objects([compile_for_host(llvm.parse_assembly(text), "k0")])
address = engine.get_function_address("k0")
JitCode(program.kernels).entry(program.kernels["k0"])    # (trampoline, kernel)
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from functools import cache

import llvmlite.binding as llvm

from ..dialect.errors import CompileError
from .cache_folder import Store, cache_folder
from .conversions import CONVERSIONS, CONVERSIONS_IR
from .driver_ir import ENTRIES, driver, trampolines
from .elf import elf_symbols
from .program import Kernel

_USUAL = 16  # arguments: up to so many, the trampolines come with the driver
_locked = threading.RLock()


def host_machine(jit: bool = False) -> llvm.TargetMachine:
    """LLVM's code generator for this CPU; `jit`: for code that is run in this process alone."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return llvm.Target.from_default_triple().create_target_machine(
        cpu=llvm.get_host_cpu_name(),
        features=llvm.get_host_cpu_features().flatten(),
        opt=3,
        reloc="default" if jit else "pic",
        codemodel="jitdefault" if jit else "default",
        jit=jit,
    )


def compile_for_host(module: llvm.ModuleRef, name: str, optimise: bool = True) -> bytes:
    """An LLVM module as an object file for this CPU, which can lie anywhere in memory.

    The module is used up.
    """
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


def assembly_of(llvm_ir: str) -> str:
    """The assembly of LLVM IR that is optimised already and says what chip it is for."""
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    module = llvm.parse_assembly(llvm_ir)
    machine = llvm.Target.from_triple(module.triple).create_target_machine(
        opt=3, reloc="pic", codemodel="default"
    )
    return machine.emit_assembly(module)


def compile_text(text: str, name: str) -> bytes:
    """An object of LLVM IR that needs no optimising, kept from process to process.

    LLVM's passes would take several times as long, and such code is not where time goes.
    """
    store = Store(cache_folder())
    cpu, features = llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten()
    key = "\n".join([f"object for {cpu}", features, str(llvm.llvm_version_info), text])
    data = store.get(key)
    if data is None:
        data = compile_for_host(llvm.parse_assembly(text), name, optimise=False)
        store.put(key, data)
    return data


def load_objects(objects: Sequence[bytes]) -> llvm.ExecutionEngine:
    """Object files in executable memory, linked with each other; freed with the engine.

    A name that neither they nor this process define raises CompileError: LLVM would abort.
    """
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), host_machine(jit=True))
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


def conversions() -> bytes:
    """An object with the float conversions."""
    return compile_for_host(llvm.parse_assembly(CONVERSIONS_IR), "conversions")


@cache
def _provide_conversions() -> None:
    engine = load_objects([conversions()])
    for name in CONVERSIONS:
        if not llvm.address_of_symbol(name):
            llvm.add_symbol(name, engine.get_function_address(name))
    engine.detach()  # never freed: any code may call into it


class JitCode:
    """A program's kernels in executable memory, which is freed with this."""

    def __init__(self, kernels: Mapping[str, Kernel]):
        self._engine = load_objects([kernel.binary for kernel in kernels.values()])

    def entry(self, kernel: Kernel) -> tuple[int, int]:
        """The addresses of the trampoline for a kernel, and of the kernel."""
        return _trampoline(len(kernel.arguments)), self._engine.get_function_address(kernel.name)


@cache
def _addresses(text: str, names: tuple[str, ...]) -> dict[str, int]:
    """Functions of LLVM IR in this process, never freed: threads may stand in them."""
    engine = load_objects([compile_text(text, names[0])])
    found = {name: engine.get_function_address(name) for name in names}
    engine.detach()
    return found


def _driver() -> dict[str, int]:
    counts = range(_USUAL + 1)
    names = (*ENTRIES, *(f"dodeca_call_{count}" for count in counts))
    with _locked:
        return _addresses(driver() + trampolines(counts), names)


def driver_entry(name: str) -> int:
    """The address of a function of the driver, compiled for this process."""
    return _driver()[name]


def _trampoline(count: int) -> int:
    name = f"dodeca_call_{count}"
    if count <= _USUAL:
        return _driver()[name]
    with _locked:
        return _addresses(trampolines([count]), (name,))[name]
