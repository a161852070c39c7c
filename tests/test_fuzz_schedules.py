"""A slice of the fuzz over schedules, and that it sees what goes wrong.

`python tests/fuzz_schedules.py` is the fuzz itself.
"""

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import dodeca as dd
import fuzz_kernels
import fuzz_schedules
import numpy as np
import pytest
from dodeca.pass_pipeline import build_pipeline
from dodeca.passes import emitter, program, stage
from dodeca.passes.schedule import Schedule
from dodeca.passes.tile import read_kernel
from dodeca.runtime.block_space import find_space
from dodeca.runtime.device import find_target
from dodeca.runtime.space import to_json
from fuzz_kernels import Case, Subject, fault, subjects_of
from fuzz_schedules import Job, run_job
from guarded import Guarded
from mlir import ir

SPECS = {
    "product": (lambda a, b: a @ b, [(13, 9), (9, 21)]),
    "attention": (lambda q, k, v: dd.softmax(q @ k.mT) @ v, [(1, 9, 4), (1, 21, 4), (1, 21, 21)]),
}
RAGGED = Schedule("d1", (("d0", 2), ("d1", 8)), (("d0", 5), ("d1", 21)), ("d0", "d1"), 8)
BLOCKS = Schedule("d1", (("d0", 2), ("d1", 8)), (("d0", 2), ("d1", 8)), (), 8)
DOTS = Schedule(None, (("d0", 1), ("d1", 1)), (("d0", 4), ("d1", 4)), ("d1", "d0"), 4)
FOLD = Schedule(
    None, tuple((f"d{n}", 1) for n in range(3)), (("d0", 1), ("d1", 4), ("d2", 21)), (), 8, fold=4
)


@pytest.fixture(scope="module")
def subject() -> Callable[[str], Subject]:
    """`subject("product")`: the kernel of one of `SPECS`, which says what it should give."""
    made: dict[str, Subject] = {}

    def find(name: str) -> Subject:
        if name not in made:
            function, shapes = SPECS[name]
            graph = dd.trace(function, *(dd.spec(shape) for shape in shapes))
            (made[name],) = subjects_of(graph, "cpu", "fast")
        return made[name]

    return find


@pytest.mark.parametrize(("seed", "count", "target"), [
    (1, 8, "cpu"), (5, 8, "cpu"), (16, 8, "cpu"), (26, 8, "cpu"), (3, 6, "cuda:sm_80"),
])  # fmt: skip
def test_kernels_agree_under_random_schedules(seed: int, count: int, target: str) -> None:
    events = list(run_job(Job(seed, count, target)))
    results = [text for kind, text in events if kind == "result"]
    assert results == [""] * count, [text for _, text in events]


def test_a_seed_draws_the_same_pairs() -> None:
    def pairs(done: int) -> list[str]:
        return [text for kind, text in run_job(Job(12, 6, "cpu", done)) if kind == "pair"]

    first = pairs(0)
    assert len({*first}) == 6
    assert pairs(3) == first[3:]


# --- what it found ------------------------------------------------------------------------------


def _rows_by_weights(s: dd.Tensor, v: dd.Tensor) -> dd.Tensor:
    """The sum of v, weighted by the shares of scores."""
    e = dd.exp2(s - dd.max(s, axis=-1, keepdims=True))
    return ((e @ v.astype("float32")) / dd.sum(e, axis=-1, keepdims=True)).astype(v.dtype)


def _attended(q: dd.Tensor, k: dd.Tensor, v: dd.Tensor) -> dd.Tensor:
    return _rows_by_weights(q.astype("float32") @ k.mT.astype("float32"), v)


def _folds(block: int, width: int, fold: int, warps: int, **more: Any) -> Schedule:
    tiles, blocks = (("d0", 1), ("d1", 1)), (("d0", block), ("d1", width))
    given = {"vector": None, **more}
    return Schedule(given.pop("vector"), tiles, blocks, (), 4, fold=fold, warps=warps, **given)


# target, function, arguments, schedule
FOUND = {
    "weights and rows lie in other threads": (
        "cuda:sm_80", _rows_by_weights, [((10, 21), "float32"), ((21, 16), "float32")],
        _folds(10, 16, 16, 1, vector="d0"),
    ),
    "what is loaded lies as a product's depth": (
        "cuda:sm_80", _rows_by_weights, [((18, 40), "float32"), ((40, 16), "float16")],
        _folds(16, 16, 32, 1, matrix=True, stages=1),
    ),
    "one slot of shared memory has one turn": (
        "cuda:sm_80", _attended, [((18, 64), "float16")] * 2 + [((18, 16), "float16")],
        _folds(16, 16, 16, 1, matrix=True, stages=1),
    ),
    "a block is no shorter than an instruction": (
        "cuda:sm_80", _attended, [((18, 16), "float16")] * 3,
        _folds(16, 16, 4, 1, matrix=True),
    ),
    "products of products, where lanes hold other columns": (
        "hip:gfx1100", _attended, [((18, 16), "float16")] * 3,
        _folds(16, 16, 16, 1, vector="d0"),
    ),
    "a last tile moved back is not aligned": (
        "cuda:sm_80", lambda x: x + x, [((100,), "float16")],
        Schedule("d0", (("d0", 64),), (("d0", 100),), ("d0",), 8, warps=1),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FOUND)
def test_what_was_wrong_agrees(name: str) -> None:
    target, function, specs, schedule = FOUND[name]
    graph = dd.trace(function, *(dd.spec(*one) for one in specs))
    with graph.module.context, ir.Location.unknown():
        work = ir.Module.parse(str(graph.module))
        build_pipeline("dodeca-simplify", graph.module.context).run(work)
    one = Subject(work, work.body.operations[0].operation, target, "fast")  # all of it a kernel
    assert one.judge(to_json(schedule)) == ""


def test_products_may_follow_products() -> None:
    """On gfx11 results do not lie as operands do: there lanes exchange them."""
    graph = dd.trace(_attended, *(dd.spec((18, 16), "float16") for _ in range(3)))
    (kernel,) = graph.module.body.operations
    with graph.module.context, ir.Location.unknown():
        read = read_kernel(kernel.operation)
    schedule = _folds(16, 16, 16, 1, matrix=True)
    for target in ("hip:gfx1100", "hip:gfx1201", "cuda:sm_80"):
        assert not find_space(read.term, read.axes, find_target(target)).legal(schedule)


# --- what it sees -------------------------------------------------------------------------------


def _short_edge(patch: pytest.MonkeyPatch) -> None:
    arith, clamp, one = emitter.arith, emitter.arith.minui, emitter.index_value
    patch.setattr(arith, "minui", lambda x, y: clamp(x, arith.subi(y, one(1))))


def _one_block(patch: pytest.MonkeyPatch) -> None:
    starts = program.Program._starts
    patch.setattr(
        program.Program,
        "_starts",
        lambda self, program: dict.fromkeys(starts(self, program), emitter.index_value(0)),
    )


def _wrong_start(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(emitter.terms, "identity", lambda op, dtype: 1)


def _added_twice(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(stage.Step, "once", property(lambda self: False))


def _no_rest(patch: pytest.MonkeyPatch) -> None:
    combine = emitter.Emitter._combine

    def first(self, term, values):
        same = [str(x.type) for x in values]
        return values[0] if same[0] == "f32" and len(values) == 2 else combine(self, term, values)

    patch.setattr(emitter.Emitter, "_combine", first)


@pytest.mark.parametrize(("break_it", "name", "schedule"), [
    (_short_edge, "product", RAGGED),
    (_short_edge, "product", BLOCKS),
    (_one_block, "product", BLOCKS),
    (_wrong_start, "product", RAGGED),
    (_wrong_start, "product", DOTS),
    (_no_rest, "product", DOTS),
    (_one_block, "attention", FOLD),
    (_added_twice, "attention", FOLD),
])  # fmt: skip
def test_a_broken_compiler_is_seen(
    break_it: Callable[[pytest.MonkeyPatch], None],
    name: str,
    schedule: Schedule,
    subject: Callable[[str], Subject],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one = subject(name)
    assert one.judge(to_json(schedule)) == ""
    break_it(monkeypatch)
    assert "are wrong" in one.judge(to_json(schedule))


def test_an_illegal_schedule_and_an_error_are_told(
    subject: Callable[[str], Subject], monkeypatch: pytest.MonkeyPatch
) -> None:
    one = subject("product")
    assert "not legal: order" in one.judge(to_json(replace(RAGGED, order=())))
    monkeypatch.setattr(fuzz_kernels, "compile_kernel", lambda *given: 1 / 0)
    assert one.judge(to_json(RAGGED)) == "ZeroDivisionError: division by zero"


def test_what_is_wrong_is_told_by_its_place() -> None:
    case = Case("normal", [], [np.array([1.0, np.nan, np.inf, 5.0, 2.0])], [
        np.array([0.5, 0.0, 0.0, np.nan, 0.5])
    ])  # fmt: skip
    good = np.array([1.4, np.nan, np.inf, -9.0, 2.0], np.float32)
    assert fault(good, case, 0, False) == ""
    for place, value in ((0, 1.6), (1, 3.0), (2, -np.inf), (4, np.nan)):
        found = good.copy()
        found[place] = value
        words = fault(found, case, 0, False)
        assert words.startswith(f"result 0 at ({place},) is ") and "1 of 5 are wrong" in words
        assert bool(fault(found, case, 0, True)) == (place in (0, 4))
    whole = Case("normal", [], [np.array([3, 4])], [np.array([0.0, np.nan])])
    assert fault(np.array([3, 9]), whole, 0, False) == ""
    assert fault(np.array([2, 9]), whole, 0, False)


@pytest.mark.parametrize("last", [False, True])
def test_bytes_around_an_array_are_watched(last: bool) -> None:
    room = Guarded((3, 5), np.dtype(np.float32), last)
    room.array[:] = 1.0
    assert not room.breach()
    beside = room.array.ctypes.data + (-1 if last else room.array.nbytes)
    room._all[beside - room._all.ctypes.data] ^= 1
    assert room.breach()


# --- processes ----------------------------------------------------------------------------------

# what a worker imports too: some pairs touch what they must not, hang, or are wrong
SCRIPT = """
import ctypes, sys, time
import fuzz_schedules
import numpy as np
from fuzz_schedules import Pair
from guarded import Guarded

def run_job(job):
    yield "graph", f"seed {job.seed}, graph 0"
    if job.seed == 31:
        raise ValueError("no kernels")
    for n in range(job.done, job.count):
        yield "pair", Pair(job.seed, 0, 0, str(n)).text
        room = Guarded((3, 5), np.dtype(np.float32), last=n == 2)
        if (job.seed, n) == (30, 2):
            ctypes.string_at(room.array.ctypes.data + room.array.nbytes, 1)
        if (job.seed, n) == (32, 1):
            ctypes.memset(room.only_read().array.ctypes.data, 0, 1)
        if (job.seed, n) == (33, 1):
            ctypes.string_at(room.array.ctypes.data - 1, 1)
        if (job.seed, n) == (30, 4):
            time.sleep(100)
        yield "result", "off by one" if n == 5 else ""

fuzz_schedules.run_job, fuzz_schedules.PAIRS = run_job, 8
fuzz_schedules.LIMIT = 4
if __name__ == "__main__":
    sys.exit(fuzz_schedules.main())
"""


def test_what_reads_or_writes_outside_or_hangs_costs_one_pair(tmp_path: Path) -> None:
    script = tmp_path / "fuzz.py"
    script.write_text(SCRIPT)
    paths = os.pathsep.join([str(Path(fuzz_schedules.__file__).parent), *sys.path])
    ran = subprocess.run(
        [sys.executable, str(script), "30", "30", "--workers", "1"],
        capture_output=True, text=True, timeout=300, env={**os.environ, "PYTHONPATH": paths},
    )  # fmt: skip
    assert ran.returncode == 1, ran.stderr
    said = ran.stdout
    assert said.count("crashed: SIGSEGV") == 3
    assert said.count("took more than 4 seconds") == 1
    assert said.count("off by one") == 3
    assert "seed 31, graph 0: ValueError: no kernels" in said
    assert '--repeat \'{"seed":30,"graph":0,"kernel":0,"schedule":"2"}\'' in said
    assert "22 pairs of 4 graphs on cpu: 15 agree, 7 do not" in said


def test_a_pair_is_repeated_by_its_text() -> None:
    pair = next(text for kind, text in run_job(Job(12, 1, "cpu")) if kind == "pair")
    assert fuzz_schedules.repeat(pair, "cpu") == ""
    other = pair.replace('\\"fold\\":0', '\\"fold\\":3')
    assert "not legal" in fuzz_schedules.repeat(other, "cpu")
