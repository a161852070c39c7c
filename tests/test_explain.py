"""Explanations: they say what is equal, by steps that hold, with no rule too many."""

import ast
import importlib
import os
import re
import subprocess
import sys
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import dodeca as dd
import numpy as np
import pytest
from derivations import DERIVATIONS
from dodeca.dialect import DTYPES
from dodeca.explaining import equality, programs
from dodeca.explaining.equality import Question, Search, Trace
from dodeca.passes import rules, terms
from dodeca.passes.index import Axis, axis_order, of_axis
from dodeca.passes.terms import Term, postorder
from instances import instance, pattern, run
from test_derivations import PENDING
from test_readme import run as run_snippet
from test_readme import snippets

explaining: Any = importlib.import_module("dodeca.explain")
ROOT = Path(__file__).resolve().parents[1]
QKV = [dd.spec((12, 8), name=n) for n in "qkv"]
MATRIX = dd.spec((4, 8))


def attend(q: dd.Tensor, k: dd.Tensor, v: dd.Tensor) -> dd.Tensor:
    return dd.softmax(q @ k.mT * 0.125) @ v


def term(graph: dd.Graph) -> Term:
    (found,) = programs.results(graph)
    return found


@cache
def attention() -> tuple[Term, Term]:
    """As it is written, and in one pass: sums that are rescaled where the maximum moves."""
    naive = term(dd.trace(attend, *QKV))
    parts = postorder([naive])
    (score,) = {t.args[0] for t in parts if t.op == "max"}
    (value,) = [t for t in parts if t.op == "load" and t.attr[0] == "v"]
    score = terms.apply("mul", score, number(1.4426950408889634))
    total = terms.reduction("roll", naive.attr, score, number(1))
    weighted = terms.reduction("roll", naive.attr, score, value)
    return naive, terms.apply("mul", weighted, terms.apply("recip", total))


def number(x: float) -> Term:
    return terms.constant(x, DTYPES["float32"])


@cache
def explained() -> Any:
    return dd.explain(*attention())


# --- why programs are equal ---------------------------------------------------------------------


def test_attention_is_explained() -> None:
    found = explained()
    assert found.equal
    assert {"float", "hoist_sum", "rolling"} <= set(found.rules)
    assert not {"factor", "split", "exchange"} & set(found.rules)
    assert {step.rule for step in found.steps} == set(found.rules) - {"commute"}
    text = str(found)
    assert text.startswith(f"equal by {len(found.rules)} rules (commute, float")
    assert "sum(j, exp2(x - max(j, x)) * y) = roll(j, x, y)" in text
    hoisted = next(step for step in found.steps if step.rule == "hoist_sum")
    assert hoisted.law == "sum(j, x * y) = x * sum(j, y)"
    assert hoisted.before.startswith("sum(r0, ") and "sum(r0, " in hoisted.after


def test_no_rule_and_no_step_is_too_much() -> None:
    left, right = attention()
    question = Question(((left, right),))
    every = {rule.name for rule in rules.TABLE}

    def proves(kept: set[str]) -> bool:
        return Search(question, every - kept).same(left, right)

    needed = set(explained().rules)
    assert proves(needed)
    assert not any(proves(needed - {rule}) for rule in needed)
    trace = Trace(question, every - needed)
    goals = [(trace.numbers.add(left), trace.numbers.add(right))]
    steps = {trace.equations.index(e) for e in trace.proof([(left, right)]) or ()}
    assert len(steps) == len(explained().steps)
    assert trace.proves(steps, goals)
    assert not any(trace.proves(steps - {step}, goals) for step in steps)


def test_the_sides_of_a_step_are_equal() -> None:
    """Every equation that the search found, by the interpreter."""
    trace = Trace(Question((attention(),)))
    rng = np.random.default_rng(0)
    arrays = {n: rng.standard_normal((12, 8)).astype(np.float32) for n in "qkv"}
    assert len(trace.equations) > 10
    for equation in trace.equations:
        sides = [terms.plain(read(trace.numbers, n)) for n in (equation.left, equation.right)]
        axes = axis_order(sides[0].axes | sides[1].axes)
        left, right = (run(side, arrays, axes) for side in sides)
        np.testing.assert_allclose(left, right, rtol=1e-4, atol=1e-6, err_msg=equation.rule)


OPS = {"sum_of": "add", "product_of": "mul", "sum_over": "sum", "max_over": "max"}


def read(numbers: equality.Numbers, n: int) -> Term:
    """The term that an explanation's number stands for."""
    op, data, below = numbers.pool.made[n]
    args = [read(numbers, c) for c in below]
    if op == "leaf":
        return numbers.terms[int(data[0])]
    if op == "real":
        return terms.constant(float.fromhex(data[1]), DTYPES[data[0]])
    if op in ("sum_of", "product_of"):
        return terms.apply(OPS[op], *args)
    if op in ("apply1", "apply2"):
        return terms.apply(data[0], *args)
    name, _, size = data[0].partition(":")
    axis = Axis(name, int(size))
    if op in ("sum_over", "max_over"):
        return terms.reduction(OPS[op], axis, *args)
    if op == "contract":
        return terms.reduction("sum", axis, terms.apply("mul", *args))
    assert op == "roll"
    return terms.reduction("roll", axis, *args)


SEARCHED = [r for r in rules.TABLE if r.rewrites and r.name != "commute"]


@pytest.mark.parametrize("rule", SEARCHED, ids=[r.name for r in SEARCHED])
def test_every_rule_is_seen_at_work(rule: rules.Rule) -> None:
    """Both sides of its law, on instances that it was made for, and where its conditions hold."""
    shape = pattern(rule.rewrites[-1])
    made = instance(shape, "int32" if "integer" in shape.ops else "float32")
    right = terms.rolled(made.right)
    if rule.name == "contraction":  # it only names the loop
        assert dd.why_not(rule.name, made.left).fired
        return
    splits = tuple((whole, *parts) for whole, parts in made.splits.items())
    pairs = ((made.left, right), *((t, t) for t in made.around))
    trace = Trace(Question(pairs, splits=splits, early=made.early))
    assert trace.same(*pairs[0])
    assert rule.name in {equation.rule for equation in trace.proof(pairs[:1]) or ()}


def test_what_is_not_equal() -> None:
    found = dd.explain(
        lambda x, w: dd.sum(x * w) + 1.0,
        lambda x, w: dd.sum(x) * dd.sum(w) + 1.0,
        dd.spec((7,)),
        dd.spec((7,)),
    )
    assert not found.equal and not found.steps and not found.rules
    text = str(found)
    assert text.startswith("not proved equal; the search ended with ")
    assert text.count("is not proved equal to") == 1
    assert "they part at" in text
    product, sums = "sum(r0, w[r0] * x[r0])", "sum(r0, w[r0]) * sum(r0, x[r0])"
    assert found.results[0].parting == (product, sums)


def test_some_results_may_be_equal() -> None:
    found = dd.explain(
        lambda x, w: (dd.sum(x * w, axis=-1), dd.max(x * w, axis=-1)),
        lambda x, w: (dd.sum(x, axis=-1) * w[:, 0], dd.max(x, axis=-1) * w[:, 0]),
        MATRIX,
        dd.spec((4, 1)),
    )
    assert [r.equal for r in found.results] == [True, False]
    assert not found.equal
    assert found.rules == ("hoist_sum",)
    assert "result 1\n" in str(found)


def test_equal_terms_need_no_rule() -> None:
    found = dd.explain(lambda x, y: x + y, lambda u, v: v + u, MATRIX, MATRIX)
    assert found.equal and not found.rules
    assert str(found).startswith("equal as they stand")


def test_axes_may_have_other_names() -> None:
    specs = [dd.spec((7, 8)), dd.spec((8, 9)), dd.spec((9, 5))]
    found = dd.explain(lambda a, b, x: (a @ b) @ x, lambda a, b, x: a @ (b @ x), *specs)
    assert found.equal and found.results[0].renamed
    assert "exchange" in found.rules
    assert "equals, with other names for its axes" in str(found)


def test_what_buffers_hold_is_used() -> None:
    rows, columns = Axis("d0", 4), Axis("r0", 8)
    x = terms.load("x", (of_axis(rows), of_axis(columns)), (4, 8), DTYPES["float32"])
    total = terms.reduction("sum", columns, x)
    stored = terms.load("v3", (of_axis(rows),), (4,), DTYPES["float32"])
    left, right = (terms.apply("exp2", t) for t in (total, stored))
    found = explaining.explain_terms(left, right, equal=[(stored, total)])
    assert found.equal and found.rules == ("fusion",)
    (step,) = found.steps
    assert (step.before, step.after) == ("v3[d0]", "sum(r0, x[d0, r0])")
    assert not explaining.explain_terms(left, right).equal


def test_a_strict_search_knows_exact_rules_only() -> None:
    halves = (lambda x: dd.max(x * 0.5), lambda x: dd.max(x) * 0.5)
    assert dd.explain(*halves, MATRIX, precision="strict").equal
    sums = (lambda x: dd.sum(x * 0.5, axis=0), lambda x: dd.sum(x, axis=0) * 0.5)
    assert not dd.explain(*sums, MATRIX, precision="strict").equal
    assert dd.explain(*sums, MATRIX).equal


def test_graphs_terms_and_functions_mix() -> None:
    graph = dd.trace(lambda x: dd.sum(x * 0.5, axis=0), MATRIX)
    other = dd.trace(lambda z: dd.sum(z, axis=0) * 0.5, MATRIX)
    assert dd.explain(graph, other).equal
    assert dd.explain(graph, lambda y: dd.sum(y, axis=0) * 0.5).equal
    assert dd.explain(lambda y: dd.sum(y, axis=0) * 0.5, graph).equal
    assert dd.explain(term(graph), graph).equal


def test_weights_are_matched_by_their_numbers() -> None:
    w, u = np.arange(32, dtype=np.float32).reshape(4, 8), np.ones((4, 8), np.float32)
    first = dd.trace(lambda x: x + w, MATRIX)
    assert dd.explain(first, dd.trace(lambda x: w.copy() + x, MATRIX)).equal
    assert not dd.explain(first, dd.trace(lambda x: x + u, MATRIX)).equal


def test_numbers_are_rounded_where_they_are_made() -> None:
    """In float64 x * 0.1 * 3 is no x * (0.1 * 3): the sum is a rolling one after the rounding."""
    row, place = Axis("d0", 4), Axis("r0", 8)
    x = terms.load("x", (of_axis(row), of_axis(place)), (4, 8), DTYPES["float32"])
    scaled = terms.apply("mul", number(0.1), number(3))  # a constant of float32
    top = terms.reduction("max", place, terms.apply("mul", x, scaled))
    score = terms.apply("mul", terms.apply("mul", x, number(0.1)), number(3))
    naive = terms.reduction("sum", place, terms.apply("exp2", score - top))
    rolling = terms.reduction("roll", place, terms.apply("mul", x, scaled), number(1))
    found = explaining.explain_terms(naive, rolling)
    assert found.equal
    assert {"scales", "fold", "rolling"} <= {step.rule for step in found.steps}


# --- what a program becomes ---------------------------------------------------------------------

DERIVED = [name for name in DERIVATIONS if name not in PENDING]


def check_derivation(name: str) -> Any:
    """That there is a path of rules to what each kernel stores."""
    row = DERIVATIONS[name]
    found = dd.explain(row.graph(row.n))
    assert found.kernels
    for kernel, answer in found.kernels.items():
        (result,) = answer.results
        text = f"kernel {kernel}: {answer}"
        assert text in str(found)
        assert text.startswith(f"kernel {kernel}: equal ")
        assert not result.renamed
        assert {step.rule for step in answer.steps} == {*answer.rules} - {"commute"}, text
        assert answer.steps or result.left == result.right, text
        for step in answer.steps:
            assert f"{step.before}\n  -> {step.after}" in text
            assert all(map(has_form, step.law.split(" = "), (step.before, step.after))), text
    return found


def has_form(law: str, text: str) -> bool:
    """Whether a term is a fold where the side of its law is one."""
    with suppress(SyntaxError):
        tree = ast.parse(law.strip(), mode="eval").body
        if isinstance(tree, ast.Call) and ast.unparse(tree.func) in (*terms.FOLDS, "contract"):
            return text.startswith(f"{ast.unparse(tree.func)}(")
    return True


@pytest.mark.parametrize("name", DERIVED)
def test_every_kernel_is_derived(name: str) -> None:
    check_derivation(name)


def test_a_softmax_rolls() -> None:
    found = check_derivation("softmax")
    assert "rolling" in found.rules and "hoist_sum" not in found.rules
    assert any("roll(r0, " in kernel.results[0].right for kernel in found.kernels.values())


def test_results_are_told_apart() -> None:
    """Also where one kernel has both."""
    found = dd.explain(lambda x: (dd.sum(x, axis=1), dd.max(x * 0.5, axis=1)), dd.spec((40, 3000)))
    total, most = found.kernels.values()
    assert total.results[0].left == total.results[0].right == "sum(r0, x[d0, r0])"
    assert most.rules == ("hoist_max",)


def test_what_rules_made_is_told_with_its_reader() -> None:
    """A (B x): the vector B x is no value of the program."""
    part, whole = check_derivation("matmul_chain").kernels.items()
    assert part[1].results[0].reader == whole[0] and whole[1].results[0].reader is None
    assert f"{part[0]}[" in whole[1].results[0].right
    assert part[1].steps == whole[1].steps
    assert f"is no value of the program, but made by the rules for {whole[0]}:" in str(part[1])


def test_layers_read_what_others_store() -> None:
    """Each layer is a region of its own, so its kernels follow from what the one before stores."""

    def layers(x: dd.Tensor) -> dd.Tensor:
        for _ in range(3):
            x = x + dd.softmax(dd.log_softmax(x) * dd.softmax(x))
        return x

    kernels = dd.explain(layers, dd.spec((16, 8), name="x")).kernels
    assert all(answer.equal for answer in kernels.values())
    names = list(kernels)
    first, second, third = (
        names[i * len(names) // 3 : (i + 1) * len(names) // 3] for i in range(3)
    )
    assert second == [f"{name}.2" for name in first] and third == [f"{name}.3" for name in first]
    assert "x[" in str(kernels[first[0]]) and f"{first[-1]}[" not in str(kernels[first[0]])
    assert "x[" not in str(kernels[second[0]]) and f"{first[-1]}[" in str(kernels[second[0]])


def test_what_is_asked_must_make_sense() -> None:
    with pytest.raises(dd.Error, match=r"one program takes float32 \(4, 8\), the other float32 \("):
        dd.explain(dd.trace(dd.exp2, MATRIX), dd.trace(dd.exp2, dd.spec((4, 9))))
    with pytest.raises(dd.Error, match=r"the results are tensor<4xf32> in one program, tensor<8xf"):
        dd.explain(lambda x: dd.sum(x, axis=1), lambda x: dd.sum(x, axis=0), MATRIX)
    with pytest.raises(dd.ArgumentError, match="precision is fast or strict, not 'exact'"):
        dd.explain(dd.exp2, dd.exp2, MATRIX, precision="exact")
    with pytest.raises(dd.ArgumentError, match="a term is compared with another program"):
        dd.explain(number(1))
    with pytest.raises(dd.ArgumentError, match="a Graph has its specs"):
        dd.explain(dd.trace(dd.exp2, MATRIX), MATRIX)
    with pytest.raises(dd.Error, match="n must be a number"):
        dd.explain(dd.exp2, dd.exp2, dd.spec((dd.Dim("n", 1, 9),)))


# --- why a rule did nothing ---------------------------------------------------------------------


def test_a_factor_that_moves_stays_in_the_sum() -> None:
    found = dd.why_not("hoist_sum", lambda a, b: a @ b, MATRIX, dd.spec((8, 4)))
    assert not found.fired
    (place,) = found.blocked
    assert place.term == "sum(r0, a[d0, r0] * b[r0, d1])"
    failing = [("x does not depend on j",)] * 2
    assert [conditions for _, conditions in place.tries] == failing
    assert {names["x"] for names, _ in place.tries} == {"a[d0, r0]", "b[r0, d1]"}
    assert all(names["j"] == "r0" for names, _ in place.tries)
    assert '"x does not depend on j" does not hold' in str(found)


def test_where_a_rule_applied() -> None:
    found = dd.why_not("hoist_sum", attend, *QKV)
    assert found.verdict == "applied at 1 place, stopped at 2"
    ((names, conditions),) = found.fired[0].tries
    assert names["x"].startswith("recip(sum(r0, ") or names["x"] in found.shared
    assert conditions == ()


def test_a_maximum_of_another_score() -> None:
    def below(x: dd.Tensor, y: dd.Tensor) -> dd.Tensor:
        return dd.sum(dd.exp2(x - dd.max(y, axis=-1, keepdims=True)), axis=-1)

    found = dd.why_not("rolling", below, MATRIX, MATRIX)
    (place,) = found.blocked
    assert place.term == "sum(r0, exp2(x[d0, r0] - max(r0, y[d0, r0])))"
    ((names, conditions),) = place.tries
    assert (names["x"], names["x'"]) == ("x[d0, r0]", "y[d0, r0]")
    assert conditions == ("x is x'",)
    assert dd.why_not("rolling", lambda x: below(x, x), MATRIX).fired


def test_a_rule_that_the_precision_leaves_out() -> None:
    found = dd.why_not(
        "hoist_sum", lambda x, w: dd.sum(x * w), MATRIX, dd.spec(()), precision="strict"
    )
    assert "precision 'strict' takes exact rules alone" in found.verdict
    assert "it would apply at 1 place" in found.verdict
    assert not found.fired


def test_no_term_has_the_shape() -> None:
    assert dd.why_not("factor", lambda x: dd.exp2(x), MATRIX).verdict == "no term has its shape"


def test_a_condition_of_the_shape_is_named() -> None:
    found = dd.why_not("float", lambda x, y, z: (x * y) * z, MATRIX, MATRIX, MATRIX)
    assert {c for place in found.blocked for _, c in place.tries} == {("in a sum over j",)}


def test_a_rule_without_anything_else_to_do() -> None:
    """Where no rule changes anything, as here, the e-graph is still looked into."""
    found = dd.why_not("max_of_still", lambda x: dd.max(dd.exp2(x), axis=-1), MATRIX)
    (place,) = found.blocked
    assert place.term == "max(r0, exp2(x[d0, r0]))"
    assert dd.why_not("max_of_still", lambda x: dd.exp2(x), MATRIX).blocked == ()


def test_laws_that_are_not_searched_for() -> None:
    assert "when a term is built" in dd.why_not("unit", lambda x: x * 1.0, MATRIX).verdict
    specs = [dd.spec((9, 4)), dd.spec((5,), "int64")]
    assert dd.why_not("pick", lambda t, i: dd.one_hot(i, 9) @ t, *specs).fired
    assert dd.why_not("pick", lambda t, i: dd.take(t, i, axis=0), *specs).fired == ()


def test_an_unknown_rule_is_an_error() -> None:
    with pytest.raises(dd.Error, match="no rule 'hoist_summ'; did you mean hoist_sum"):
        dd.why_not("hoist_summ", attend, *QKV)


# --- the picture --------------------------------------------------------------------------------

DOT_LINE = re.compile(
    r"digraph egraph \{|  compound=true;|  node \[.*\];|  subgraph cluster_\d+ \{ style=\w+;|"
    r'    n\d+_\d+ \[label="(?:[^"\\]|\\.)*"\];|  \}|'
    r"  n\d+_\d+ -> n\d+_0 \[lhead=cluster_\d+(?:, label=\d+)?\];|\}"
)


def test_the_picture_is_dot(tmp_path: Path) -> None:
    path = tmp_path / "picture.dot"
    text = dd.egraph_picture(attend, *QKV, path=path)
    assert path.read_text() == text
    assert os.listdir(tmp_path) == ["picture.dot"]
    for line in text.splitlines():
        assert DOT_LINE.fullmatch(line), line
    plain = re.sub(r'"(?:[^"\\]|\\.)*"', "", text)
    assert plain.count("{") == plain.count("}") == text.count("subgraph") + 1
    nodes = set(re.findall(r"^    (n\d+_\d+) ", text, re.MULTILINE))
    used = set(re.findall(r"(n\d+_\d+)(?: ->| \[lhead)", text))
    assert used <= nodes
    assert '[label="roll r0"]' in text and '[label="q[d0, r1]"]' in text


def test_a_picture_has_limits(tmp_path: Path) -> None:
    def long(x: dd.Tensor) -> dd.Tensor:
        for n in range(301):
            x = dd.exp2(x) if n % 2 else dd.sqrt(x)
        return x

    with pytest.raises(dd.Error, match=r"has 30\d nodes, and a picture of more than 300"):
        dd.egraph_picture(long, MATRIX)
    with pytest.raises(dd.Error, match=r"cannot write .*missing.picture\.dot: No such file"):
        dd.egraph_picture(dd.exp2, MATRIX, path=tmp_path / "missing" / "picture.dot")


# --- the command --------------------------------------------------------------------------------

TOTAL = """func.func @f(%x: tensor<4x8xf32>, %w: tensor<4xf32>) -> tensor<4xf32> {
  %0 = "dodeca.contiguous"(%w) {fill = 0.0 : f32, maps = [affine_map<(d0, d1) -> (d0)>],
    operandSegmentSizes = array<i32: 1, 0, 0, 0, 0>} : (tensor<4xf32>) -> tensor<4x8xf32>
  %1 = "dodeca.mul"(%x, %0) : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<4x8xf32>
  %2 = "dodeca.sum_reduce"(%1) {axis = 1 : i64} : (tensor<4x8xf32>) -> tensor<4xf32>
  return %2 : tensor<4xf32>
}
"""
HOISTED = """func.func @f(%x: tensor<4x8xf32>, %w: tensor<4xf32>) -> tensor<4xf32> {
  %0 = "dodeca.sum_reduce"(%x) {axis = 1 : i64} : (tensor<4x8xf32>) -> tensor<4xf32>
  %1 = "dodeca.mul"(%0, %w) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  return %1 : tensor<4xf32>
}
"""


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    for name, text in (("total", TOTAL), ("hoisted", HOISTED)):
        (tmp_path / f"{name}.mlir").write_text(text)
    (tmp_path / "bad.mlir").write_text(HOISTED.replace("axis = 1", "axis = 2"))
    return [str(tmp_path / f"{name}.mlir") for name in ("total", "hoisted", "bad", "missing")]


def test_the_command_answers(files: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert explaining.main(files[:2]) == 0
    assert re.match(r"equal by \d rules? \(.*hoist_sum\)", capsys.readouterr().out)
    assert explaining.main([*files[:2], "--precision=strict"]) == 0
    assert capsys.readouterr().out.startswith("not proved equal")
    assert explaining.main([files[0], "--why-not=hoist_sum"]) == 0
    assert "applied at 1 place" in capsys.readouterr().out
    assert explaining.main([files[0], "--picture=-"]) == 0
    assert capsys.readouterr().out.startswith("digraph egraph {")


def test_the_command_says_what_is_wrong(
    files: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    total, _, bad, missing = files
    assert explaining.main([bad]) == 1
    assert "bad.mlir:2:8: error: sum_reduce: axis 2" in capsys.readouterr().err
    assert explaining.main([missing]) == 2
    assert capsys.readouterr().err.startswith("dodeca.explain: cannot read ")
    assert explaining.main([total, "--why-not=hoist"]) == 2
    assert "did you mean hoist_" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        explaining.main([total, total, "--why-not=hoist_sum"])


# --- the same in every process ------------------------------------------------------------------

EVERYTHING = """
import sys
import dodeca as dd

assert "egglog.bindings" not in sys.modules  # it is imported by the first question

def attend(q, k, v):
    return dd.softmax(q @ k.mT * 0.125) @ v

def by_hand(q, k, v):
    s = q @ k.mT * 0.125
    e = dd.exp2((s - dd.max(s, axis=-1, keepdims=True)) * 1.4426950408889634)
    return e @ v * dd.reciprocal(dd.sum(e, axis=-1, keepdims=True))

specs = [dd.spec((12, 8), name=n) for n in "qkv"]
print(dd.explain(attend, by_hand, *specs))
print(dd.why_not("hoist_sum", attend, *specs))
print(dd.egraph_picture(attend, *specs))
"""


def test_the_answers_do_not_depend_on_the_hash_seed() -> None:
    running = [
        subprocess.Popen(
            [sys.executable, "-c", EVERYTHING],
            env={**os.environ, "PYTHONHASHSEED": seed},
            stdout=subprocess.PIPE,
            text=True,
        )
        for seed in ("0", "1")
    ]
    (answer,) = {process.communicate()[0] for process in running}
    assert answer.startswith("equal by ")
    assert "applied at 1 place" in answer and "digraph egraph {" in answer


def test_the_command_warns_of_nothing(files: list[str]) -> None:
    command = [sys.executable, "-m", "dodeca.explain", files[0], "--why-not=hoist_sum"]
    found = subprocess.run(command, capture_output=True, text=True, check=True)
    assert found.stderr == ""


# --- the page -----------------------------------------------------------------------------------


PAGE = ROOT / "docs" / "explain.md"


def page() -> str:
    """The page; each snippet is run, and the block after it, if there is one, is what it prints."""
    names: dict[str, Any] = {}
    parts = re.split(r"(?<=```)\n\n(?=```text\n)", PAGE.read_text())
    for n, part in enumerate(parts):
        for code in snippets(part):
            output = run_snippet(code, names)
        if n + 1 < len(parts):
            after = parts[n + 1].removeprefix("```text\n").partition("```")[2]
            parts[n + 1] = f"```text\n{output}```{after}"
    return "\n\n".join(parts)


def test_the_page_shows_what_is_printed() -> None:
    text = PAGE.read_text()
    assert text.count("```text") == len(snippets(text)) >= 4
    assert page() == text, "run python tests/test_explain.py"


if __name__ == "__main__":
    PAGE.write_text(page())
