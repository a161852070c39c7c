"""Profiles of a plan: each launch's time beside its prediction, in order, on right values."""

import math

import dodeca as dd
import numpy as np
import pytest
from dodeca.dialect.errors import ArgumentError, TargetError
from dodeca.dialect.ops import context
from dodeca.runtime import LaunchProfile, Profile
from dodeca.runtime.cpu import CpuRunner
from mlir import ir
from programs import PROGRAMS


def chain(x, w):
    """Two products, the second by a weight."""
    return dd.relu(x @ w) @ dd.asarray(np.linspace(-1, 1, 64 * 8, dtype="f4").reshape(64, 8))


def compiled(**options):
    return dd.compile(chain, dd.spec((96, 32)), dd.spec((32, 64)), **options)


def arrays(seed=0):
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(shape).astype("f4") for shape in ((96, 32), (32, 64))]


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_each_launch_in_order(threads):
    exe = compiled(threads=threads)
    profile = exe.profile(*arrays(), repeats=3)
    plan = exe.program.plan
    assert len(plan) == 2
    assert [row.kernel for row in profile.launches] == [launch.kernel for launch in plan]
    assert [row.fused for row in profile.launches] == [
        exe.program.kernels[launch.kernel].fused for launch in plan
    ]
    for row, launch in zip(profile.launches, plan, strict=True):
        assert row.predicted == launch.predicted > 0
        assert 0 < row.measured < 1 and row.ratio == row.measured / row.predicted
    assert (profile.threads, profile.repeats) == (threads, 3)


@pytest.mark.parametrize("name", ["attention", "layer_norm", "two_results", "half_matmul"])
def test_the_result_is_that_of_a_call(name):
    program = PROGRAMS[name]
    exe, given = dd.compile(program.graph()), program.arrays()
    result = exe.profile(*given, repeats=2).result
    for got, expected in zip(flat(result), flat(exe(*given)), strict=True):
        np.testing.assert_array_equal(got, expected)


def flat(result):
    return result if isinstance(result, tuple) else (result,)


def test_results_of_a_call_and_of_a_profile_do_not_share_memory():
    exe = dd.compile(lambda x, w: (x, x @ w, w.T @ w), dd.spec((8, 8)), dd.spec((8, 8)))
    x, w = np.eye(8, dtype="f4"), np.full((8, 8), 2.0, "f4")
    first, second = exe.profile(x, w, repeats=1).result, exe.profile(2 * x, w, repeats=1).result
    np.testing.assert_array_equal(first[1], w)
    np.testing.assert_array_equal(second[1], 2 * w)
    assert not np.may_share_memory(first[0], x)


def test_the_predictions_are_those_of_the_search():
    exe = compiled()
    regions = exe.program.report["regions"]
    total = sum(launch.predicted for launch in exe.program.plan)
    assert total == pytest.approx(sum(r["predicted seconds"] for r in regions))
    assert exe.program.prepare == () or all(one.predicted > 0 for one in exe.program.prepare)


def test_the_predictions_stand_in_the_module_of_kernels():
    exe = compiled()
    text = exe.ir("kernels")
    with context(), ir.Location.unknown():
        module = ir.Module.parse(text)
        calls = [op for op in module.body.operations[0].body.blocks[0] if "callee" in op.attributes]
        found = [ir.FloatAttr(op.attributes["dodeca.predicted"]).value for op in calls]
        assert str(module) == text
    assert sorted(found) == sorted(x.predicted for x in exe.program.plan + exe.program.prepare)


def test_a_plan_without_launches():
    profile = dd.compile(lambda x: x, dd.spec((4,))).profile(np.ones(4, "f4"))
    assert profile.launches == () and profile.measured == 0
    assert math.isnan(profile.geometric_mean)
    np.testing.assert_array_equal(profile.result, np.ones(4, "f4"))
    assert str(profile).splitlines()[1].split() == ["total", "-", "0.0", "-"]


def test_the_median_of_the_repeats_without_the_first(monkeypatch):
    exe = compiled(threads=1)
    clock = iter([0, 9, 0, 9, 0, 1, 0, 10, 0, 2, 0, 20, 0, 6, 0, 60])  # first, then three rounds
    monkeypatch.setattr("dodeca.runtime.cpu.time.perf_counter", lambda: next(clock))
    profile = exe.profile(*arrays(), repeats=3)
    assert [row.measured for row in profile.launches] == [2, 20]


# --- errors


@pytest.mark.parametrize("target", ["cuda:sm_80", "hip:gfx942"])
def test_a_gpu_program_has_no_profile(target):
    exe = dd.compile(chain, dd.spec((4, 32)), dd.spec((32, 64)), target=target)
    assert all(launch.predicted > 0 for launch in exe.program.plan)
    with pytest.raises(TargetError, match=target):
        exe.profile(np.zeros((4, 32), "f4"), np.zeros((32, 64), "f4"))


def test_wrong_arrays():
    exe = compiled()
    x, w = arrays()
    with pytest.raises(ArgumentError, match=r"expected 2 \(x, w\) arguments, got 1"):
        exe.profile(x)
    with pytest.raises(ArgumentError, match=r"argument 1 \('w'\): expected float32 \(32, 64\)"):
        exe.profile(x, w.T)


@pytest.mark.parametrize("repeats", [0, -1, 1.5, True])
def test_repeats_must_be_a_positive_number(repeats):
    with pytest.raises(ArgumentError, match="repeats: expected a whole number"):
        compiled().profile(*arrays(), repeats=repeats)


def test_an_error_leaves_the_executable_usable(monkeypatch):
    exe, given = compiled(), arrays()
    expected = exe(*given)

    def interrupt(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(CpuRunner, "_launch", interrupt)
        with pytest.raises(KeyboardInterrupt):
            exe.profile(*given)
    np.testing.assert_array_equal(exe(*given), expected)
    np.testing.assert_array_equal(exe.profile(*given, repeats=1).result, expected)


# --- the table


def rows(*pairs):
    return tuple(LaunchProfile(f"k{i}", ("add [4]", "exp2 [4]"), *p) for i, p in enumerate(pairs))


def test_the_table():
    profile = Profile(rows((1e-5, 2e-5), (4e-4, 2e-4)), threads=2, repeats=20)
    assert profile.geometric_mean == pytest.approx(1.0)
    assert str(profile).splitlines() == [
        "kernel  predicted us  measured us  ratio  what it does",
        "k0              10.0         20.0   2.00  add [4], exp2 [4]",
        "k1             400.0        200.0   0.50  add [4], exp2 [4]",
        "total          410.0        220.0   0.54",
        "ratios: geometric mean 1.00, least 0.50, largest 2.00",
        "medians over 20 repeats, threads: 2",
    ]


def test_an_unknown_prediction_is_no_number():
    profile = Profile(rows((0.0, 2e-5), (1e-5, 3e-5)), threads=1, repeats=1)
    assert math.isnan(profile.launches[0].ratio)
    assert profile.ratios == [pytest.approx(3.0)]
    lines = str(profile).splitlines()
    assert lines[1].split()[:4] == ["k0", "-", "20.0", "-"]
    assert lines[3].split() == ["total", "-", "50.0", "-"]
    assert lines[4] == "ratios: geometric mean 3.00, least 3.00, largest 3.00"
    assert "ratios" not in str(Profile(rows((0.0, 1e-5)), threads=1, repeats=1))
