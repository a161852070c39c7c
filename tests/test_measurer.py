"""Measuring: what is wrong is found, and what breaks costs one candidate."""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import llvmlite.binding as llvm
import ml_dtypes
import numpy as np
import pytest
from dodeca.dialect.errors import Error
from dodeca.runtime import timing
from dodeca.runtime.checking import (
    Case,
    Judge,
    Window,
    adversarial_inputs,
    anchor_tolerance,
    differences,
)
from dodeca.runtime.jit import compile_for_host
from dodeca.runtime.measurer import InProcess, Limits, LocalWorkers, Tools
from dodeca.runtime.program import Kernel
from dodeca.runtime.trial import Built
from faulty import COVERED, build, candidate, cases, kernel, program, task

TOOLS = Tools(build, cases)
QUICK = Limits(build_seconds=20, run_seconds=2, memory_bytes=1 << 30)


@pytest.fixture(scope="module")
def workers():
    """Two processes that compile and one that runs, for tests that do not end them."""
    with LocalWorkers(TOOLS, 2, QUICK) as measurer:
        yield measurer


def children() -> set[int]:
    """The processes that this one began, dead ones too as long as nobody waited for them."""
    found = set()
    for file in Path("/proc/self/task").glob("*/children"):
        found |= set(map(int, file.read_text().split()))
    return found


def processes(measurer: LocalWorkers) -> set[int]:
    """The processes of a measurer."""
    workers = (*measurer._builders, measurer._runner)
    return {worker._process.pid for worker in workers if worker._process}


def ended(process: int) -> bool:
    """Whether a process ends within some seconds."""
    for _ in range(200):
        try:
            state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return True
        if state in "ZX":
            return True
        time.sleep(0.05)
    return False


# --- what is wrong is found


WRONG = {
    "wrong": r"case normal, output 0: at \(0,\) .*, expected .* ± .*; 400 of 400 places differ",
    "one_place": r"case normal, against the anchor, output 0: at \(777,\) .*; 1 of 1000 places",
    "unwritten": r"case normal, against the anchor, output 0: at \(778,\) nan, expected",
    "outside": r"case normal: wrote outside output 0, 0 bytes after its end",
    "before": r"case normal: wrote outside output 0, 1 bytes before its start",
    "into_input": r"case normal: wrote into input 0",
}


@pytest.mark.parametrize("schedule", WRONG)
def test_what_a_kernel_does_wrong_is_found(schedule):
    judge = Judge(cases(task()), threads=2)
    assert judge.take_anchor(kernel("again")) == ""
    assert judge.verdict(kernel("good")) == "" and not judge.damaged
    assert re.match(WRONG[schedule], judge.verdict(kernel(schedule)))
    assert judge.damaged == (schedule in ("outside", "before"))


def test_without_an_anchor_only_the_windows_are_seen():
    judge = Judge(cases(task()), threads=2)
    assert COVERED < 777 and judge.verdict(kernel("one_place")) == ""
    assert judge.verdict(kernel("wrong"))


def test_an_anchor_is_held_to_the_windows_and_to_its_buffers():
    judge = Judge(cases(task()), threads=2)
    for schedule in ("wrong", "outside", "into_input"):
        assert judge.take_anchor(kernel(schedule)) and not judge.anchored


def test_what_neither_the_anchor_nor_the_candidate_writes_is_seen():
    judge = Judge(cases(task()), threads=2)
    assert judge.take_anchor(kernel("unwritten")) == ""
    assert "at (778,) nan" in judge.verdict(kernel("unwritten"))


@pytest.mark.parametrize("dtype", ["bool", "int8"])
def test_bools_and_integers_that_are_not_written_are_seen(dtype):
    """The kernel writes ones from a place on that its input says."""
    text = """define void @ones(ptr %x, ptr %y, i64 %begin, i64 %end) {
  %from = load i8, ptr %x
  %skipped = zext i8 %from to i64
  %left = sub i64 8, %skipped
  %to = getelementptr i8, ptr %y, i64 %skipped
  call void @llvm.memset.p0.i64(ptr %to, i8 VALUE, i64 %left, i1 false)
  ret void
}
declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)"""

    def ones(value):
        code = text.replace("VALUE", str(value))
        binary = compile_for_host(llvm.parse_assembly(code), "ones")
        kinds = (((1,), "int8"), ((8,), dtype))
        return Kernel("ones", "cpu", 1, 1, kinds, 1, (), {}, code, binary)

    def said(skipped, value=1):
        expected = np.ones(2, dtype)
        window = Window(0, (6,), expected, np.zeros(2))
        judge = Judge([Case("c", (np.array([skipped], np.int8),), (window,))], 1)
        return judge.take_anchor(ones(value)) or judge.verdict(ones(value))

    assert said(0) == ""
    neither = "case c, output 0: at (0,) neither true nor false"
    unwritten = (
        "case c, against the anchor, output 0: at (0,) -91, expected 90; 4 of 8 places differ"
    )
    other = "case c, output 0: at (6,) 3, expected 1; 2 of 2 places differ"
    assert said(4) == (neither if dtype == "bool" else unwritten)
    assert said(0, 3) == (neither if dtype == "bool" else other)


def window_case(expected, tolerance, starts=(0,)):
    expected = np.asarray(expected)
    limit = np.broadcast_to(np.asarray(tolerance, float), expected.shape)
    return Case("c", (), (Window(0, starts, expected, limit),))


NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    "found, expected, tolerance, same",
    [
        (1.0, 1.5, 0.5, True), (1.0, 1.5, 0.4, False), (NAN, 1.0, 9.0, False),
        (NAN, NAN, 0.0, True), (1.0, NAN, 1.0, False), (INF, INF, 1.0, True),
        (-INF, INF, 1.0, False), (1e38, INF, 1.0, False), (INF, 1.0, 9.0, False),
        (NAN, 1.0, INF, True), (1.0, NAN, INF, True), (-0.0, 0.0, 0.0, True),
    ],
)  # fmt: skip
def test_floats_are_compared(found, expected, tolerance, same):
    case = window_case([expected], tolerance)
    for dtype in (np.float32, ml_dtypes.bfloat16):
        assert (differences(case, [np.array([found], dtype)]) == "") == same


def test_integers_and_bools_are_exact():
    large = 2**63 - 1
    case = window_case(np.array([large, -large]), 0)
    assert differences(case, [np.array([large, -large])]) == ""
    said = differences(case, [np.array([large, 1 - large])])
    assert said == f"case c, output 0: at (1,) {1 - large}, expected {-large}; 1 of 2 places differ"
    flags = window_case(np.array([True, False]), 0)
    assert differences(flags, [np.array([True, False])]) == ""
    assert "at (0,) False, expected True" in differences(flags, [np.array([False, False])])


def test_a_window_is_a_part_and_places_are_those_of_the_whole():
    case = window_case(np.full((2, 2), 7.0), 0.5, (3, 4))
    output = np.zeros((5, 6), np.float32)
    output[3:, 4:] = 7
    assert differences(case, [output]) == ""
    output[4, 5] = 8
    said = "case c, output 0: at (4, 5) 8, expected 7 ± 0.5; 1 of 4 places differ"
    assert differences(case, [output]) == said
    with pytest.raises(Error, match=r"a window at \(3, 4\) does not lie in \(4, 6\)"):
        differences(case, [output[:4]])


def test_the_anchor_s_tolerance():
    anchor = np.array([1.0, -2.0, 1000.0, NAN, INF, 3e38], np.float32)
    allowed = anchor_tolerance(Case("c", (), ()), 0, anchor)
    np.testing.assert_allclose(allowed, [2e-3, 2e-3, 1, INF, INF, INF])  # the median is 2
    looser = window_case([1.0], 0.02)  # ten times what it would be
    np.testing.assert_allclose(anchor_tolerance(looser, 0, anchor)[:3], [0.02, 0.02, 10])
    assert anchor_tolerance(window_case([1.0], INF), 0, anchor) is None
    assert not anchor_tolerance(Case("c", (), ()), 0, np.arange(3)).any()


def test_adversarial_inputs():
    kinds = [((40, 3), "float32"), ((7,), "float16"), ((), "bfloat16"), ((50,), "int8"),
             ((9,), "bool"), ((0, 2), "float64")]  # fmt: skip
    sets = adversarial_inputs(kinds, seed=3)
    assert [name for name, _ in sets] == ["normal", "large", "tiny", "special", "full range"]
    assert len(adversarial_inputs(kinds[:3], seed=3)) == 4  # no integers
    again, other = adversarial_inputs(kinds, seed=3), adversarial_inputs(kinds, seed=4)
    for (name, arrays), (_, same), (_, different) in zip(sets, again, other, strict=True):
        for array, twin, kind in zip(arrays, same, kinds, strict=True):
            assert (array.shape, array.dtype.name) == kind
            assert array.tobytes() == twin.tobytes()
        assert arrays[0].tobytes() != different[0].tobytes()
        assert (arrays[3].min() < 0) == (name == "full range")
        assert np.isfinite(arrays[0]).all() == (name != "special")
        assert np.isfinite(arrays[1].astype(float)).all() or name == "special"
    by_name = dict(sets)
    assert 1e3 < np.median(np.abs(by_name["large"][0])) < 1e5
    tiny = np.abs(by_name["tiny"][0])
    assert tiny.max() < 2e-6 and 0 < tiny.min() < np.finfo(np.float32).smallest_normal
    special = by_name["special"][0]
    assert {"inf", "-inf", "nan"} <= {str(x) for x in special.reshape(-1)}
    assert np.signbit(special[special == 0]).any() and np.isfinite(special).mean() > 0.9


# --- what breaks costs one candidate


def test_each_fault_costs_one_candidate(capfd):
    limits = Limits(build_seconds=3, run_seconds=1.5, memory_bytes=1 << 30)
    expected = {
        "null": ("crashed", "SIGSEGV"),
        "endless": ("hung", "did not end within"),
        "outside": ("wrong", "wrote outside"),
        "hog": ("crashed", "SIG"),
        "one_place": ("wrong", "against the anchor"),
        "refused": ("failed", "tile: this schedule does not fit"),
        "abort": ("crashed", "SIGABRT"),
        "exit": ("crashed", "exit status 3"),
        "sleep": ("hung", "did not end within 3 s"),
        "greedy": ("failed", "MemoryError"),
        "nothing": ("failed", "gave a NoneType, not a Kernel"),
        "loud": ("ok", ""),
    }
    names = [name for fault in expected for name in ("good", fault)] + ["good"]
    with LocalWorkers(TOOLS, 2, limits) as measurer:
        built = measurer.build([candidate(name) for name in names])
        assert [one.candidate.schedule for one in built] == names
        trials = measurer.measure(built, seconds=0.002)
    for name, trial in zip(names, trials, strict=True):
        status, message = expected.get(name, ("ok", ""))
        assert trial.candidate.schedule == name
        assert trial.status == status and message in trial.message, trial
        assert (0 < trial.seconds < 1 and trial.samples > 0) == (status == "ok")
    assert capfd.readouterr() == ("", "")  # nothing that the processes said


def test_a_crash_in_a_process_that_others_used_is_tried_again(workers, monkeypatch):
    """What an earlier kernel damaged is not the fault of a later one."""
    good, bad = workers.build([candidate("good"), candidate("null")])
    asked, examine = [], workers._examine
    monkeypatch.setattr(workers, "_examine", lambda r: asked.append(r.method) or examine(r))
    assert [t.status for t in workers.measure([good, bad], seconds=0.001)] == ["ok", "crashed"]
    assert asked.count("measure") == 3
    asked.clear()
    assert workers.measure([bad], seconds=0.001)[0].status == "crashed"
    assert asked.count("measure") == 1  # nobody was there before


def test_a_process_whose_memory_is_damaged_is_not_used_again(workers):
    built = workers.build([candidate(name) for name in ("good", "wrong", "outside")])
    numbers = []
    for one in built:
        workers.measure([one], seconds=0.001)
        numbers.append(workers._process())
    assert numbers[0] == numbers[1] < numbers[2]


def test_a_worker_that_was_killed_while_idle_costs_nothing(workers):
    built = workers.build([candidate("good")] * 2)
    workers.measure(built[:1], seconds=0.001)
    assert len(processes(workers)) == 3
    for process in processes(workers):
        os.kill(process, signal.SIGKILL)
    built = workers.build([candidate("good")] * 4)
    assert [one.status for one in built] == ["ok"] * 4
    built += workers.build([candidate("good", task(key="another"))])
    for wanted in (built[:4], built[4:]):  # of a task that was open, and of one that was not
        for process in processes(workers):
            os.kill(process, signal.SIGKILL)
        trials = workers.measure(wanted, seconds=0.001)
        assert [t.status for t in trials] == ["ok"] * len(wanted)


def test_nothing_is_left_after_close():
    def descriptors():
        return len(os.listdir("/proc/self/fd"))

    before, others, threads = descriptors(), children(), threading.active_count()
    with LocalWorkers(TOOLS, 2, QUICK) as measurer:
        built = measurer.build([candidate(name) for name in ("good", "abort", "good")])
        measurer.measure(built, seconds=0.001)
        mine = processes(measurer)
        assert len(mine) >= 2 and mine <= children()  # one may have crashed
    assert children() == others and all(map(ended, mine))
    assert descriptors() == before and threading.active_count() == threads


def test_an_interrupt_ends_what_was_begun(workers):
    def interrupt(*_):
        raise KeyboardInterrupt

    previous = signal.signal(signal.SIGALRM, interrupt)
    try:
        workers.build([candidate("good")])
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        with pytest.raises(KeyboardInterrupt):
            workers.build([candidate("sleep 60")] * 2)
    finally:
        signal.signal(signal.SIGALRM, previous)
    assert [one.status for one in workers.build([candidate("good")] * 2)] == ["ok", "ok"]


def test_workers_end_with_their_parent():
    """Whatever they do: one compiles for ever, one is in native code for ever."""
    script = """
import sys, threading
from faulty import build, candidate, cases
from dodeca.runtime.measurer import Limits, LocalWorkers, Tools
measurer = LocalWorkers(Tools(build, cases), 1, Limits(run_seconds=1000, build_seconds=1000))
built = measurer.build([candidate("good"), candidate("endless")])
measurer.measure(built[:1], seconds=0.001)
threading.Thread(target=measurer.measure, args=(built,), daemon=True).start()
print("ready", flush=True)
measurer.build([candidate("sleep")])
"""
    path = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    environment = {**os.environ, "PYTHONPATH": path}
    command = [sys.executable, "-c", script]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout and parent.stdout.readline() == "ready\n"
        time.sleep(0.5)
        found = set()
        for file in Path(f"/proc/{parent.pid}/task").glob("*/children"):
            found |= set(map(int, file.read_text().split()))
        assert len(found) == 2 and not any(os.getpgid(p) == os.getpgid(parent.pid) for p in found)
        parent.kill()
    assert all(map(ended, found))


# --- what workers need


def test_builds_do_not_depend_on_the_number_of_workers(workers):
    names = ["sleep 0.3", "good", "ten", "again", "sleep 0.1", "wrong", "refused", "good"]
    many = workers.build([candidate(name) for name in names])
    with LocalWorkers(TOOLS, 1, QUICK) as alone:
        one_by_one = alone.build([candidate(name) for name in names])
    assert many == one_by_one
    assert [one.candidate.schedule for one in many] == names
    binaries = [one.kernel.binary if one.kernel else b"" for one in many]
    assert binaries == [one.kernel.binary if one.kernel else b"" for one in one_by_one]
    assert len(set(binaries)) == 5


def test_a_task_without_a_reference_is_told_of(workers):
    (built,) = workers.build([candidate("good", task(key="no reference"))])
    (trial,) = workers.measure([built])
    assert trial.status == "failed"
    assert "there is no reference: failed: ValueError: the interpreter has no" in trial.message


@pytest.mark.parametrize(
    "anchor, why",
    [("wrong", "it is not right itself: case normal"), ("null", "crashed: the process ended"),
     ("refused", "failed: tile: this schedule"), ("abort", "SIGABRT")],
)  # fmt: skip
def test_candidates_are_measured_without_an_anchor_that_fails(workers, anchor, why):
    of = task(anchor, key=f"anchor {anchor}")
    trials = workers.measure(workers.build([candidate("good", of), candidate("wrong", of)]))
    assert [trial.status for trial in trials] == ["ok", "wrong"]
    assert trials[0].message.startswith("not compared with the anchor") and why in trials[0].message


def test_tasks_in_any_order(workers):
    """The reference of each is made once, and each is compared with its own."""
    small, large = task(key="small", size=900), task(key="large")
    order = [("good", small), ("one_place", large), ("one_place", small), ("good", large)]
    built = workers.build([candidate(name, of) for name, of in order])
    trials = workers.measure(built, seconds=0.001)
    assert [trial.candidate.task.key for trial in trials] == ["small", "large", "small", "large"]
    assert [trial.status for trial in trials] == ["ok", "wrong", "wrong", "ok"]
    assert "of 900 places" in trials[2].message


def test_in_process_gives_the_same_verdicts(workers):
    names = ["good", "wrong", "refused", "one_place", "into_input"]
    with InProcess(TOOLS) as here:
        mine = here.measure(here.build([candidate(name) for name in names]), seconds=0.001)
    theirs = workers.measure(workers.build([candidate(name) for name in names]), seconds=0.001)
    assert [(t.status, t.message) for t in mine] == [(t.status, t.message) for t in theirs]
    assert [t.status for t in mine] == ["ok", "wrong", "failed", "wrong", "wrong"]


def test_tools_are_functions_of_a_module():
    with pytest.raises(Error, match=r"tools are functions of a module, not .*<lambda>"):
        Tools(lambda candidate: kernel("good"), cases)
    with pytest.raises(Error, match="workers: expected a number of at least 1, got 0"):
        LocalWorkers(TOOLS, 0)


def test_tools_that_a_worker_cannot_import(tmp_path, monkeypatch):
    (tmp_path / "passing.py").write_text("def build(candidate): pass\ndef cases(task): pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    import passing  # pyright: ignore

    tools = Tools(passing.build, passing.cases)
    (tmp_path / "passing.py").write_text("")
    with (
        LocalWorkers(tools, 1) as measurer,
        pytest.raises(Error, match="cannot use the tools it was given: AttributeError"),
    ):
        measurer.build([candidate("good")])


# --- comparing and giving up


def test_a_kernel_over_the_limit_has_one_sample(workers):
    built = workers.build([candidate(name) for name in ("hundred", "lazy", "wrong")])
    trials = workers.measure(built, seconds=0.01, limit=1e-6)
    assert [t.status for t in trials] == ["ok", "ok", "wrong"]
    assert [t.samples for t in trials] == [1, 1, 0]
    assert [t.message for t in trials][:2] == ["", "checked in one case only"]
    assert 0.01 < trials[1].seconds < 2
    assert workers.measure(built[:1], seconds=0.01)[0].samples > 1


def test_finalists_are_compared(workers):
    names = ["hundred", "ten", "refused", "one_place"]
    built = workers.build([candidate(name) for name in names])
    trials = workers.compare(built, seconds=0.3)
    assert [t.candidate.schedule for t in trials] == names
    assert [t.status for t in trials] == ["ok", "ok", "failed", "wrong"]
    assert trials[1].seconds < trials[0].seconds < 1 and trials[0].samples >= timing.LEAST
    assert workers.compare([], 0.1) == []
    with pytest.raises(Error, match="expected candidates of one task, got 2 tasks"):
        workers.compare([built[0], *workers.build([candidate("good", task(key="b"))])], 0.1)


def test_a_finalist_that_crashes_is_found(workers):
    built = workers.build([candidate(name) for name in ("good", "null", "again")])
    trials = workers.compare(built, seconds=0.05)
    assert [t.status for t in trials] == ["ok", "crashed", "ok"]
    assert trials[0].seconds < 1 and "SIGSEGV" in trials[1].message


def test_whole_programs_are_compared(workers):
    programs = [program("hundred", 20), program("ten", 20), program("ten", 200)]
    trials = workers.compare_programs(programs, seconds=0.5, threads=1)
    assert [t.status for t in trials] == ["ok"] * 3
    assert 2 * trials[1].seconds < min(trials[0].seconds, trials[2].seconds)
    assert all(0 < t.seconds < 1 and 0 <= t.noise < 10 and t.samples > 0 for t in trials)
    assert workers.compare_programs([], 1.0) == []


def test_a_program_that_crashes_is_found(workers):
    trials = workers.compare_programs([program("good"), program("null")], 0.02, threads=2)
    assert [t.status for t in trials] == ["ok", "crashed"]
    assert "SIGSEGV" in trials[1].message


def test_programs_must_take_the_same(workers):
    with pytest.raises(Error, match="program 1 takes other inputs or weights than program 0"):
        workers.compare_programs([program("good"), program("good", name="v")], 1.0)


def test_a_kernel_for_a_gpu_is_not_run_here(workers):
    (built,) = workers.build([candidate("good")])
    assert built.kernel
    elsewhere = Built(built.candidate, replace(built.kernel, target="cuda:sm_80"))
    (trial,) = workers.measure([elsewhere])
    assert trial.status == "failed" and "cuda:sm_80" in trial.message
