"""dodeca-opt and the registry behind it: pipelines, options, failures, expected diagnostics."""

import gc
import os
import weakref
from dataclasses import dataclass
from typing import Any

import pytest
from dodeca.dialect import context
from dodeca.dialect.errors import CompileError, Error
from dodeca.passes import registry
from dodeca.passes.opt import main, split
from dodeca.passes.registry import NoOptions, Pass, PassFailure, build_pipeline, register
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
    if options.mode == "failure":
        raise PassFailure(first, "cannot take this")
    if options.mode == "error":
        raise Error("cannot take any")
    if options.mode == "bug":
        raise ZeroDivisionError("a mistake")
    if options.mode == "breaks-dialect":
        first.operation.results[0].set_type(ir.Type.parse("tensor<5xf32>"))
    if options.mode == "breaks-mlir":
        ir.Operation.create("func.return", operands=[], ip=ir.InsertionPoint(first))
    if options.mode == "warns":
        first.location.emit_error("only said")


@pytest.fixture(autouse=True)
def probe_pass(monkeypatch) -> None:
    monkeypatch.setitem(registry.PASSES, "dodeca-probe", Pass("dodeca-probe", "", Options, probe))
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
    ("dodeca-probe{mode='x}", "pipeline: missing \"'\" after"),
    ("cse{deep=1}", "pipeline: cse{deep=1}: .*no such option deep"),
    ("canonicalize{max-iterations=x}", "pipeline: canonicalize{max-iterations=x}: .*invalid"),
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


def test_two_passes_of_one_name() -> None:
    with pytest.raises(Error, match="two passes are called dodeca-probe"):
        register("dodeca-probe", "another")(lambda module, options: None)


def test_every_pass_is_well_formed() -> None:
    for name, row in registry.all_passes().items():
        assert name == row.name
        assert name.startswith("dodeca-")
        assert {kind for _, kind in registry.option_names(row).values()} <= {str, int, bool}
        assert row.options() == row.options()  # every option has a default
        assert hash(row.options())  # and they are frozen
    assert registry.PASSES["dodeca-verify"].options is NoOptions


# --- failures -----------------------------------------------------------------------------------

FAILURES = [
    ("failure", r"-:2:8: error: cannot take this"),
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


def test_an_upstream_pass_that_fails_is_named(parse) -> None:
    """MLIR does not say which one failed: it is one of those between two of ours."""
    text = 'func.func @f() { "scf.for"() : () -> () return }'
    loop = """func.func @f(%n: index) {
      "test.nothing"() : () -> ()
      return
    }"""
    del text, loop
    source = "func.func @f(%x: memref<?xf32, strided<[?], offset: ?>>) -> index { %c = arith.constant"
    source += " 0 : index %d = memref.dim %x, %c : memref<?xf32, strided<[?], offset: ?>>"
    source += " return %d : index }"
    pipeline = build_pipeline("dodeca-verify,cse,FAILS,dodeca-verify", context())
    del pipeline


def test_the_pipeline_runs_again_after_a_failure(parse) -> None:
    pipeline = build_pipeline("dodeca-simplify,dodeca-probe{mode=failure}", context())
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
