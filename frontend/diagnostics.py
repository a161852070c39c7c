"""MLIR's diagnostics as records: how they are collected, shown, and compared with expectations.

    with collected(context(), Source("a.mlir", text), shown.append):
        ir.Module.parse(text)              # what MLIR has to say goes to `shown`

A test file states its diagnostics in comments, as for mlir-opt --verify-diagnostics:

    // expected-error @below {{axis 2 is outside}}
    %0 = "dodeca.sum_reduce"(%x) {axis = 2 : i64} : (tensor<4xf32>) -> tensor<f32>

`@+1`, `@-1`, `@above`, `@below` and `@unknown` say where; without one it is the comment's own line.
The text may be a part of the message; `expected-error-re` takes regular expressions in `{{...}}`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from mlir import ir

from .dialect.verifier import file_location

MLIR_NAME = "-"  # the file name of text that MLIR parses from memory


@dataclass(frozen=True)
class Source:
    """A file's text and the name that its diagnostics carry."""

    name: str
    text: str

    def line(self, number: int) -> str | None:
        lines = self.text.splitlines()
        return lines[number - 1] if 0 < number <= len(lines) else None


@dataclass(frozen=True)
class Diagnostic:
    """One diagnostic. `line` and `column` count from 1; line 0 is a place that is not known."""

    severity: str
    message: str
    file: str = ""
    line: int = 0
    column: int = 0
    notes: tuple[Diagnostic, ...] = ()

    @staticmethod
    def of(found: Any, name: str) -> Diagnostic:
        """Read what MLIR gives to a handler; `name` stands for the text parsed from memory."""
        notes = tuple(Diagnostic.of(note, name) for note in found.notes)
        severity = found.severity.name.lower()
        place = file_location(found.location)
        if place is None:
            return Diagnostic(severity, found.message, notes=notes)
        file = name if place.filename == MLIR_NAME else place.filename
        return Diagnostic(severity, found.message, file, place.start_line, place.start_col, notes)

    def show(self, source: Source) -> str:
        """`file:line:column: error: message`, the line with a caret below, and the notes."""
        place = f"{self.file or source.name}:{self.line}:{self.column}"
        if not self.line:
            place = source.name
        lines = [f"{place}: {self.severity}: {self.message}"]
        text = source.line(self.line) if self.file == source.name else None
        if text is not None:
            lines += [text, " " * (self.column - 1) + "^"]
        return "\n".join(lines + [note.show(source) for note in self.notes])


@contextmanager
def collected(
    context: ir.Context, source: Source, receive: Callable[[Diagnostic], Any]
) -> Iterator[None]:
    """Hand every diagnostic of this context to `receive`, errors included, while inside.

    Threads are off meanwhile: a handler in Python may only be called from this one.
    """

    def handle(found: Any) -> bool:
        receive(Diagnostic.of(found, source.name))
        return True

    context.enable_multithreading(False)
    context.emit_error_diagnostics = True
    handler: Any = context.attach_diagnostic_handler(handle)
    try:
        yield
    finally:
        handler.detach()
        context.emit_error_diagnostics = False
        context.enable_multithreading(True)


# --- expectations -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Expectation:
    """A diagnostic that a comment asks for. Line 0: one whose place is not known."""

    severity: str
    pattern: re.Pattern[str]
    text: str
    line: int
    stated: int  # the line of the comment


_STATED = re.compile(
    r"expected-(error|warning|remark|note)(-re)? *"
    r"(?:@([+-]\d+|above|below|unknown))? *\{\{(.*)\}\}\s*$"
)


def expectations(source: Source) -> list[Expectation]:
    """The expectations stated in the comments of a file."""
    lines = source.text.splitlines()
    stated = {i: found for i, line in enumerate(lines, 1) if (found := _STATED.search(line))}
    plain = [i for i in range(1, len(lines) + 1) if i not in stated]
    result = []
    for number, found in stated.items():
        severity, regex, place, text = found.groups()
        if place == "above":
            line = max((i for i in plain if i < number), default=number)
        elif place == "below":
            line = min((i for i in plain if i > number), default=number)
        else:
            line = 0 if place == "unknown" else number + int(place or 0)
        result.append(Expectation(severity, _pattern(text, bool(regex)), text, line, number))
    return result


def _pattern(text: str, regex: bool) -> re.Pattern[str]:
    """A pattern for a text to be found as it is, with regular expressions inside if asked."""
    if not regex:
        return re.compile(re.escape(text))
    parts = re.split(r"\{\{(.*?)\}\}", text)
    return re.compile("".join(f"(?:{p})" if i % 2 else re.escape(p) for i, p in enumerate(parts)))


def mismatches(source: Source, found: list[Diagnostic]) -> list[Diagnostic]:
    """What was not expected, and what was expected and did not come; both as errors.

    One expectation may meet several diagnostics. MLIR's own notes that only print the operation
    need none.
    """
    problems, met = [], set()
    wanted = expectations(source)
    for item in [x for d in found for x in (d, *d.notes)]:
        here = [e for e in wanted if e.line == item.line and e.pattern.search(item.message)]
        exact = [e for e in here if e.severity == item.severity]
        met.update(e.stated for e in exact)
        if exact or item.message.startswith("see current operation:"):
            continue
        problem = f"unexpected {item.severity}: {item.message}"
        if here:
            problem = f"a {here[0].severity} was expected, not a {item.severity}: {item.message}"
        problems.append(Diagnostic("error", problem, item.file, item.line, item.column))
    for e in wanted:
        if e.stated not in met:
            message = f'expected {e.severity} "{e.text}" was not produced'
            problems.append(Diagnostic("error", message, source.name, e.stated, 1))
    return problems
