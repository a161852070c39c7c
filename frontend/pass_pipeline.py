"""Pipelines that mix our passes with upstream's.

    pipeline = build_pipeline("dodeca-tile{vector=8},func.func(cse)", context())
    pipeline.run(module)                  # CompileError names the pass that failed

In: pipeline text as mlir-opt takes it, with or without `builtin.module(...)` around it. Out: an
MLIR pass manager. Ours run on the whole module, so an anchor inside it may hold only upstream's
passes. After each of ours the module must verify, by MLIR's rules and by the dialect's.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, fields
from difflib import get_close_matches
from typing import Any, NamedTuple, get_type_hints

from mlir import ir
from mlir.ir import MLIRError  # pyright: ignore[reportAttributeAccessIssue]  # not in stubs
from mlir.passmanager import PassManager

from .dialect.errors import CompileError, Error
from .dialect.verifier import findings_in, place
from .pass_table import PASSES, Pass

# --- running ------------------------------------------------------------------------------------


@dataclass
class _State:
    """How far a run of a pipeline came."""

    done: int = 0  # how many steps are known to have run
    failed: str | None = None  # the pass of ours that failed
    cause: BaseException | None = None


class Pipeline(PassManager):
    """A pass manager on a module that says which of its passes failed."""

    def __init__(self, context: ir.Context):
        super().__init__("builtin.module", context)
        self._steps: list[str] = []
        self._ours: list[int] = []  # the positions in _steps of our passes
        self._state = _State()

    def add_ours(self, row: Pass, options: Any) -> None:
        """Append a pass of ours."""
        text = row.name + _options_text(options)
        position, state = len(self._steps), self._state  # not self: MLIR would keep it for ever

        def run(module: ir.Operation, external: Any) -> None:
            try:
                with module.context, ir.Location.unknown():
                    assert row.run is not None
                    row.run(module, options)
                    sound = check_module(module)
            except BaseException as error:  # none may cross MLIR's frames: `run` raises it again
                state.cause, sound = error, False
                module.location.emit_error(str(error))
            if sound:
                state.done = position + 1
            else:
                state.failed = row.name
                external.signal_pass_failure()

        self.add(run, name=row.name, argument=text, description=row.summary)
        self._ours.append(position)
        self._steps.append(text)

    def add_upstream(self, text: str) -> None:
        """Append an upstream pass or an anchor with passes in it; Error if there is none such."""
        try:
            self.add(text)
        except ValueError as error:
            raise Error(_explain(text, str(error))) from None
        self._steps.append(text)

    def run(self, operation: ir.Module | ir.Operation | ir.OpView) -> None:
        """Run on a module; CompileError names the pass that failed and quotes its diagnostics."""
        state = self._state
        state.done, state.failed, state.cause = 0, None, None
        try:
            super().run(operation.operation)
        except MLIRError as error:
            if state.cause is not None and not isinstance(state.cause, Error):
                raise state.cause from None  # not a diagnosis but a mistake in the pass
            found = "".join(f"\n  {line}" for line in diagnostics_of(error))
            raise CompileError(f"pass {self._culprit()} failed{found}") from state.cause

    def _culprit(self) -> str:
        """The pass that failed; MLIR does not name its own, so perhaps the few it can be."""
        state = self._state
        if state.failed:
            return state.failed
        end = next((i for i in self._ours if i >= state.done), len(self._steps))
        return " or ".join(self._steps[state.done : end])


def check_module(module: ir.Operation) -> bool:
    """Whether the module verifies; what is wrong is emitted as diagnostics."""
    try:
        module.verify()
    except MLIRError as error:
        for found in error.error_diagnostics:
            found.location.emit_error(found.message)
        return False
    findings = list(findings_in(module))
    for op, message in findings:
        op.location.emit_error(message)
    return not findings


def diagnostics_of(error: MLIRError) -> list[str]:
    """The diagnostics that MLIR put into an exception, one line each, notes after their error."""
    lines = []
    for found in error.error_diagnostics:
        lines.append(f"{place(found.location)}: error: {found.message}")
        lines += [f"{place(note.location)}: note: {note.message}" for note in found.notes]
    return lines


# --- pipeline text ------------------------------------------------------------------------------


def build_pipeline(text: str, context: ir.Context) -> Pipeline:
    """The pass manager for a pipeline's text; Error says what in it is unknown or malformed."""
    elements = [_element(part) for part in _split(text)]
    if len(elements) == 1 and elements[0].name in ("builtin.module", "any"):
        elements = [_element(part) for part in _split(elements[0].inner)]
    pipeline = Pipeline(context)
    _extend(pipeline, elements)
    return pipeline


def _extend(pipeline: Pipeline, elements: list[_Element]) -> None:
    for element in elements:
        if element.name in PASSES:
            row = PASSES[element.name]
            options = parse_options(row, element.options)
            if row.expands:
                parts = [_element(part) for part in _split(row.expands(options))]
                _extend(pipeline, parts)
            else:
                pipeline.add_ours(row, options)
            continue
        for name in re.findall(r"[\w.-]+", element.inner):
            if name in PASSES:
                raise Error(f"{name} runs on the module: it cannot stand inside {element.name}()")
        pipeline.add_upstream(element.text)


class _Element(NamedTuple):
    text: str
    name: str
    options: str  # what stands in braces
    inner: str  # what stands in parentheses


def _element(text: str) -> _Element:
    found = re.fullmatch(r"([\w.-]+)\s*(?:\{(.*)\}|\((.*)\))?", text, re.DOTALL)
    if not found:
        raise Error(f"pipeline: expected a pass, name or name{{options}}, got {text!r}")
    return _Element(text, found[1], found[2] or "", found[3] or "")


def _split(text: str) -> list[str]:
    """Split at the commas outside brackets and quotes."""
    parts, closers, quote = [""], "", ""
    for char in text:
        if quote:
            quote = "" if char == quote else quote
        elif char in "\"'":
            quote = char
        elif char in "({[":
            closers += {"(": ")", "{": "}", "[": "]"}[char]
        elif char in ")}]":
            if not closers.endswith(char):
                raise Error(f"pipeline: unexpected {char!r} after {parts[-1].strip()!r}")
            closers = closers[:-1]
        elif char == "," and not closers:
            parts.append("")
            continue
        parts[-1] += char
    if closers or quote:
        raise Error(f"pipeline: missing {quote or closers[-1]!r} after {parts[-1].strip()!r}")
    parts = [part.strip() for part in parts]
    return [] if parts == [""] else parts


def _explain(text: str, error: str) -> str:
    """One line for upstream's complaint about a pipeline element."""
    unknown = re.search(r"'([^']*)' does not refer to a registered pass", error)
    if not unknown:
        detail = " ".join(line.strip() for line in error.splitlines() if line.strip())
        return f"pipeline: {text}: {detail}"
    return f"unknown pass {unknown[1]!r}{_near(unknown[1], list(PASSES))}"


def _near(name: str, known: list[str]) -> str:
    close = get_close_matches(name, known, n=3)
    return f"; did you mean {' or '.join(close)}?" if close else f"; there are {', '.join(known)}"


# --- options ------------------------------------------------------------------------------------


def option_names(row: Pass) -> dict[str, tuple[str, type]]:
    """The options of a pass as they are written: their field and type. `_` is written `-`."""
    hints = get_type_hints(row.options)
    return {f.name.replace("_", "-"): (f.name, hints[f.name]) for f in fields(row.options)}


def parse_options(row: Pass, text: str) -> Any:
    """The options object for `key=value key=value`; a bool may stand without a value."""
    known = option_names(row)
    values: dict[str, Any] = {}
    for word in shlex.split(text):
        key, equals, value = word.partition("=")
        if key not in known:
            what = _near(key, list(known)) if known else "; it has none"
            raise Error(f"{row.name}: unknown option {key!r}{what}")
        field, kind = known[key]
        values[field] = _parse_value(f"{row.name}: option {key}", kind, value if equals else None)
    return row.options(**values)


def _parse_value(label: str, kind: type, value: str | None) -> Any:
    if kind is bool:
        words = {None: True, "true": True, "1": True, "false": False, "0": False}
        if value not in words:
            raise Error(f"{label} is true or false, got {value!r}")
        return words[value]
    if value is None:
        raise Error(f"{label} needs a value")
    try:
        return int(value, 0) if kind is int else kind(value)
    except ValueError:
        raise Error(f"{label} is an {kind.__name__}, got {value!r}") from None


def _options_text(options: Any) -> str:
    """The options that differ from their defaults, as they are written after the pass's name."""
    changed = [
        f"{field.name.replace('_', '-')}={_written(getattr(options, field.name))}"
        for field in fields(options)
        if getattr(options, field.name) != field.default
    ]
    return f"{{{' '.join(changed)}}}" if changed else ""


def _written(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else shlex.quote(str(value))
