"""Programs from the cache, or compiled and kept there; and what their keys say.

    program = find_program(graph.module, "layer", Options(search=Search(seconds=60)))

What a search once found for a graph on this machine is used by all that compile it later, without
another search and without the e-graph.

A key names all that a program's bytes depend on: the graph's own text, the target with the features
of this machine, the precision, and the compiler, which is the text of its own modules and the
versions of the libraries that do the rest.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import replace

from mlir import ir

from .compile import Options, Search
from .dialect.errors import Error
from .dialect.ops import entry_function
from .passes.targets import Target
from .runtime.cache_folder import Store, cache_folder
from .runtime.cpu import thread_count
from .runtime.database import Choice, Database, Key
from .runtime.device import find_target, no_launch
from .runtime.identity import compiler_version, identity
from .runtime.program import Program
from .runtime.serial import decode, encode, pack, unpack

_ARGUMENTS = re.compile(r"%arg\d+: tensor<([^>]*)>( \{dodeca\.weight)?")
_NAMES = re.compile(r'dodeca\.(name|weight) = "(?:[^"\\]|\\.)*"')


def find_program(module: ir.Module, name: str, options: Options) -> Program:
    """The program of a module's first function, from wherever it is had soonest.

    `name` is the user's name of the function. TargetError where a search is asked for and there is
    no device to measure on.
    """
    target, text, search = find_target(options.target), str(module), options.search
    threads = 0 if target.is_gpu else thread_count(options.threads)
    if search is not None and target.name != "cpu":
        raise no_launch(target.name, "search for programs")
    with Database() as database:
        device = identity(target.name, threads)
        choice = database.choice(graph_key(text, target, options.precision, device))
        if search is not None and not (choice is not None and _is_enough(choice, search)):
            from .tune import tune

            program = tune(module, name, target, options.precision, threads, search, database)
            kernels = program.stages["kernels"]
            keep_program(program_key(f"{text}{kernels}", target, options.precision), program)
            return program
    kernels = "" if choice is None else choice.kernels
    key = program_key(f"{text}{kernels}", target, options.precision)
    program = load_program(key)
    if program is None:
        program = _compiled(module, kernels, target, options.precision)
        keep_program(key, program)
    return program


def _compiled(module: ir.Module, kernels: str, target: Target, precision: str) -> Program:
    """The program of a module, with kernels that a search has chosen for it, if there are some."""
    from .pipeline import Clock, compile_kernels, compile_module

    if not kernels:
        return compile_module(module, target=target.name, precision=precision)
    with module.context, ir.Location.unknown():
        facts = {"precision": precision, "chosen by": "an earlier search"}
        chosen = chosen_module(kernels, module)
        return compile_kernels(chosen, str(module), target, precision, Clock(), facts)


def chosen_module(kernels: str, module: ir.Module) -> ir.Module:
    """The module of kernels that a text says, with the names of this module's arguments."""
    chosen = ir.Module.parse(kernels)
    main, given = (entry_function(m.operation) for m in (chosen, module))
    if "arg_attrs" in given.attributes:
        main.attributes["arg_attrs"] = given.attributes["arg_attrs"]
    return chosen


def _is_enough(choice: Choice, search: Search) -> bool:
    """Whether an earlier search had at least the budget that is asked for now."""
    seconds, candidates = search.seconds or 0.0, search.candidates or 0
    return choice.budget >= seconds and choice.candidates >= candidates


def graph_key(text: str, target: Target, precision: str, device: str) -> Key:
    """The key of a whole graph in the database, given its module's text."""
    signature = text.partition("@")[2].partition(" {\n")[0]
    inputs = [kind for kind, weight in _ARGUMENTS.findall(signature) if not weight]
    graph, words = canonical_hash(text), ", ".join(inputs)[:1000]
    return Key(graph, words, precision, target.name, device, compiler_version())


def canonical_hash(text: str) -> str:
    """A hash of a graph's meaning: of its module's text, without the names of its arguments."""
    return hashlib.sha256(_NAMES.sub(r"dodeca.\1", text).encode()).hexdigest()


def program_key(text: str, target: Target, precision: str) -> str:
    """The key of the program that a module's text is compiled to."""
    digest = hashlib.sha256(text.encode()).hexdigest()
    return f"program {digest} {target!r} {precision} {compiler_version()}"


def load_program(key: str) -> Program | None:
    """The program that was kept under a key, if it is there and whole."""
    data = Store(cache_folder()).get(key)
    if data is None:
        return None
    try:
        program = decode(unpack(data))
    except Error:  # of another format, say
        return None
    return replace(program, report={**program.report, "from the cache": True})


def keep_program(key: str, program: Program) -> None:
    """Keep a program for other processes."""
    Store(cache_folder()).put(key, pack(encode(program)))
