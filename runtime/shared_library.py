"""A program's kernels as a shared library: linked when it is saved, loaded without LLVM.

    data = library(program.kernels)               # an ELF file, some tens of kilobytes
    code = LibraryCode(data, program.kernels)     # in this process, or in another one
    code.entry(program.kernels["k0"])             # (trampoline, kernel)

The library has the kernels, a trampoline for each number of arguments, the driver with its threads,
and the float conversions that the CPU lacks. It exports tables (`driver_ir.tables`) and the driver;
of other libraries it uses the C library alone. It has no code that runs when it is loaded.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import threading
from collections.abc import Mapping, Sequence

from ..dialect.errors import CompileError, ParseError
from .driver import install
from .driver_ir import ENTRIES, EXTERNAL, driver, tables, trampolines
from .elf import elf_dynamic, elf_symbols
from .program import Kernel

_NEEDED = 1  # the tag of an entry that names another library
_RUN_WHEN_LOADED = {12: "DT_INIT", 25: "DT_INIT_ARRAY", 32: "DT_PREINIT_ARRAY"}
_RUN_WHEN_UNLOADED = {13: "DT_FINI", 26: "DT_FINI_ARRAY"}


def objects(kernels: Mapping[str, Kernel]) -> list[bytes]:
    """All that a library of these kernels is linked from; CompileError if it would need more."""
    import llvmlite.binding as llvm

    from .conversions import CONVERSIONS
    from .jit import compile_for_host, conversions

    counts = {kernel.name: len(kernel.arguments) for kernel in kernels.values()}
    text = "\n".join([driver(), trampolines(counts.values()), tables(counts)])
    glue = compile_for_host(llvm.parse_assembly(text), "driver", optimise=False)
    found = [glue, *(kernel.binary for kernel in kernels.values())]
    lacking = _undefined(found)
    if lacking & {*CONVERSIONS}:
        found.append(conversions())
        lacking = _undefined(found)
    if lacking - EXTERNAL:
        name = min(lacking - EXTERNAL)
        raise CompileError(f"compiled code uses {name!r}, which a file cannot bring along")
    return found


def _undefined(parts: Sequence[bytes]) -> set[str]:
    symbols = [symbol for data in parts for symbol in elf_symbols(data)]
    return {name for name, _ in symbols} - {name for name, here in symbols if here}


def library(kernels: Mapping[str, Kernel]) -> bytes:
    """A shared library of these kernels; TargetError if there is no linker."""
    from .toolchain import link_library

    return link_library(objects(kernels), "dodeca_*")


def check_library(data: bytes) -> None:
    """ParseError unless loading these bytes runs no code and no other library's."""
    for tag, value in elf_dynamic(data):
        if tag == _NEEDED or (value and tag in (_RUN_WHEN_LOADED | _RUN_WHEN_UNLOADED)):
            what = (_RUN_WHEN_LOADED | _RUN_WHEN_UNLOADED).get(tag, "another library")
            raise ParseError(f"its code would run more than is called: it has {what}")


class LibraryCode:
    """A library in this process. It stays to the end: threads may stand in it.

    `data` is the library's bytes, `kernels` those that it was made of, in their order. ParseError
    if they do not fit or the library cannot be loaded.
    """

    def __init__(self, data: bytes, kernels: Mapping[str, Kernel]):
        check_library(data)
        self.data = data
        loaded = _loaded(data)
        try:
            count = ctypes.c_int64.in_dll(loaded, "dodeca_count").value
            if count != len(kernels):
                raise ParseError(f"its code has {count} kernels, its plan {len(kernels)}")
            table = ctypes.c_uint64 * count
            addresses = list(table.in_dll(loaded, "dodeca_kernels"))
            calls = list(table.in_dll(loaded, "dodeca_calls"))
            entries = {name: _address(loaded, name) for name in ENTRIES}
        except ValueError as error:
            raise ParseError(f"its code is not dodeca's: {error}") from None
        names = [kernel.name for kernel in kernels.values()]
        self._entries = dict(zip(names, zip(calls, addresses, strict=True), strict=True))
        install(entries.__getitem__)

    def entry(self, kernel: Kernel) -> tuple[int, int]:
        """The addresses of the trampoline for a kernel, and of the kernel."""
        return self._entries[kernel.name]


_libraries: dict[bytes, ctypes.CDLL] = {}
_loading = threading.Lock()


def _loaded(data: bytes) -> ctypes.CDLL:
    """The library of these bytes; equal ones are loaded once."""
    key = hashlib.sha256(data).digest()
    with _loading:
        if key not in _libraries:
            _libraries[key] = _load(data)
        return _libraries[key]


def _load(data: bytes) -> ctypes.CDLL:
    try:
        file = os.memfd_create("dodeca")
    except (AttributeError, OSError):  # an old or a strict kernel
        return _load_from_file(data)
    os.write(file, data)
    # The file stays open: the loader knows libraries by their paths, and this one must not come to
    # mean another library. A debugger can read it there, too.
    try:
        return ctypes.CDLL(f"/proc/self/fd/{file}")
    except OSError:  # no /proc, or no code may be run from such a file
        os.close(file)
        return _load_from_file(data)


def _load_from_file(data: bytes) -> ctypes.CDLL:
    """By way of a file in a folder that only this user can look into, removed at once."""
    import tempfile

    with tempfile.TemporaryDirectory(prefix="dodeca-") as folder:
        path = os.path.join(folder, f"{hashlib.sha256(data).hexdigest()}.so")
        with open(path, "xb") as file:
            file.write(data)
        try:
            return ctypes.CDLL(path)
        except OSError as error:
            raise ParseError(f"its code cannot be loaded: {error}") from None


def _address(loaded: ctypes.CDLL, name: str) -> int:
    try:
        return ctypes.cast(getattr(loaded, name), ctypes.c_void_p).value or 0
    except AttributeError as error:
        raise ValueError(str(error)) from None
