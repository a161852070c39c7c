"""dodeca-opt and what is behind it: pipelines, options, failures, expected diagnostics."""

import gc
import os
import stat
import weakref
from dataclasses import dataclass
from functools import partial

import pytest
from dodeca.dialect.errors import CompileError, Error
from dodeca.dialect.ops import context
from dodeca.opt import main, split
from dodeca.pass_pipeline import Pipeline, build_pipeline, option_names
from dodeca.pass_table import PASSES, ROWS, NoOptions, Pass
from mlir import ir

PLAIN = """func.func @f(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = "dodeca.exp2"(%x) : (tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}
"""


@dataclass(frozen=True)
class Options:
    """The options of the pass for tests: what it does to the module, and one field of each kind."""

    mode: str = "nothing"
    vector_width: int = 4
    fast: bool = False


SEEN: list[Options] = []


def probe(module: ir.Operation, options: Options) -> None:
    """Does to a module what `options.mode` says."""
    SEEN.append(options)
    first = module.regions[0].blocks[0].operations[0].regions[0].blocks[0].operations[0]
    create = partial(ir.Operation.create, loc=first.location, ip=ir.InsertionPoint(first))
    if options.mode == "error":
        raise Error("cannot take any")
    if options.mode == "bug":
        raise ZeroDivisionError("a mistake")
    if options.mode == "breaks-dialect":
        create("dodeca.exp2", [ir.Type.parse("tensor<5xf32>")], list(first.operands))
    if options.mode == "breaks-mlir":
        create("func.return", [], list(first.operands))
    if options.mode == "warns":
        first.location.emit_error("only said")


@pytest.fixture(autouse=True)
def probe_pass(monkeypatch) -> None:
    monkeypatch.setitem(PASSES, "dodeca-probe", Pass("dodeca-probe", "", Options, probe))
    SEEN.clear()


@pytest.fixture
def module(parse) -> ir.Module:
    return parse(PLAIN)


@pytest.fixture
def opt(tmp_path, capfd):
    """`opt(text, *arguments)`: the exit status and both outputs of the tool on a file."""

    def run(text: str | None, *arguments: str) -> tuple[int, str, str]:
        path = tmp_path / "in.mlir"
        if text is not None:
            path.write_text(text)
        status = main([str(path), *arguments])
        out, err = capfd.readouterr()
        return status, out, err.replace(str(tmp_path), "DIR")

    return run


# --- pipelines and options ----------------------------------------------------------------------

PIPELINES = [
    ("dodeca-probe", "dodeca-probe"),
    (" builtin.module( dodeca-probe , func.func( cse ) ) ", "dodeca-probe,func.func(cse)"),
    ("any(cse,dodeca-verify)", "cse,dodeca-verify"),
    ("dodeca-probe{mode='a b, c' fast}", "dodeca-probe{mode='a b, c' fast=true}"),
    ("dodeca-probe{vector-width=0x10 fast=false}", "dodeca-probe{vector-width=16}"),
    ("", ""),
    ("func.func(cse),symbol-dce,cse", "func.func(cse),symbol-dce,cse"),
]


@pytest.mark.parametrize(("text", "printed"), PIPELINES)
def test_pipelines(text, printed, module) -> None:
    pipeline = build_pipeline(text, context())
    assert str(pipeline) == f"builtin.module({printed})"
    pipeline.run(module)
    assert str(build_pipeline(str(pipeline), context())) == str(pipeline)


def test_options_reach_the_pass(module) -> None:
    text = "dodeca-probe{mode=x vector-width=-3 fast=1},dodeca-probe,dodeca-probe{vector-width=8}"
    build_pipeline(text, context()).run(module)
    assert [Options("x", -3, True), Options(), Options(vector_width=8)] == SEEN


REFUSED = [
    ("dodeca-prob", "unknown pass 'dodeca-prob'; did you mean dodeca-probe"),
    ("func.func(cse,nope)", "unknown pass 'nope'"),
    ("dodeca-probe{vector-with=8}", "dodeca-probe: unknown option 'vector-with'; did you mean vec"),
    ("dodeca-probe{vector_width=8}", "dodeca-probe: unknown option 'vector_width'; did you mean"),
    ("dodeca-verify{all}", "dodeca-verify: unknown option 'all'; it has none"),
    ("dodeca-probe{vector-width=x}", "dodeca-probe: option vector-width is an int, got 'x'"),
    ("dodeca-probe{vector-width}", "dodeca-probe: option vector-width needs a value"),
    ("dodeca-probe{fast=yes}", "dodeca-probe: option fast is true or false, got 'yes'"),
    ("dodeca-probe{mode='x}", 'pipeline: missing "\'" after'),
    ("cse{deep=1}", "pipeline: cse{deep=1}: .*no such option deep"),
    ("canonicalize{max-iterations=x}", "pipeline: canonicalize{max-iterations=x}: failed to add"),
    ("func.func(dodeca-probe)", "dodeca-probe runs on the module: it cannot stand inside func.fun"),
    ("func.func(cse,dodeca-verify)", "dodeca-verify runs on the module"),
    ("func.func(cse", "pipeline: missing '\\)' after 'func.func\\(cse'"),
    ("cse)", "pipeline: unexpected '\\)' after 'cse'"),
    ("cse{a=(1}", "pipeline: unexpected '}' after"),
    ("cse,,cse", "pipeline: expected a pass, name or name{options}, got ''"),
    ("cse cse", "pipeline: expected a pass, name or name{options}, got 'cse cse'"),
]


@pytest.mark.parametrize(("text", "message"), REFUSED)
def test_pipelines_refused(text, message) -> None:
    with pytest.raises(Error, match=f"^{message}") as error:
        build_pipeline(text, context())
    assert "\n" not in str(error.value)


def test_no_two_passes_of_one_name() -> None:
    assert len({row.name for row in ROWS}) == len(ROWS)


def test_every_pass_is_well_formed() -> None:
    for name, row in PASSES.items():
        assert name == row.name
        assert name.startswith("dodeca-")
        assert {kind for _, kind in option_names(row).values()} <= {str, int, bool}
        assert row.options() == row.options()  # every option has a default
        assert hash(row.options())  # and they are frozen
    assert PASSES["dodeca-verify"].options is NoOptions


# --- failures -----------------------------------------------------------------------------------

FAILURES = [
    ("error", r"-:\d+:\d+: error: cannot take any"),
    ("breaks-dialect", r"-:2:8: error: exp2: the result is tensor<5xf32>, expected tensor<4xf32>"),
    ("breaks-mlir", r"-:2:8: error: 'func.return' op .*"),
]


@pytest.mark.parametrize(("mode", "diagnostic"), FAILURES)
def test_a_pass_that_fails_is_named(mode, diagnostic, module) -> None:
    pipeline = build_pipeline(f"cse,dodeca-probe{{mode={mode}}},dodeca-verify", context())
    with pytest.raises(CompileError, match=rf"^pass dodeca-probe failed\n  {diagnostic}"):
        pipeline.run(module)


def test_a_mistake_in_a_pass_comes_out_as_it_is(module) -> None:
    pipeline = build_pipeline("dodeca-probe{mode=bug}", context())
    with pytest.raises(ZeroDivisionError, match="a mistake"):
        pipeline.run(module)


def test_an_upstream_pass_that_fails_is_named(module) -> None:
    """MLIR does not say which: it is one of those since the last pass of ours that ran."""
    text = "symbol-dce,dodeca-verify,cse,one-shot-bufferize,dodeca-verify,canonicalize"
    with pytest.raises(CompileError) as error:
        build_pipeline(text, context()).run(module)
    first, *rest = str(error.value).splitlines()
    assert first == "pass cse or one-shot-bufferize failed"
    assert rest[0] == "  -:2:8: error: op was not bufferized"
    assert rest[1].startswith("  -:2:8: note: see current operation")
    with pytest.raises(CompileError, match=r"^pass one-shot-bufferize failed"):
        build_pipeline("dodeca-verify,one-shot-bufferize,dodeca-verify", context()).run(module)


def test_the_pipeline_runs_again_after_a_failure(parse) -> None:
    pipeline = build_pipeline("dodeca-simplify,dodeca-probe{mode=breaks-dialect}", context())
    for _ in range(2):
        with pytest.raises(CompileError, match="pass dodeca-probe failed"):
            pipeline.run(parse(PLAIN))


def test_pipelines_are_freed(module) -> None:
    pipeline = build_pipeline("dodeca-probe", context())
    pipeline.run(module)
    state = weakref.ref(pipeline._state)
    del pipeline
    gc.collect()
    assert state() is None


# --- the tool -----------------------------------------------------------------------------------


def test_output_and_status(opt, tmp_path) -> None:
    status, out, err = opt(PLAIN)
    assert (status, err) == (0, "")
    assert out.startswith("module {\n  func.func @f(%arg0: tensor<4xf32>)")
    assert opt(PLAIN, "--mlir-print-op-generic")[1].startswith('"builtin.module"() ({')
    target = tmp_path / "out.mlir"
    assert opt(PLAIN, "-o", str(target)) == (0, "", "")
    assert target.read_text() == out
    assert opt("", "--emit=mlir") == (0, "module {\n}\n", "")


def test_a_file_is_written_whole_or_not_at_all(opt, tmp_path) -> None:
    target = tmp_path / "out.mlir"
    target.write_text("old")
    assert opt("func.func @f(", "-o", str(target))[0] == 1
    assert target.read_text() == "old"
    missing = str(tmp_path / "no" / "such")
    status, _, err = opt(PLAIN, "-o", missing)
    assert (status, err) == (2, "dodeca-opt: cannot write DIR/no/such: No such file or directory\n")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["in.mlir", "out.mlir"]


def test_a_pipe_is_written_to_not_replaced(opt, tmp_path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        assert opt(PLAIN, "-o", str(pipe))[0] == 0
        assert stat.S_ISFIFO(pipe.stat().st_mode)
        assert os.read(reader, 10_000).startswith(b"module {")
    finally:
        os.close(reader)


def test_one_line_for_what_cannot_be_read(opt, tmp_path) -> None:
    assert opt(None) == (2, "", "dodeca-opt: cannot read DIR/in.mlir: No such file or directory\n")
    (tmp_path / "in.mlir").write_bytes(b"func\xff")
    assert opt(None) == (2, "", "dodeca-opt: DIR/in.mlir is not text: byte 4 is not UTF-8\n")
    assert opt(PLAIN, "--pass-pipeline=nope")[::2] == (
        2,
        f"dodeca-opt: unknown pass 'nope'; there are {', '.join(PASSES)}\n",
    )


def test_a_failing_pass(opt) -> None:
    status, out, err = opt(PLAIN, "--pass-pipeline=dodeca-probe{mode=breaks-dialect}")
    assert (status, out) == (1, "")
    assert err.splitlines() == [
        "DIR/in.mlir:2:8: error: exp2: the result is tensor<5xf32>, expected tensor<4xf32>",
        PLAIN.splitlines()[1],
        "       ^",
        "dodeca-opt: pass dodeca-probe failed",
    ]


def test_upstream_passes_may_not_break_the_dialect(opt, monkeypatch) -> None:
    """The module is verified at the end too, whoever changed it last."""

    def foreign(module: ir.Operation, external: object) -> None:
        with module.context, ir.Location.unknown():
            probe(module, Options("breaks-dialect"))

    def build(text: str, context: ir.Context) -> Pipeline:
        pipeline = build_pipeline("", context)
        pipeline.add(foreign, name="foreign", argument=text)
        return pipeline

    monkeypatch.setattr("dodeca.opt.build_pipeline", build)
    status, out, err = opt(PLAIN, "--pass-pipeline=foreign")
    assert (status, out) == (1, "")
    assert "DIR/in.mlir:2:8: error: exp2: the result is tensor<5xf32>" in err


def test_split() -> None:
    text = "one\n// -----\ntwo\n\n// ----- and so on\nthree"
    assert split(text) == ["one\n", "\n\ntwo\n\n", "\n\n\n\n\nthree"]
    assert split("one") == ["one"]
    assert split("// -----\n") == ["", "\n"]


def test_split_files_are_joined_again(opt) -> None:
    text = f"{PLAIN}// -----\n{PLAIN}"
    status, out, _ = opt(text, "--split-input-file")
    assert status == 0
    first, second = out.split("// -----\n")
    assert first == second == opt(PLAIN)[1]
    assert opt(text, "--verify-diagnostics")[0] == 1  # without splitting @f is there twice


def test_locations(opt) -> None:
    _, out, _ = opt(PLAIN, "--mlir-print-debuginfo")
    assert 'in.mlir":2:8)' in out
    assert '"-"' not in out


def test_the_context_is_left_as_it_was(opt) -> None:
    opt(PLAIN)
    assert not context().emit_error_diagnostics
    with pytest.raises(ir.MLIRError, match="error: "), context():
        ir.Module.parse("func.func @f(")


# --- expected diagnostics -----------------------------------------------------------------------

BAD = '  %0 = "dodeca.exp2"(%x) : (tensor<4xi8>) -> tensor<4xi8>'
WHAT = "exp2: operand 0 is int8"


def function(*lines: str) -> str:
    return "\n".join(["func.func @f(%x: tensor<4xi8>) {", *lines, "  return", "}", ""])


MET = {
    "same line": [f"{BAD} // expected-error {{{{{WHAT}}}}}"],
    "below": [f"// expected-error @below {{{{{WHAT}}}}}", BAD],
    "above": [BAD, f"// expected-error @above {{{{{WHAT}}}}}"],
    "below and blank": [f"// expected-error @+3 {{{{{WHAT}}}}}", "", "// text", BAD],
    "minus": [BAD, "", f"// expected-error@-2 {{{{{WHAT}}}}}"],
    "two below": [
        "// expected-error @below {{operand 0 is int8}}",
        "// expected-error @below {{it takes float32}}",
        BAD,
    ],
    "regular expression": [
        "// expected-error-re @below {{operand {{[0-9]}} is int{{8|16}};}}",
        BAD,
    ],
    "nothing wrong": [],
}


@pytest.mark.parametrize("lines", MET.values(), ids=MET)
def test_expectations_met(lines, opt) -> None:
    status, _, err = opt(function(*lines), "--verify-diagnostics")
    assert (status, err) == (0, "")


NOT_MET = {
    "unexpected": ([BAD], ["in.mlir:2:8: error: unexpected error: exp2: operand 0 is int8"]),
    "not produced": (
        ["// expected-error @below {{boo}}", "  %c = arith.constant 0 : index"],
        ['in.mlir:2:1: error: expected error "boo" was not produced'],
    ),
    "other line": (
        [f"// expected-error {{{{{WHAT}}}}}", BAD],
        ["in.mlir:3:8: error: unexpected error: exp2", "in.mlir:2:1: error: expected error"],
    ),
    "other text": (
        ["// expected-error @below {{sin: operand 0}}", BAD],
        ["in.mlir:3:8: error: unexpected error: exp2", "in.mlir:2:1: error: expected error"],
    ),
    "other severity": (
        [f"// expected-warning @below {{{{{WHAT}}}}}", BAD],
        ["in.mlir:3:8: error: a warning was expected, not a error: exp2", "in.mlir:2:1: error"],
    ),
    "a pattern is no pattern without -re": (
        ["// expected-error @below {{operand . is int8}}", BAD],
        ["in.mlir:3:8: error: unexpected error", "in.mlir:2:1: error: expected error"],
    ),
}


@pytest.mark.parametrize(("lines", "shown"), NOT_MET.values(), ids=NOT_MET)
def test_expectations_not_met(lines, shown, opt) -> None:
    status, _, err = opt(function(*lines), "--verify-diagnostics")
    assert status == 1
    errors = [line for line in err.splitlines() if line.startswith("DIR/")]
    assert len(errors) == len(shown)
    for line, start in zip(errors, shown, strict=True):
        assert line.startswith(f"DIR/{start}")


def test_expectations_of_passes_and_notes(opt) -> None:
    """What a pass says is compared too; it may say it and go on."""
    said = "// expected-error @below {{only said}}\n"
    text = PLAIN.replace("  %0", f"{said}  %0")
    flags = ["--verify-diagnostics", "--pass-pipeline=dodeca-probe{mode=warns}"]
    assert opt(text, *flags)[0] == 0
    assert opt(PLAIN, *flags)[0] == 1
    assert opt(text, "--verify-diagnostics")[0] == 1
    twice = (
        "func.func private @g()\n// expected-note @above {{see existing symbol definition here}}\n"
    )
    clash = (
        "// expected-error @below {{redefinition of symbol named 'g'}}\nfunc.func private @g()\n"
    )
    assert opt(twice + clash, "--verify-diagnostics")[::2] == (0, "")
    assert opt(twice.splitlines()[0] + "\n" + clash, "--verify-diagnostics")[0] == 1


def test_expectations_in_split_files(opt) -> None:
    """Each module's expectations are at the lines of the whole file."""
    good = function(f"// expected-error @below {{{{{WHAT}}}}}", BAD)
    assert opt(f"{good}// -----\n{good}", "--verify-diagnostics", "--split-input-file")[0] == 0
    status, _, err = opt(
        f"{good}// -----\n{function(BAD)}", "--verify-diagnostics", "--split-input-file"
    )
    assert status == 1
    assert "DIR/in.mlir:8:8: error: unexpected error" in err


def test_a_name_for_several_passes(module, monkeypatch, opt) -> None:
    """It stands for its text, with its options, also inside another such name."""
    texts = {
        "dodeca-once": (Options, lambda options: f"cse,dodeca-probe{{mode={options.mode}}}"),
        "dodeca-twice": (NoOptions, lambda options: "dodeca-once,dodeca-once{mode=x}"),
    }
    for name, (kind, expands) in texts.items():
        monkeypatch.setitem(PASSES, name, Pass(name, "Once", kind, expands=expands))
    pipeline = build_pipeline("dodeca-twice", context())
    assert str(pipeline) == "builtin.module(cse,dodeca-probe,cse,dodeca-probe{mode=x})"
    pipeline.run(module)
    assert [o.mode for o in SEEN] == ["nothing", "x"]
    with pytest.raises(CompileError, match=r"^pass dodeca-probe failed"):
        build_pipeline("dodeca-once{mode=breaks-dialect}", context()).run(module)
    assert (
        "dodeca-once             Once\n  mode                  str, default 'nothing'"
        in opt(PLAIN, "--list-passes")[1]
    )
