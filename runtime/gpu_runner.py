"""A program on a GPU: its weights and scratch there, its plan as a graph that is replayed.

    runner = GpuRunner(program, {weight id: array})       # finds driver, device, code; uploads
    runner.call([x])                # numpy in, numpy out: copied through pinned memory
    runner.call([torch_tensor])     # on the device in, `DeviceArray` out: nothing is copied

The plan becomes one graph, built node by node and not captured: so each launch is known by its
node, and when a call brings other arrays, only the nodes that read or write them get new pointers.
Arrays of the host go through buffers that stay where they are, so a graph for them never changes.
DODECA_GRAPHS=off launches one by one instead; DODECA_GPU_CHECK=1 waits after each launch besides.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..dialect.dtypes import BY_NUMPY, DTYPES
from ..dialect.errors import ArgumentError, DeviceError
from .arguments import Inputs, as_array, describe
from .dlpack import DeviceView, device_type, device_view
from .environment import flag
from .gpu import Call, Driver, chip_of, device_for, open_driver
from .gpu_array import DeviceArray
from .gpu_session import ALIGNMENT, Memory, Session, session_on
from .memory import plan_memory
from .program import Buffer, Kernel, Launch, Program

GRAPH_FROM = 2  # launches: one alone is not worth a graph
_ALIGNED = 16  # bytes at whose multiples a caller's array must begin, or it is copied


class Plan:
    """Launches with their arguments, by buffer id, and the graph of them."""

    def __init__(self, session: Session, launches: Sequence[Launch], code: Code):
        self._session = session
        self.launches = [launch for launch in launches if code.kernels[launch.kernel].grid]
        self.calls = [code.call(launch) for launch in self.launches]
        self._users: dict[int, list[tuple[int, int]]] = {}  # calls and arguments of each buffer
        for number, launch in enumerate(self.launches):
            for position, index in enumerate(launch.arguments):
                self._users.setdefault(index, []).append((number, position))
        self._stale: set[int] = set()  # calls of which the graph has other pointers
        self._graph: Any = None
        self._checked = flag("DODECA_GPU_CHECK") == "1"
        one_by_one = self._checked or flag("DODECA_GRAPHS") == "off"
        self.as_graph = len(self.calls) >= GRAPH_FROM and not one_by_one

    def place(self, index: int, address: int) -> None:
        """Say where a buffer lies from now on."""
        for number, position in self._users.get(index, ()):
            pointers = self.calls[number].pointers
            if pointers[position] != address:
                pointers[position] = address
                self._stale.add(number)

    def enqueue(self) -> None:
        """Put all launches on the stream, in order."""
        session, driver = self._session, self._session.driver
        session.kernels.update(call.kernel for call in self.calls)
        if not self.as_graph:
            for number in range(len(self.calls)):
                self.launch(number)
            return
        if self._graph is None:
            try:
                self._graph = driver.new_graph(self.calls)
            except DeviceError as error:
                text = f"{error}; DODECA_GRAPHS=off launches the kernels one by one instead"
                raise DeviceError(text) from None
        else:
            for number in sorted(self._stale):
                driver.update(self._graph, number, self.calls[number])
        self._stale.clear()
        driver.replay(self._graph, session.stream)

    def launch(self, number: int) -> None:
        """Put one launch on the stream."""
        session, call = self._session, self.calls[number]
        session.driver.launch(call, session.stream)
        if self._checked:
            session.kernels = {call.kernel}
            session.wait()

    def end(self) -> None:
        """Give the graph back to the driver; replays under way are not disturbed."""
        if self._graph is not None:
            self._session.driver.end_graph(self._graph)
            self._graph = None


class Code:
    """A program's kernels, loaded when the first launch of each is made ready."""

    def __init__(self, session: Session, program: Program):
        self._session, self._chip = session, chip_of(program.target)
        self.kernels: Mapping[str, Kernel] = program.kernels
        self._functions: dict[str, int] = {}
        self.modules: list[int] = []

    def call(self, launch: Launch) -> Call:
        kernel = self.kernels[launch.kernel]
        shared = int(kernel.resources.get("dynamic_shared_bytes", 0))
        function = self._function(kernel, shared)
        count = len(kernel.arguments)
        return Call(kernel.name, function, kernel.blocks, kernel.block, shared, count)

    def _function(self, kernel: Kernel, shared: int) -> int:
        if kernel.name not in self._functions:
            driver = self._session.driver
            module = driver.load(kernel.binary, self._chip, kernel.name)
            self.modules.append(module)
            function = driver.function(module, kernel.name)
            driver.allow_shared(function, shared, kernel.name)
            self._functions[kernel.name] = function
        return self._functions[kernel.name]


@dataclass(frozen=True)
class _Given:
    """The arguments of a call: addresses by buffer id, and what keeps them alive."""

    addresses: dict[int, int]
    held: tuple[Any, ...]
    on_device: bool  # whether any of them was


class GpuRunner:
    """Runs a program's plan on the first device that takes its code, for callers of any thread.

    `weights` are arrays of the host by buffer id. TargetError: no driver or device; DeviceError:
    the driver refuses something.
    """

    def __init__(
        self, program: Program, weights: Mapping[int, np.ndarray], driver: Driver | None = None
    ):
        self.program = program
        driver = open_driver(program.target) if driver is None else driver
        texts = all(kernel.binary[:4] != b"\x7fELF" for kernel in program.kernels.values())
        self.session = session_on(driver, device_for(driver, program.target, texts))
        self._inputs = Inputs(program)
        self._own: dict[int, Memory] = {}  # for arrays of the host, by buffer id, from the first on
        with self.session.working():
            self._code = Code(self.session, program)
            self._resident, addresses = self._prepared(weights)
            arena = plan_memory(program, program.plan)
            self._arena = self.session.allocate(arena.bytes)
            self._plan = Plan(self.session, program.plan, self._code)
            for index, offset in arena.offsets.items():
                addresses[index] = self._arena.address + offset
            for index, address in addresses.items():
                self._plan.place(index, address)
        self._addresses = addresses
        inside = {*program.inputs, *addresses}
        self._fresh = [
            index for index in dict.fromkeys(program.outputs) if index not in inside
        ]  # what the kernels of a call write for the caller

    def __del__(self) -> None:
        try:
            with self.session.working():
                self.session.wait()
                self._plan.end()
                for module in self._code.modules:
                    self.session.driver.unload(module)
        except Exception:  # it was never whole, or the process ends
            pass

    def _prepared(self, weights: Mapping[int, np.ndarray]) -> tuple[Memory, dict[int, int]]:
        """Upload the weights and run what prepares them: memory that stays, and addresses in it."""
        program, session = self.program, self.session
        used = {i for launch in program.plan for i in launch.arguments} | {*program.outputs}
        known = {*program.weights.values()}
        known |= {i for i, buffer in enumerate(program.buffers) if buffer.role == "prepared"}
        stays, stay = self._laid_out(sorted(known & used))
        once, leave = self._laid_out(sorted(known - used))
        addresses = {**stay, **leave}
        for index in sorted(known & {*weights}):
            session.upload(addresses[index], weights[index])
        if program.prepare:
            arena = plan_memory(program, program.prepare)
            scratch = session.allocate(arena.bytes)
            plan = Plan(session, program.prepare, self._code)
            for index, offset in arena.offsets.items():
                plan.place(index, scratch.address + offset)
            for index, address in addresses.items():
                plan.place(index, address)
            plan.as_graph = False  # it runs once
            plan.enqueue()
            del scratch
        del once  # in the order of the stream, after the launches
        return stays, dict(stay)

    def _laid_out(self, indices: Sequence[int]) -> tuple[Memory, dict[int, int]]:
        """One piece of memory for buffers, and the address of each."""
        offsets, size = {}, 0
        for index in indices:
            offsets[index] = size
            size += -(-self.program.buffers[index].bytes // ALIGNMENT) * ALIGNMENT
        memory = self.session.allocate(size)
        return memory, {index: memory.address + offset for index, offset in offsets.items()}

    # --- calls

    def call(self, values: Sequence[Any], out: Any = None) -> list[Any]:
        """The results: on the device if an argument, or `out`, is there, else in numpy arrays."""
        self._inputs.check_count(values)
        with self.session.working():
            given = self._take(values)
            if out is not None:
                return self._into(self._targets(out), given)
            if given.on_device:
                return self._stay(given)
            self._run(given, {index: self._staged(index).address for index in self._fresh})
            results = [_new(self.program.buffers[index]) for index in self.program.outputs]
            self._fetch(results, given)
            return results

    def _run(self, given: _Given, outputs: Mapping[int, int]) -> None:
        for index, address in (*given.addresses.items(), *outputs.items()):
            self._plan.place(index, address)
        self._plan.enqueue()
        if given.held:
            self.session.hold(given.held)

    def _stay(self, given: _Given) -> list[DeviceArray]:
        """Run, and leave the results where they are."""
        buffers, session = self.program.buffers, self.session
        fresh = {index: session.allocate(buffers[index].bytes) for index in self._fresh}
        self._run(given, {index: memory.address for index, memory in fresh.items()})
        results, taken = [], set()
        for index in self.program.outputs:
            memory = fresh.get(index)
            if memory is None or index in taken:  # a weight, an argument, or one result twice
                source = self._address(index, given, fresh)
                memory = session.allocate(buffers[index].bytes)
                self._copy(memory.address, source, buffers[index].bytes)
            taken.add(index)
            results.append(DeviceArray(memory, buffers[index]))
        return results

    def _address(self, index: int, given: _Given, fresh: Mapping[int, Memory]) -> int:
        if index in fresh:
            return fresh[index].address
        return given.addresses[index] if index in given.addresses else self._addresses[index]

    def _fetch(self, arrays: Sequence[np.ndarray], given: _Given) -> None:
        """Copy the results of a run on our own buffers into arrays of the host."""
        sources = [self._address(index, given, self._own) for index in self.program.outputs]
        self.session.download(list(zip(sources, arrays, strict=True)))

    def _copy(self, target: int, source: int, size: int) -> None:
        if size and target != source:
            self.session.driver.copy(target, source, size, self.session.stream)

    def _staged(self, index: int) -> Memory:
        """Our own memory for a buffer of the caller's, which stays for all calls."""
        if index not in self._own:
            self._own[index] = self.session.allocate(self.program.buffers[index].bytes)
        return self._own[index]

    # --- what a caller brings

    def _take(self, values: Sequence[Any]) -> _Given:
        addresses: dict[int, int] = {}
        held: list[Any] = []
        on_device = False
        for position, index, buffer, name in self._inputs.rows:
            value = values[position]
            if self._is_here(value):
                view = self._view(value, buffer, name)
                on_device = True
                if not isinstance(view.holder, DeviceArray):  # ours go back in the stream's order
                    held.append(view)
                addresses[index] = self._aligned(view, index)
            else:
                array = as_array(value, buffer, name)
                addresses[index] = self._staged(index).address
                self.session.upload(addresses[index], array)
        return _Given(addresses, tuple(held), on_device)

    def _is_here(self, value: Any) -> bool:
        """Whether a value lies on a device of this vendor's."""
        if isinstance(value, np.ndarray):
            return False
        return device_type(value) == self.session.driver.vendor.dlpack

    def _view(self, value: Any, buffer: Buffer, name: str) -> DeviceView:
        """The caller's array as it is; ArgumentError where it cannot be used."""
        session = self.session
        number = value.__dlpack_device__()[1]
        if number != session.device:
            text = f"{name}: the array is on device {number}, the program on {session.device}"
            raise ArgumentError(text)
        if isinstance(value, DeviceArray) and value.memory.session is session:
            row = DTYPES[value.dtype]  # in the order of our stream: nothing to wait for
            view = DeviceView(value.memory.address, value.shape, row.numpy, number, value)
        else:
            try:
                view = device_view(value, session.stream)
            except (ValueError, RuntimeError, BufferError, TypeError) as error:
                kind = type(value).__name__
                text = f"{name}: a {kind} that cannot be used as it is: {error}"
                raise ArgumentError(text) from error
        if view.dtype != DTYPES[buffer.dtype].numpy or view.shape != buffer.shape:
            row = BY_NUMPY.get(view.dtype)
            got = f"{row.name if row else view.dtype.str} {view.shape}"
            raise ArgumentError(f"{name}: expected {describe(buffer)}, got {got}")
        return view

    def _aligned(self, view: DeviceView, index: int) -> int:
        """The address of a view, or of a copy that begins where kernels may expect it."""
        if view.address % _ALIGNED == 0:
            return view.address
        memory = self._staged(index)
        self._copy(memory.address, view.address, view.nbytes)
        return memory.address

    def _targets(self, out: Any) -> list[tuple[Any, DeviceView | None]]:
        """The caller's arrays for results, and views of those on the device; all are checked."""
        single = isinstance(out, np.ndarray) or hasattr(out, "__dlpack__")
        arrays = [out] if single else list(out)
        outputs = self.program.outputs
        if len(arrays) != len(outputs):
            raise ArgumentError(f"out: expected {len(outputs)} arrays, got {len(arrays)}")
        targets: list[tuple[Any, DeviceView | None]] = []
        for position, (index, target) in enumerate(zip(outputs, arrays, strict=True)):
            buffer, where = self.program.buffers[index], f"out[{position}]"
            if self._is_here(target):
                targets.append((target, self._view(target, buffer, where)))
                continue
            if not isinstance(target, np.ndarray):
                text = "a numpy array or one on the device to write into"
                raise ArgumentError(f"{where}: expected {text}, got {type(target).__name__}")
            as_array(target, buffer, where)
            if not target.flags.writeable:
                raise ArgumentError(f"{where}: the array is read-only")
            targets.append((target, None))
        return targets

    def _into(self, targets: Sequence[tuple[Any, DeviceView | None]], given: _Given) -> list[Any]:
        """Run on our own buffers, and copy the results into the caller's arrays."""
        self._run(given, {index: self._staged(index).address for index in self._fresh})
        fetched: list[tuple[int, np.ndarray]] = []
        late: list[tuple[np.ndarray, np.ndarray]] = []
        for index, (target, view) in zip(self.program.outputs, targets, strict=True):
            buffer = self.program.buffers[index]
            source = self._address(index, given, self._own)
            if view is not None:
                self._copy(view.address, source, buffer.bytes)
                continue
            array = _new(buffer)  # row-major, and no part of another target
            fetched.append((source, array))
            late.append((target, array))
        views = [view for _, view in targets if view is not None]
        if views:
            self.session.hold(*views)
        if fetched:
            self.session.download(fetched)
        for target, array in late:
            np.copyto(target, array)
        return [target for target, _ in targets]

    # --- for timers

    def ready(self, values: Sequence[Any]) -> Plan:
        """The plan with a call's arguments in place, on our own buffers for the results."""
        self._inputs.check_count(values)
        given = self._take(values)
        self._run(given, {index: self._staged(index).address for index in self._fresh})
        self.session.wait()  # a fault is met here, and not while time is taken
        self._kept = given
        return self._plan

    def results(self) -> list[np.ndarray]:
        """The results of the last run of `ready`'s plan, on the host."""
        arrays = [_new(self.program.buffers[index]) for index in self.program.outputs]
        with self.session.working():
            self._fetch(arrays, self._kept)
        return arrays


def _new(buffer: Buffer) -> np.ndarray:
    return np.empty(buffer.shape, DTYPES[buffer.dtype].numpy)
