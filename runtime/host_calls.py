"""Functions for the host, written line by line: what a call to an intrinsic becomes.

In: a call, with the types and texts of its arguments. Out: a `Made`, which has the function's text:

    body = Body(call, "sim.nvvm.activemask")
    active = body.let("call i64 @sim.active()")
    made = body.done(body.let(f"trunc i64 {active} to i32"))
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field

from .ir_text import bytes_of

# What makes a thread wait, or needs a record of its own for each thread.
_WAITING = (
    *("shfl", "permute", "read", "push", "ballot", "fold", "publish", "wait"),
    *("copy", "commit", "land", "meet_whole", "matrix"),
)


@dataclass(frozen=True)
class Call:
    """A call of an intrinsic; `name` is without "llvm."."""

    name: str
    result: str
    arguments: list[tuple[str, str]]
    wave: int
    checked: bool
    chip: str = ""

    def number(self, position: int) -> int:
        """A constant argument."""
        text = self.arguments[position][1]
        return int(text == "true") if text in ("true", "false") else int(text)


@dataclass(frozen=True)
class Made:
    """How a call is written: as a function of this key and body, as a value, or not at all."""

    does: str = "function"
    key: str = ""
    body: str = ""
    sites: tuple[str, ...] = ()  # what it does to memory, in order; "meets" if nothing
    waits: bool = True


@dataclass
class Body:
    """A function that is written line by line; its arguments are %a0, %a1, ..., then %site."""

    call: Call
    key: str
    lines: list[str] = field(default_factory=list)
    count: int = 0

    def let(self, text: str) -> str:
        self.count += 1
        self.lines.append(f"  %v{self.count} = {text}")
        return f"%v{self.count}"

    def do(self, text: str) -> None:
        self.lines.append(f"  {text}")

    def done(self, value: str = "", extra: str = "", sites: tuple[str, ...] = ("meets",)) -> Made:
        result = self.call.result
        heads = [f"{kind} %a{i}" for i, (kind, _) in enumerate(self.call.arguments)]
        self.lines.append(f"  ret {result} {value}".rstrip())
        head = f'define internal {result} @"{self.key}"({", ".join([*heads, "i32 %site"])}) {{'
        text = "\n".join([extra, head, *self.lines, "}", ""])
        waits = any(f"@sim.{word}(" in text for word in _WAITING)
        return Made("function", self.key, text, sites, waits)

    def bits(self, kind: str, value: str) -> str:
        """A value of up to 64 bits as an i64."""
        if kind == "i64":
            return value
        if kind.startswith("ptr"):
            return self.let(f"ptrtoint {kind} {value} to i64")
        width = 1 if kind == "i1" else 8 * bytes_of(kind)
        if not kind.startswith("i"):
            value = self.let(f"bitcast {kind} {value} to i{width}")
        return value if width == 64 else self.let(f"zext i{width} {value} to i64")

    def of_bits(self, kind: str, value: str) -> str:
        if kind == "i64":
            return value
        if kind.startswith("ptr"):
            return self.let(f"inttoptr i64 {value} to {kind}")
        width = 1 if kind == "i1" else 8 * bytes_of(kind)
        if width < 64:
            value = self.let(f"trunc i64 {value} to i{width}")
        return value if kind.startswith("i") else self.let(f"bitcast i{width} {value} to {kind}")

    def pair(self, first: str, second: str) -> str:
        kind = self.call.result
        members = [part.strip() for part in kind.strip("{}").split(",")]
        half = self.let(f"insertvalue {kind} poison, {members[0]} {first}, 0")
        return self.let(f"insertvalue {kind} {half}, {members[1]} {second}, 1")

    @property
    def kind(self) -> str:
        """What lanes must agree on to meet. AMD's waves run one instruction, CUDA's threads may
        meet at different ones that do the same."""
        if self.call.name.startswith("amdgcn"):
            return "%site"
        return str(zlib.crc32(self.call.name.encode()) >> 1)


_COMBINE = {  # IR of `float` or i32 values %x and %y
    "add": "add i32 %x, %y",
    "and": "and i32 %x, %y",
    "or": "or i32 %x, %y",
    "xor": "xor i32 %x, %y",
    "min": "call i32 @llvm.smin.i32(i32 %x, i32 %y)",
    "max": "call i32 @llvm.smax.i32(i32 %x, i32 %y)",
    "umin": "call i32 @llvm.umin.i32(i32 %x, i32 %y)",
    "umax": "call i32 @llvm.umax.i32(i32 %x, i32 %y)",
    "fmin": "call float @llvm.minnum.f32(float %x, float %y)",
    "fmax": "call float @llvm.maxnum.f32(float %x, float %y)",
    "fmin.NaN": "call float @llvm.minimum.f32(float %x, float %y)",
    "fmax.NaN": "call float @llvm.maximum.f32(float %x, float %y)",
    "fadd": "fadd float %x, %y",
    "fsub": "fsub float %x, %y",
    "sub": "sub i32 %x, %y",
}


def combiner(name: str, operation: str) -> str:
    text = _COMBINE[operation]
    if "float" not in text:
        change = ("%x = trunc i64 %a to i32", "%y = trunc i64 %b to i32", "%i = add i32 %r, 0")
    else:
        change = (
            "%x0 = trunc i64 %a to i32\n  %x = bitcast i32 %x0 to float",
            "%y0 = trunc i64 %b to i32\n  %y = bitcast i32 %y0 to float",
            "%i = bitcast float %r to i32",
        )
    lines = [*change[:2], f"%r = {text}", change[2], "%w = zext i32 %i to i64", "ret i64 %w"]
    body = "\n  ".join(lines)
    return f'define internal i64 @"{name}"(i64 %a, i64 %b) {{\n  {body}\n}}\n'


Write = Callable[[Body, "re.Match[str]"], Made]
