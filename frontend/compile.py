"""`compile` and `jit`: from a function or graph to an Executable on a target.

    >>> step = dd.compile(lambda x: dd.softmax(x), dd.spec((4, 128)))
    >>> step(np.ones((4, 128), np.float32))

The compiler and the runtime are imported by the first program that needs them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from .dialect.errors import ArgumentError, Error
from .emit import in_order
from .shapes import Dim
from .tensor import Tensor
from .trace import Graph, check_arguments, sizes_of, trace

PRECISIONS = ("fast", "strict")


@dataclass(frozen=True)
class Search:
    """How to look for a faster program: what it may cost, where it runs, and the random seed.

    It ends at `seconds` from the start of the compilation, or when `candidates` kernels were tried,
    whichever is first; without either, when no kernel gets faster any more. `workers` processes
    compile (by default one a core), and one measures; with `cluster`, the address of a Ray cluster
    ("auto", "local"), its nodes do both. `progress` shows a bar; by default on a terminal.
    """

    seconds: float | None = None
    candidates: int | None = None
    seed: int = 0
    workers: int | None = None
    cluster: str | None = None
    progress: bool | None = None

    def __post_init__(self) -> None:
        for name in ("seconds", "candidates", "workers"):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not value > 0):
                raise ArgumentError(f"Search: {name} is {value!r}; expected a number above 0")


@dataclass(frozen=True)
class Options:
    """What a compilation is asked for."""

    target: str = "cpu"
    search: Search | None = None
    precision: str = "fast"
    threads: int | None = None

    def __post_init__(self) -> None:
        if self.precision not in PRECISIONS:
            raise ArgumentError(
                f"compile: precision is {' or '.join(PRECISIONS)}, not {self.precision!r}"
            )
        if self.search is not None and not isinstance(self.search, Search):
            raise ArgumentError(f"compile: search is a dd.Search or None, not {self.search!r}")


def compile(
    function: Callable[..., Any] | Graph,
    *specs: Any,
    target: str = "cpu",
    search: Search | None = None,
    precision: str = "fast",
    threads: int | None = None,
) -> Any:
    """An Executable of a function (traced with the specs) or of a graph.

    With Dims in the specs it is a Specialised, which compiles for each set of sizes that it is
    called with. `precision="strict"` keeps every rounding of the program, "fast" may reassociate;
    `threads` is how many run it. With `search`, candidates are compiled, checked and timed on this
    machine, and the fastest right program is kept for all later processes; without, that program is
    used if there is one, else what the cost model chooses. TargetError for an unknown target, or to
    search for one that is not here; CompileError where a stage fails.
    """
    options = Options(target, search, precision, threads)
    if isinstance(function, Graph):
        if specs:
            raise ArgumentError("compile: a Graph has its specs; leave them out")
        graph = function
    else:
        graph = trace(function, *specs)
    return Specialised(graph, options) if graph.dims else _executable(graph, options)


def _executable(graph: Graph, options: Options) -> Any:
    from .program_cache import find_program
    from .runtime.executable import Executable

    name = getattr(graph.function, "__qualname__", "") or "main"
    program = find_program(graph.module, name, options)
    return Executable(program, graph.weights, threads=options.threads, unflatten=graph.unflatten)


@dataclass
class Specialised:
    """A program with sizes that its arguments decide: one Executable for each set of sizes."""

    graph: Graph
    options: Options
    executables: dict[tuple[tuple[str, int], ...], Any] = field(default_factory=dict)

    def __call__(self, *arrays: Any) -> Any:
        """Run the Executable for the sizes of these arrays; ArgumentError for one out of range."""
        given = check_arguments(self.graph.inputs, arrays)
        return self.specialise(**sizes_of(self.graph.inputs, given))(*arrays)

    def specialise(self, **sizes: int) -> Any:
        """The Executable for these sizes, by the names of the Dims; compiled once."""
        key = tuple(sorted(sizes.items()))
        if key not in self.executables:
            self.executables[key] = _executable(with_sizes(self.graph, sizes), self.options)
        return self.executables[key]


def with_sizes(graph: Graph, sizes: dict[str, int]) -> Graph:
    """The graph traced again with numbers for its Dims; ArgumentError if one does not fit."""
    if graph.function is None:
        raise Error(
            "compile: a module with dynamic sizes cannot be specialised; trace the function"
        )
    for dim in graph.dims:
        if dim.name not in sizes or not dim.low <= sizes[dim.name] <= dim.high:
            raise ArgumentError(
                f"the size {dim} is {sizes.get(dim.name)}, expected {dim.low} to {dim.high}"
            )
    specs = [
        replace(s, shape=tuple(sizes[z.name] if isinstance(z, Dim) else z for z in s.shape))
        for s in graph.inputs
    ]
    return trace(graph.function, *specs)


def jit(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """The function, compiled for the shapes and dtypes of each call's arrays, once for each.

    `options` are those of `compile`. Arrays that the function uses besides its arguments are those
    of the first call with such shapes.
    """
    compiled: dict[tuple[Any, ...], Any] = {}

    def run(*arrays: Any) -> Any:
        given = [np.asarray(a) for a in arrays]
        key = tuple((a.shape, a.dtype) for a in given)
        if key not in compiled:
            compiled[key] = compile(function, *given, **options)
        return compiled[key](*given)

    return run


def value_of(x: Tensor) -> np.ndarray:
    """The value of an expression without inputs, compiled for the CPU."""
    if any(node.op == "input" for node in in_order([x])):
        raise Error(
            f"the value of {x!r} depends on an input and is not known while tracing; "
            "use where instead of if"
        )
    return np.asarray(compile(lambda: x)())
