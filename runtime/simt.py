"""One kernel of a GPU on this CPU: compiled once, launched on memory, watched if asked.

    kernel = device_kernel("k", llvm_ir, arguments=2, target="cuda:sm_80", checked=True)
    counts = kernel.launch((4, 1, 1), (128, 1, 1), [(x.ctypes.data, x.nbytes), ...], counting=True)

With `checked`, no access leaves the buffers of the launch, the arrays in shared memory, the stacks
and the kernel's constants: an `Error` names the thread and the instruction before it happens. Two
threads that touch a byte of shared memory in no order are an `Error` too. Kernels whose threads
never wait run in one fiber, in a loop over all threads; others have a fiber for each thread.
"""

from __future__ import annotations

import ctypes
import math
import re
import struct
import threading
from collections.abc import Sequence
from functools import cache, lru_cache

import llvmlite.binding as llvm
import numpy as np

from ..dialect.errors import CompileError, Error, TargetError
from . import fibers
from .counters import Counts, count, machine_of
from .fibers import (
    ACCESS,
    ARENA,
    COPIES,
    COPY_BYTES,
    EXCHANGE,
    RANGE,
    RESOURCES,
    STATE,
    THREAD,
    arena,
)
from .findings import Findings
from .host_ir import to_host
from .jit import compile_for_host, compile_text, load_objects
from .memory import aligned
from .products import Products
from .races import Clocks, first_race, kind_number
from .waiting import Block

_LOG = 1 << 18  # accesses that are looked at together
_PATIENCE = 1 << 22  # accesses that are kept for a window to end; races across that are not seen
_BLOCK_LIMIT = 1024  # threads of a block, on every GPU so far
_one_at_a_time = threading.RLock()  # the arena, the stacks and the log are this process's own
_FRAME = re.compile(rb"\x48\x81\xec(....)", re.S)  # sub rsp, imm32
Three = tuple[int, int, int]


class DeviceKernel:
    """A kernel in executable memory, with the scheduler beside it."""

    def __init__(self, name: str, llvm_ir: str, arguments: int, target: str, checked: bool):
        scheduler = _scheduler()  # the first to say if this host cannot do it
        self.name, self.checked, self.target = name, checked, target
        features = " ".join(re.findall(r'"target-features"="([^"]*)"', llvm_ir))
        self.machine = machine_of(target, features)
        base = arena().ctypes.data
        self.code = to_host(
            llvm_ir,
            name,
            wave=self.machine.wave,
            checked=checked,
            arena=base,
            chip=target.partition(":")[2],
        )
        data = self._compiled(arguments)
        self.stack = fibers.STACK + sum(frame for frame in _frames(data) if frame < 1 << 24)
        self._engine = load_objects([scheduler, data])
        address = self._engine.get_function_address
        self.go = ctypes.CFUNCTYPE(ctypes.c_int)(address("sim.go"))
        where = ctypes.CFUNCTYPE(ctypes.c_void_p)(address("sim.address"))()
        self.state = _records(where, STATE, 1)
        self.entry = address("sim.kernel")
        table = ctypes.CFUNCTYPE(ctypes.c_void_p)(address("sim.constant_table"))()
        self.constants = _records(table, np.dtype(("u8", 2)), len(self.code.constants))
        self.watched = any(one.product is None for one in self.code.operations)
        self.products = Products(self.code.operations)
        self.kinds = np.array([kind_number(one.kind) for one in self.code.sites] or [0], np.int8)

    def _compiled(self, arguments: int) -> bytes:
        host, name = self.code.text, self.name
        try:
            module = llvm.parse_assembly(host)
        except RuntimeError as error:
            raise CompileError(f"simulate: kernel {name}: {error}\n{host}") from error
        own = list(module.get_function(name).arguments)
        if len(own) != arguments or any(str(one.type) != "ptr" for one in own):
            found = ", ".join(str(one.type) for one in own)
            raise TargetError(f"kernel {name}: expected {arguments} pointers, its IR has ({found})")
        module.link_in(llvm.parse_assembly(_entry(name, arguments)))
        return compile_for_host(module, name, optimise=False)

    def launch(
        self,
        blocks: Three,
        threads: Three,
        buffers: Sequence[tuple[int, int]],
        *,
        shared_bytes: int = 0,
        reverse: bool = False,
        counting: bool = False,
        names: Sequence[str] = (),
    ) -> Counts:
        """Run all blocks on buffers, each an address and a size; `shared_bytes`: dynamic ones.

        `names` are what messages call the buffers.
        """
        total = math.prod(threads)
        if total > _BLOCK_LIMIT:
            raise Error(f"kernel {self.name}: a block of {total} threads; at most {_BLOCK_LIMIT}")
        with _one_at_a_time:
            run = _Run(self, blocks, threads, buffers, shared_bytes, counting, names)
            return run.run(reverse)


class _Run:
    """A launch: the memory that it needs, and the way through its blocks."""

    def __init__(
        self,
        kernel: DeviceKernel,
        blocks: Three,
        threads: Three,
        buffers: Sequence[tuple[int, int]],
        shared_bytes: int,
        counting: bool,
        names: Sequence[str],
    ):
        self.kernel, self.buffers, self.counting = kernel, buffers, counting
        self.blocks, self.size = blocks, threads
        self.total, self.count = math.prod(blocks), math.prod(threads)
        self.counts = Counts(kernel.name, self.total * self.count)
        self.waits = kernel.code.waits
        self.shared = self._shared_ranges(shared_bytes)
        named = names or [f"argument {i}" for i in range(len(buffers))]
        self.findings = Findings(kernel.name, kernel.code, kernel.machine, blocks, threads,
            [(a, a + size, one) for (a, size), one in zip(buffers, named, strict=True)]
            + [(a, b, "shared memory") for a, b in self.shared], arena().ctypes.data,
        )  # fmt: skip
        memory = _memory(self.count if self.waits else 1, kernel.stack)
        self.threads, self.exchange, self.stacks = memory[0], memory[1], memory[2]
        self.resources = np.zeros(2 * RESOURCES, np.uint64)
        self.log = _log()
        self._begun = -1  # the block that Python has seen last
        self.held: list[np.ndarray] = []  # records of a window that is not over
        self.clocks = Clocks(self.threads)
        self.block = Block(
            kernel.name, kernel.code, self.threads, self.exchange, arena(), arena().ctypes.data,
            kernel.machine.wave, kernel.machine.amd, self.clocks, self.counts, self._check,
            self._new_window, self._note,
        )  # fmt: skip

    def _shared_ranges(self, dynamic: int) -> list[tuple[int, int]]:
        base, total, limit = arena().ctypes.data, 0, self.kernel.machine.shared
        ranges = []
        for offset, size in self.kernel.code.shared:
            size = size or dynamic
            total += size
            if total > limit or offset + size > ARENA:
                raise Error(
                    f"kernel {self.kernel.name}: {total} bytes of shared memory; at most {limit} "
                    f"on {self.kernel.target}"
                )
            if size:
                ranges.append((base + offset, base + offset + size))
        return ranges

    def run(self, reverse: bool) -> Counts:
        table = np.array([address for address, _ in self.buffers] or [0], np.uint64)
        hidden = self._hidden()
        ranges = self._ranges(hidden)
        self._fill_state(table, hidden, ranges, reverse)
        self.kernel.products.add_to({})  # of a launch that failed
        state = self.kernel.state[0]
        while True:
            why = self.kernel.go()
            if why == fibers.FINISHED:
                self._look(True)
                self.kernel.products.add_to(self.counts.matrix)
                return self.counts
            if why == fibers.FAILED:
                raise self._failed()
            if why == fibers.LOG_IS_FULL:
                self._look(False)
                continue
            if why == fibers.BLOCK_ENDED:
                self.block.end()
                continue
            if self._begun != int(state["block"]):
                self._begun = int(state["block"])
                self.block.begin()
            self.block.resolve()

    def _hidden(self) -> tuple[np.ndarray, np.ndarray]:
        """What AMD's runtime passes to a kernel: hidden arguments (code object version 5) and the
        dispatch packet of HSA; of both, the sizes of the grid."""
        grid = [a * b for a, b in zip(self.blocks, self.size, strict=True)]
        implicit = struct.pack("<3I3H3H", *self.blocks, *self.size, 0, 0, 0).ljust(256, b"\0")
        packet = struct.pack("<2H3HH3I", 0, 1, *self.size, 0, *grid).ljust(64, b"\0")
        return np.frombuffer(implicit, np.uint8).copy(), np.frombuffer(packet, np.uint8).copy()

    def _ranges(self, hidden: Sequence[np.ndarray]) -> np.ndarray:
        """Where a thread may look, in the order in which it is asked."""
        found = [(begin, begin + size, self.counting, 0) for begin, size in self.buffers]
        found = [(begin, end, True, 1) for begin, end in self.shared] + found
        stack = self.stacks.ctypes.data
        found += [(int(a), int(b), False, 2) for a, b in self.kernel.constants]
        found += [(one.ctypes.data, one.ctypes.data + one.nbytes, False, 2) for one in hidden]
        found += [(stack, stack + self.stacks.nbytes, False, 2)]
        return np.array(found, RANGE)

    def _fill_state(
        self, table: np.ndarray, hidden: Sequence[np.ndarray], ranges: np.ndarray, reverse: bool
    ) -> None:
        self._kept = table, hidden, ranges
        state, last = self.kernel.state, self.total
        state[:] = np.zeros(1, STATE)
        first, last, step = (last - 1, -1, -1) if reverse else (0, last, 1)
        values = {
            "kernel": self.kernel.entry, "table": table.ctypes.data,
            "threads": self.threads.ctypes.data, "block": first, "last": last, "step": step,
            "count": self.count, "warp": self.kernel.machine.wave, "reverse": reverse,
            "ntid": (*self.size, 0), "nctaid": (*self.blocks, 0), "log": self.log.ctypes.data,
            "room": len(self.log), "shared": arena().ctypes.data, "ranges": ranges.ctypes.data,
            "range_count": len(ranges), "alone": not self.waits,
            "resources": self.resources.ctypes.data,
            "plans": self.kernel.products.plans.ctypes.data,
            "scratch": self.kernel.products.scratch.ctypes.data,
            "watched": self.kernel.watched,
            "shared_bytes": max((end for _, end in self.shared), default=arena().ctypes.data)
            - arena().ctypes.data,
            "implicit": hidden[0].ctypes.data, "dispatch": hidden[1].ctypes.data,
        }  # fmt: skip
        for name, value in values.items():
            state[name] = value

    def _failed(self) -> Error:
        state = self.kernel.state[0]
        offset = int(state["current"]) - self.threads.ctypes.data
        return self.findings.failure(
            int(state["failure"]),
            int(state["block"]),
            int(self.threads[offset // THREAD.itemsize]["number"]),
            int(state["failed_at"]),
            int(state["failed_bytes"]),
            int(state["failed_site"]),
        )

    # --- what is reported -----------------------------------------------------------------------

    def _new_window(self) -> None:
        """All threads have met: what they knew of each other before does not matter any more."""
        self.threads["row"] = 0
        self.kernel.state["window"] += 1

    def _note(self, addresses: np.ndarray, size: int, thread: int, site: int) -> None:
        """Accesses that an operation makes for a thread go into the log, after what is there."""
        if not self.kernel.checked:
            return
        state, one = self.kernel.state[0], self.threads[thread]
        self._take_log()
        records = np.zeros(len(addresses), ACCESS)
        records["address"], records["bytes"], records["site"] = addresses, size, site
        records["window"], records["block"] = int(state["window"]), int(state["block"])
        records["thread"], records["epoch"], records["row"] = thread, one["epoch"], one["row"]
        self.held.append(records)

    def _take_log(self) -> None:
        used = int(self.kernel.state[0]["logged"])
        self.held.append(self.log[:used].copy())
        self.kernel.state["logged"] = 0

    def _check(self, addresses: np.ndarray, size: int, threads: np.ndarray, site: int) -> None:
        """Bounds of what an operation touches for threads; Error names what is outside."""
        for address, thread in zip(addresses.tolist(), threads.tolist(), strict=True):
            ranges = self._kept[2]
            inside = (ranges["begin"] <= address) & (address + size <= ranges["end"])
            if not inside.any():
                block = int(self.kernel.state[0]["block"])
                raise self.findings.failure(
                    fibers.OUTSIDE, block, int(thread), int(address), size, site
                )

    def _look(self, over: bool) -> None:
        """Look at the log: at the windows that are over, or at all of it."""
        state = self.kernel.state[0]
        self._take_log()
        over |= sum(map(len, self.held)) > _PATIENCE
        records = np.concatenate(self.held) if len(self.held) > 1 else self.held[0]
        whole = records["window"] < (np.iinfo(np.int32).max if over else state["window"])
        cut = len(records) if over else int(np.count_nonzero(whole))
        log, self.held = records[:cut], [records[cut:]]
        if not len(log):
            return
        begin = arena().ctypes.data
        shared = (log["address"] >= begin) & (log["address"] < begin + ARENA)
        if self.kernel.checked:
            race = first_race(log[shared], self.kernel.kinds, self.clocks.rows)
            if race is not None:
                raise self.findings.race(race)
        if self.counting:
            names = [one.said for one in self.kernel.code.sites]
            count(self.counts, log, self.kernel.kinds, names, self.kernel.machine, shared)
        self.clocks.forget()


@lru_cache(maxsize=256)
def device_kernel(
    name: str, llvm_ir: str, arguments: int, target: str, checked: bool = True
) -> DeviceKernel:
    """A kernel, ready to be launched; compiled once."""
    return DeviceKernel(name, llvm_ir, arguments, target, checked)


def _frames(code: bytes) -> list[int]:
    """Bytes of the large frames of functions, as their code makes room for them."""
    found = [int.from_bytes(one, "little", signed=True) for one in _FRAME.findall(code)]
    return [size for size in found if size > 0]


@cache
def _scheduler() -> bytes:
    llvm.initialize_native_target()
    llvm.initialize_native_asmparser()  # for the instructions that switch from thread to thread
    return compile_text(fibers.scheduler(), "the scheduler of simulated threads")


def _records(address: int, dtype: np.dtype, count: int) -> np.ndarray:
    size = dtype.itemsize * count
    memory = np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(address))
    return memory.view(dtype.base).reshape((count, *dtype.shape))


@cache
def _log() -> np.ndarray:
    return aligned(_LOG * ACCESS.itemsize).view(ACCESS)


_kept: dict[str, np.ndarray] = {}


def _piece(name: str, size: int) -> np.ndarray:
    """Memory that stays from launch to launch, and grows."""
    if name not in _kept or _kept[name].nbytes < size:
        _kept[name] = aligned(size)
    return _kept[name][:size]


def _memory(count: int, stack: int) -> tuple[np.ndarray, ...]:
    """Records, exchanged values, stacks and copies of threads."""
    stride = -(-stack // 4096) * 4096 + 192  # so that stacks do not all share the cache's few lines
    threads = _piece("threads", count * THREAD.itemsize).view(THREAD)
    threads[:] = np.zeros(1, THREAD)
    exchange = _piece("exchange", count * 2 * EXCHANGE).reshape(count, 2, EXCHANGE)
    stacks = _piece("stacks", count * stride)
    copies = _piece("copies", count * COPIES * COPY_BYTES)
    numbers = np.arange(count, dtype=np.uint64)
    threads["exchange"] = exchange.ctypes.data + numbers * np.uint64(2 * EXCHANGE)
    threads["copies"] = copies.ctypes.data + numbers * np.uint64(COPIES * COPY_BYTES)
    threads["top"] = stacks.ctypes.data + (numbers + np.uint64(1)) * np.uint64(stride)
    return threads, exchange, stacks, copies


def _entry(name: str, arguments: int) -> str:
    """`sim.kernel`, which takes its arguments from a table."""
    lines = []
    for i in range(arguments):
        lines.append(f"  %at{i} = getelementptr ptr, ptr %table, i64 {i}")
        lines.append(f"  %a{i} = load ptr, ptr %at{i}")
    passed = ", ".join(f"ptr %a{i}" for i in range(arguments))
    kinds = ", ".join(["ptr"] * arguments)
    body = "\n".join(lines)
    return (
        f'declare void @"{name}"({kinds})\ndefine void @sim.kernel(ptr %table) {{\n{body}\n'
        f'  call void @"{name}"({passed})\n  ret void\n}}\n'
    )
