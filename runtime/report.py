"""An executable in words: what each kernel does, where the memory goes, how long compiling took.

cpu, 2 threads: 2 kernels, 3 launches
  k0  grid 128 x 1  exp2, sum over j        1 input, 1 output; 2 launches
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from .device import cpu_identity
from .program import Kernel, Program


def report(program: Program, scratch_bytes: int, threads: int) -> str:
    """The report's text; `program.report["seconds"]` maps stages to the time they took."""
    if program.target == "cpu":
        cpu = cpu_identity()
        where = f"cpu ({cpu.model}, {cpu.architecture}), {_count(threads, 'thread')}"
    else:
        where = program.target
    runs = Counter(launch.kernel for launch in program.plan)
    lines = [
        f"{where}: {_count(len(program.kernels), 'kernel')}, {_count(len(program.plan), 'launch')}"
    ]
    lines += [_kernel(kernel, runs[key]) for key, kernel in program.kernels.items()]
    if program.prepare:
        lines.append(f"prepared once, by {_count(len(program.prepare), 'launch')}")
    lines += _memory(program, scratch_bytes)
    lines += _facts(program.report)
    return "\n".join(lines) + "\n"


def _count(number: int, what: str) -> str:
    plural = what + ("es" if what.endswith("ch") else "s")
    return f"{number} {what if number == 1 else plural}"


def _kernel(kernel: Kernel, runs: int) -> str:
    size = f"{kernel.blocks} x {kernel.block}" if kernel.block > 1 else f"{kernel.grid}"
    inputs = len(kernel.arguments) - kernel.outputs
    parts = [
        f"{_count(inputs, 'input')}, {_count(kernel.outputs, 'output')}",
        _count(runs, "launch"),
        *(f"{name.replace('_', ' ')} {value}" for name, value in kernel.resources.items()),
    ]
    return f"  {kernel.name}  grid {size}  {', '.join(kernel.fused)}  [{'; '.join(parts)}]"


def _memory(program: Program, scratch_bytes: int) -> list[str]:
    total: Counter[str] = Counter()
    number: Counter[str] = Counter()
    for buffer in program.buffers:
        total[buffer.role] += buffer.bytes
        number[buffer.role] += 1
    lines = ["buffers"]
    for role in total:
        arena = f", in an arena of {_bytes(scratch_bytes)}" if role == "scratch" else ""
        lines.append(f"  {role}: {number[role]}, {_bytes(total[role])}{arena}")
    return lines


def _bytes(size: int) -> str:
    for unit, scale in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size >= scale:
            return f"{size / scale:.1f} {unit}"
    return _count(size, "byte")


def _facts(facts: Mapping[str, Any]) -> list[str]:
    seconds = facts.get("seconds", {})
    lines = []
    if seconds:
        spent = ", ".join(f"{stage} {time:.3f}" for stage, time in seconds.items())
        lines.append(f"compiled in {sum(seconds.values()):.3f} s: {spent}")
    for name, fact in facts.items():
        if name != "seconds":
            lines.append(f"{name.replace('_', ' ')}: {_fact(fact)}".replace(": \n", ":\n"))
    return lines


def _fact(fact: Any) -> str:
    """A fact in one line; the facts of several things in a line for each."""
    if isinstance(fact, Mapping):
        return ", ".join(f"{name} {_fact(part)}" for name, part in fact.items()) or "none"
    if isinstance(fact, list | tuple) and any(isinstance(part, Mapping) for part in fact):
        return "".join(f"\n  {_fact(part)}" for part in fact)
    return f"{fact:.3g}" if isinstance(fact, float) else str(fact)
