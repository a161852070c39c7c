"""`dodeca-opt`: mlir-opt for this compiler. Reads MLIR, runs passes, prints MLIR.

    dodeca-opt model.mlir --pass-pipeline='dodeca-simplify,canonicalize' --mlir-print-ir-after-all

Passes of ours and of upstream MLIR may be mixed. The module is verified after it is read, after
every pass of ours, and before it is printed, by MLIR's rules and by the dialect's. Exit status: 0,
1 if the file is malformed or a pass fails (with file:line:column), 2 if the command line is wrong.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path

from . import bindings as bindings  # before what needs MLIR: it says what is missing

# isort: split

from mlir import ir
from mlir.ir import MLIRError  # pyright: ignore[reportAttributeAccessIssue]  # not in stubs

from .diagnostics import MLIR_NAME, Diagnostic, Source, collected, mismatches
from .dialect.errors import CompileError, Error
from .dialect.ops import context
from .pass_pipeline import Pipeline, build_pipeline, check_module, option_names
from .pass_table import PASSES

SPLIT = "// -----"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the tool; the exit status."""
    options = _parser().parse_args(arguments)
    if options.list_passes:
        print(list_passes(), end="")
        return 0
    try:
        pipeline = build_pipeline(options.pass_pipeline, context())
        source = _read(options.input)
    except Error as error:
        return _complain(str(error), 2)
    _set_printing(pipeline, options)
    found: list[Diagnostic] = []
    receive = found.append if options.verify_diagnostics else _printer(source)
    with context(), ir.Location.unknown(), collected(context(), source, receive):
        parts = split(source.text) if options.split_input_file else [source.text]
        results = [_process(part, pipeline, options) for part in parts]
        del pipeline  # now MLIR prints its timing report
    problems = mismatches(source, found) if options.verify_diagnostics else []
    for problem in problems:
        _printer(source)(problem)
    if problems or (None in results and not options.verify_diagnostics):
        return 1
    output = f"{SPLIT}\n".join(text for text in results if text is not None)
    return _write(options.output, _rename(output, source.name))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="dodeca-opt", description="Runs passes on MLIR modules.", allow_abbrev=False
    )
    add = parser.add_argument
    add("input", nargs="?", default="-", help="a file of MLIR; - is the standard input")
    add("-o", dest="output", default="-", metavar="FILE", help="where to write (standard output)")
    add("--pass-pipeline", default="", metavar="TEXT", help="'pass,anchor(pass),pass{key=value}'")
    add("--list-passes", action="store_true", help="list our passes and their options")
    add("--emit", choices=["mlir"], default="mlir", help="what to write")
    add("--split-input-file", action="store_true", help=f"one module between each two '{SPLIT}'")
    add("--verify-diagnostics", action="store_true", help="compare with expected-error comments")
    add("--mlir-print-ir-before-all", action="store_true", help="print before each pass")
    add("--mlir-print-ir-after-all", action="store_true", help="print after each pass")
    add("--mlir-print-ir-after-change", action="store_true", help="print after passes that change")
    add("--mlir-timing", action="store_true", help="report the time that each pass took")
    add("--mlir-print-op-generic", action="store_true", help="print operations in generic form")
    add("--mlir-print-debuginfo", action="store_true", help="print locations")
    return parser


def list_passes() -> str:
    """Our passes, each with its summary and its options with types and defaults."""
    lines = []
    for row in sorted(PASSES.values(), key=lambda row: row.name):
        lines.append(f"{row.name:24}{row.summary}")
        defaults = {field.name: field.default for field in fields(row.options)}
        for name, (field, kind) in option_names(row).items():
            lines.append(f"  {name:22}{kind.__name__}, default {defaults[field]!r}")
    return "\n".join(lines) + "\n"


def split(text: str) -> list[str]:
    """The modules between `// -----` lines, each with blank lines before it: lines keep numbers."""
    parts, start = [], 0
    for found in [*re.finditer(rf"^{SPLIT}.*\n?", text, re.MULTILINE), None]:
        end = found.start() if found else len(text)
        parts.append("\n" * text.count("\n", 0, start) + text[start:end])
        start = found.end() if found else end
    return parts


def _process(source: str, pipeline: Pipeline, options: argparse.Namespace) -> str | None:
    """The printed module after the passes, None if something failed; why is a diagnostic."""
    try:
        module = ir.Module.parse(source)
    except MLIRError:
        return None
    if not check_module(module.operation):
        return None
    try:
        pipeline.run(module)
    except CompileError as error:
        if not options.verify_diagnostics:
            _complain(str(error), 1)
        return None
    if options.pass_pipeline and not check_module(module.operation):
        return None
    text = module.operation.get_asm(
        enable_debug_info=options.mlir_print_debuginfo,
        print_generic_op_form=options.mlir_print_op_generic,
    )
    return f"{str(text).rstrip()}\n"


def _set_printing(pipeline: Pipeline, options: argparse.Namespace) -> None:
    before, after = options.mlir_print_ir_before_all, options.mlir_print_ir_after_all
    change = options.mlir_print_ir_after_change
    if before or after or change:
        pipeline.enable_ir_printing(
            print_before_all=before,
            print_after_all=after or change,
            print_after_change=change,
            enable_debug_info=options.mlir_print_debuginfo,
            print_generic_op_form=options.mlir_print_op_generic,
        )
    if options.mlir_timing:
        pipeline.enable_timing()


def _read(name: str) -> Source:
    try:
        data = sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
        return Source("<stdin>" if name == "-" else name, data.decode())
    except OSError as error:
        raise Error(f"cannot read {name}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise Error(f"{name} is not text: byte {error.start} is not UTF-8") from None


def _write(name: str, text: str) -> int:
    """Write the output; the exit status. A file changes as a whole or stays as it was."""
    target = Path("/dev/stdout" if name == "-" else name)
    part = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        if name == "-":
            print(text, end="", flush=True)
        elif target.exists() and not target.is_file():  # a pipe or a device
            target.write_text(text)
        else:
            part.write_text(text)
            part.replace(target)
    except BrokenPipeError:  # the reader has seen enough; Python must not flush again at the end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        part.unlink(missing_ok=True)
        return _complain(f"cannot write {target}: {error.strerror}", 2)
    return 0


def _rename(text: str, name: str) -> str:
    """Printed locations name the file, not the memory that MLIR parsed it from."""
    quoted = name.replace("\\", "\\\\").replace('"', '\\"')
    return re.sub(rf'"{MLIR_NAME}"(?=:\d+:\d+)', lambda _: f'"{quoted}"', text)


def _printer(source: Source) -> Callable[[Diagnostic], None]:
    return lambda found: print(found.show(source), file=sys.stderr, flush=True)


def _complain(message: str, status: int) -> int:
    print(f"dodeca-opt: {message}", file=sys.stderr, flush=True)
    return status


if __name__ == "__main__":
    sys.exit(main())
