"""`compile(search=...)` as a user meets it: results, the cache, later processes, bugs, Ctrl-C."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import dodeca as dd
import mutated
import numpy as np
import pytest
from dodeca import program_cache, tune
from dodeca.command import main
from dodeca.fusion import fuse
from dodeca.kernel_tasks import build, judged, reference_cases, space_of, tasks_of
from dodeca.pipeline import Clock, compile_kernel, simplified
from dodeca.reproducer import check_reproducer, read_reproducer
from dodeca.runtime import cluster
from dodeca.runtime.database import Database
from dodeca.runtime.device import find_target
from dodeca.runtime.measurer import InProcess, Tools
from dodeca.runtime.space import to_json
from dodeca.runtime.trial import Candidate
from mlir import ir

X, W = (np.random.default_rng(0).standard_normal(s, np.float32) for s in ((24, 40), (40, 32)))


def layer(x, w):
    return dd.relu(x @ w)


def graph():
    return dd.trace(layer, dd.spec((24, 40)), dd.spec((40, 32)))


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """A cache folder of the test's own."""
    monkeypatch.setenv("DODECA_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def in_process(monkeypatch):
    """Candidates are compiled and run in this process: no worker has to start."""
    monkeypatch.setattr(tune, "start_measurer", lambda search: InProcess(tune.TOOLS))
    monkeypatch.setattr(tune, "FINALE", 0.1)


def close(result):
    np.testing.assert_allclose(result, np.maximum(X @ W, 0), rtol=1e-4, atol=1e-4)


def run_python(text, **environment):
    """What a program prints, run by a new process."""
    found = subprocess.run(
        [sys.executable, "-c", text],
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=120,
    )
    return found.stdout.split()


LAYER = """
import sys
import numpy as np
import dodeca as dd
def layer(x, w):
    return dd.relu(x @ w)
"""


def test_a_search_keeps_what_it_finds(cache):
    """The result is right, the database knows it, and no later process needs the e-graph for it."""
    exe = dd.compile(graph(), search=dd.Search(candidates=16, workers=1))
    close(exe(X, W))
    facts = exe.program.report["search"]
    assert facts["candidates"] == 16 and facts["wrong candidates"] == 0
    assert facts["milliseconds of a call"] <= facts["without a search"] * 1.001
    with Database() as database:
        (choice,) = database.choices("layer")
    assert choice.candidates == 16 and choice.parts and choice.seconds > 0
    text = LAYER + (
        "exe = dd.compile(layer, dd.spec((24, 40)), dd.spec((40, 32)),"
        " search=dd.Search(candidates=16))\n"
        "print(exe.program.report['from the cache'])\n"
        "print('egglog.bindings' in sys.modules, [k.name for k in exe.kernels][0])"
    )
    cached, egglog, name = run_python(text)
    assert (cached, egglog, name) == ("True", "False", exe.kernels[0].name)


def test_without_a_search_what_was_found_is_used(cache, in_process):
    searched = dd.compile(graph(), search=dd.Search(candidates=8, workers=1))
    again = dd.compile(graph())
    assert again.ir("kernels") == searched.ir("kernels")
    for file in (cache / "objects").rglob("*"):  # only the database is left
        if file.is_file():
            file.unlink()
    rebuilt = dd.compile(graph())
    assert rebuilt.ir("kernels") == searched.ir("kernels")
    assert rebuilt.program.report["chosen by"] == "an earlier search"
    close(rebuilt(X, W))


def test_the_names_of_arguments_do_not_matter(cache, in_process):
    searched = dd.compile(graph(), search=dd.Search(candidates=8, workers=1))
    other = dd.trace(lambda a, b: dd.relu(a @ b), dd.spec((24, 40)), dd.spec((40, 32)))
    exe = dd.compile(other)
    assert exe.program.report["chosen by"] == "an earlier search"
    assert [exe.buffers[i].name for i in exe.program.inputs] == ["a", "b"]
    assert exe.kernels[0].name == searched.kernels[0].name


def test_a_larger_budget_searches_on(cache, in_process):
    dd.compile(graph(), search=dd.Search(candidates=8, workers=1))
    with Database() as database:
        before = sum(len(database.trials(k)) for c in database.choices() for k in c.part_keys())
    exe = dd.compile(graph(), search=dd.Search(candidates=20, workers=1))
    assert exe.program.report["search"]["candidates"] == 20
    with Database() as database:
        after = sum(len(database.trials(k)) for c in database.choices() for k in c.part_keys())
    assert after > before >= 8


def test_without_a_cache_a_search_works_too(in_process):
    exe = dd.compile(graph(), search=dd.Search(candidates=4, workers=1))
    close(exe(X, W))
    assert "from the cache" not in exe.program.report


def test_the_second_compilation_is_from_the_cache(cache, monkeypatch):
    first = dd.compile(graph())

    def never(*_, **__):
        raise AssertionError("it was compiled again")

    monkeypatch.setattr(program_cache, "_compiled", never)
    second = dd.compile(graph())
    assert second.program.report["from the cache"] is True
    assert second.ir("text") == first.ir("text")
    close(second(X, W))
    with pytest.raises(AssertionError):  # of another precision it is another program
        dd.compile(graph(), precision="strict")
    for file in (cache / "objects").rglob("*"):
        if file.is_file():
            file.write_bytes(file.read_bytes()[:-1] + b"?")
    with pytest.raises(AssertionError):  # a damaged file is no program
        dd.compile(graph())


def test_a_candidate_that_is_wrong_is_not_used_but_told(cache, in_process, monkeypatch, capsys):
    monkeypatch.setattr(tune, "TOOLS", Tools(mutated.build, reference_cases))
    with pytest.warns(RuntimeWarning, match=r"(?s)were not right .*dodeca check") as told:
        exe = dd.compile(graph(), search=dd.Search(candidates=40, workers=1))
    close(exe(X, W))
    assert exe.program.report["search"]["wrong candidates"] > 0
    path = str(told[0].message).split("dodeca check ")[1].split()[0]
    candidate = read_reproducer(path)
    assert "wrong" in Path(path).read_text() and candidate.task.threads == exe.threads
    with InProcess(Tools(mutated.build, reference_cases)) as measurer:
        (trial,) = measurer.measure(measurer.build([candidate]))
    assert trial.status == "wrong" and "expected" in trial.message
    assert check_reproducer(path).status == "ok"  # the compiler without the bug
    assert main(["check", path]) == 0 and capsys.readouterr().out.startswith("ok: ")
    assert main(["check", __file__]) == 1
    assert "not a reproducer" in capsys.readouterr().err
    with Database() as database:
        assert path in {bug.reproducer for bug in database.bugs()}


def test_an_interruption_gives_the_best_so_far(cache):
    """Ctrl-C during a search: the program is there, and what was learned is in the database."""
    text = LAYER + (
        "import signal\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)  # it may be ignored here\n"
        "a, b = np.ones((24, 40), np.float32), np.ones((40, 32), np.float32)\n"
        "exe = dd.compile(layer, a, b, search=dd.Search(seconds=600, workers=1))\n"
        "print(exe.program.report['search']['ended'], exe(a, b)[0, 0])"
    )
    process = subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE, text=True)
    try:
        with Database() as database:
            end = time.monotonic() + 90
            while time.monotonic() < end and not known(database):
                time.sleep(0.2)
        process.send_signal(signal.SIGINT)
        printed, _ = process.communicate(timeout=90)
    finally:
        process.kill()
    assert printed.split() == ["interrupted", "40.0"]
    with Database() as database:
        (choice,) = database.choices("layer")
        assert choice.candidates > 0 and known(database) > 0


def known(database):
    """How many trials there are."""
    import sqlite3

    if not database.path.exists():
        return 0
    with sqlite3.connect(database.path) as connection:
        try:
            return connection.execute("SELECT count(*) FROM trials").fetchone()[0]
        except sqlite3.OperationalError:
            return 0


def test_what_a_search_cannot_do_is_said():
    with pytest.raises(dd.ArgumentError, match="seconds is 0; expected a number above 0"):
        dd.Search(seconds=0)
    with pytest.raises(dd.ArgumentError, match=r"search is a dd\.Search or None"):
        dd.compile(graph(), search=60)
    with pytest.raises(dd.TargetError, match="driver"):
        dd.compile(graph(), target="cuda:sm_80", search=dd.Search(candidates=1))


def test_what_was_checked_is_what_runs():
    """A candidate's code is that of the program's kernel to the byte, though it has no texts."""
    traced, target = graph(), find_target("cpu")
    with traced.module.context, ir.Location.unknown():
        fused = fuse(simplified(traced.module, Clock()).operation, target, "fast")
        (task,) = tasks_of(fused.module, target, "fast", 2)
        function = list(fused.module.body.operations)[1].operation
        function.attributes["sym_name"] = ir.StringAttr.get(task.name)
        kernel = compile_kernel(function, target, "fast", Clock())
    made = build(Candidate(task, to_json(space_of(task).default), 0.0))
    assert made.binary == kernel.binary and kernel.text and not made.text


def test_what_is_allowed_follows_from_how_rounding_matters():
    """A cancellation may be off by much, a sum by little; NaN and infinity must be there."""
    high = np.array([1.0, 1.0, np.nan, np.inf, 1e39, 3.3e38])
    own = np.array([1.0, 1.0, np.nan, np.inf, np.inf, 3.3e38], np.float32)
    shaken = np.array([1.0, 1.5, np.nan, np.inf, 1e39, 3.3e38])
    expected, allowed = judged(high, own, shaken, staged=False)
    assert allowed[0] < 1e-4 < 1 < allowed[1]
    assert np.isnan(expected[2]) and allowed[2] == 0
    assert np.isinf(expected[3:5]).all() and (allowed[3:5] == 0).all()
    assert np.isinf(allowed[5])  # another order may overflow
    _, skipped = judged(high, own, shaken, staged=True)
    assert np.isinf(skipped[2])
    integers = judged(np.array([1, 2]), np.array([1, 3]), np.array([1, 2]), False)[1]
    assert integers.tolist() == [0.0, np.inf]


def test_a_cluster_is_asked_for_by_its_address(monkeypatch):
    asked = []
    monkeypatch.setattr(
        cluster, "RayCluster", lambda tools, address: asked.append((tools, address))
    )
    tune.start_measurer(dd.Search(candidates=1, cluster="ray://10.0.0.1:10001"))
    assert asked == [(tune.TOOLS, "ray://10.0.0.1:10001")]
