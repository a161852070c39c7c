"""Measuring on a Ray cluster of this machine alone: two actors, each with a core of its own.

Ray prints, warns and leaves threads behind, so it runs in a process of its own.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from dodeca.dialect.errors import Error
from dodeca.runtime.measurer import Tools
from faulty import build, cases

TESTS = Path(__file__).parent

# "orphan" kills the actor that builds it: once, if it names a file, else every time.
SCRIPT = """
import json, sys
from pathlib import Path
import ray
from faulty import build, candidate, cases, program, task
from dodeca.dialect.errors import Error
from dodeca.runtime import cluster
from dodeca.runtime.measurer import LocalWorkers, Limits, Tools

folder = Path(sys.argv[1])
facts, limits = {}, Limits(build_seconds=20, run_seconds=5)
tools = Tools(build, cases)
ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, _node_ip_address="127.0.0.1")

with cluster.RayCluster(tools, per_node=2, limits=limits) as measurer:
    facts["actors"], facts["device"] = len(measurer._places), measurer.device
    first = measurer._places[0]
    one = task(threads=1)
    names = ["sleep 1", *["good", "refused", "null", "wrong", "one_place", "ten"], *["good"] * 5]
    candidates = [candidate(name, one) for name in names]
    built = measurer.build(candidates)
    with LocalWorkers(tools, 1, limits) as alone:
        facts["same"] = [b.kernel for b in alone.build(candidates)] == [b.kernel for b in built]
    trials = measurer.measure(built, seconds=0.005)
    facts["order"] = [t.candidate.schedule for t in trials]
    facts["trials"] = [[t.status, t.seconds, t.message] for t in trials]

    again = [candidate(f"orphan {folder / 'once'}", one), *candidates[1:3]]
    facts["once"] = [b.status for b in measurer.build(again)]
    for place in measurer._places:
        place.workers = 2  # as many candidates go to an actor at once
    always = [candidates[1], candidate("orphan", one), candidates[1]]
    facts["twice"] = [[b.status, b.message] for b in measurer.build(always)]
    facts["refused"] = measurer.refused

    good = [b for b in built if b.status == "ok" and b.candidate.schedule in ("good", "ten")][:3]
    facts["compared"] = [t.status for t in measurer.compare(good, 0.05)]
    programs = [program("ten"), program("good")]
    facts["programs"] = [t.status for t in measurer.compare_programs(programs, 0.02, 1)]
    others = measurer.build([candidate("good", task(key="another"))])
    try:
        measurer.compare([*good, *others], 0.05)
    except Error as error:
        facts["error"] = str(error)
facts["alive"] = ray.is_initialized()
(folder / "facts.json").write_text(json.dumps(facts))
"""


@pytest.fixture(scope="module")
def facts(tmp_path_factory):
    """What the script found."""
    path = os.pathsep.join([str(TESTS), *sys.path])
    environment = {**os.environ, "PYTHONPATH": path, "RAY_USAGE_STATS_ENABLED": "0"}
    folder = tmp_path_factory.mktemp("cluster")
    ran = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(folder)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    return json.loads((folder / "facts.json").read_text())


def test_two_actors_each_with_a_core(facts):
    assert facts["actors"] == 2
    assert json.loads(facts["device"])["threads"] == 1


def test_results_are_in_order_and_those_of_one_process(facts):
    assert facts["same"]
    names = ["sleep 1", "good", "refused", "null", "wrong", "one_place", "ten", *["good"] * 5]
    assert facts["order"] == names
    statuses = ["ok", "ok", "failed", "crashed", "wrong", "wrong", *["ok"] * 6]
    assert [status for status, *_ in facts["trials"]] == statuses
    for status, seconds, message in facts["trials"]:
        assert (0 < seconds < 1) == (status == "ok") and bool(message) == (status != "ok")


def test_an_actor_that_dies_is_replaced(facts):
    assert facts["once"] == ["ok", "ok", "failed"]
    (first, _), (twice, message), (last, _) = facts["twice"]
    assert [first, twice, last] == ["ok", "crashed", "ok"] and "so did another" in message
    assert facts["refused"] == {}


def test_comparing_is_on_one_node(facts):
    assert facts["compared"] == ["ok"] * 3 and facts["programs"] == ["ok"] * 2


def test_an_error_of_ours_comes_through(facts):
    assert facts["error"] == "compare: expected candidates of one task, got 2 tasks"


def test_a_connection_that_was_there_stays(facts):
    assert facts["alive"]


def test_another_device_is_left_out(monkeypatch):
    """The device is this machine's if a node has it, else that of most."""
    from dodeca.runtime import cluster
    from dodeca.runtime.identity import compiler_version, identity

    here, there = identity("cpu", 2), '{"core":"znver9","kind":"cpu","model":"other","threads":8}'
    far = there.replace("other", "another")

    def chosen(*nodes):
        """The device of nodes, and which of them are used and left out."""
        measurer = cluster.RayCluster.__new__(cluster.RayCluster)
        measurer.refused, measurer._places = {}, []
        measurer._ray = SimpleNamespace(
            get=lambda facts, timeout: facts, is_initialized=bool, exceptions=ray_errors
        )
        for number in range(len(nodes)):
            measurer._places.append(cluster._Place(str(number), f"node {number}", 0, 2))
        told = dict(zip(measurer._places, nodes, strict=True))
        monkeypatch.setattr(cluster.RayCluster, "_start", lambda self, place: told[place])
        monkeypatch.setattr(cluster.RayCluster, "_end", lambda self, place: ended.append(place))
        ended: list[cluster._Place] = []
        device = measurer._choose_device()
        assert {*ended} == {*told} - {*measurer._places}
        return device, [place.name for place in measurer._places], measurer.refused

    ray_errors = SimpleNamespace(GetTimeoutError=TimeoutError, RayError=OSError)
    now = compiler_version()
    device, used, refused = chosen((there, now, 8), (here, now, 2), (there, now, 8))
    assert device == here and used == ["node 1"]
    assert refused["node 0"] == "another device, other (znver9), 8 threads"
    device, used, refused = chosen((far, now, 8), (there, now, 8), (there, now, 8))
    assert device == there and used == ["node 1", "node 2"] and list(refused) == ["node 0"]
    device, used, refused = chosen((here, "0.0+old", 2), (there, now, 8))
    assert device == there and refused == {"node 0": "its compiler is 0.0+old"}
    with pytest.raises(Error, match="no node of the Ray cluster can be used: node 0: its compiler"):
        chosen((here, "0.0+old", 2))


def test_what_is_missing_is_said(monkeypatch):
    from dodeca.runtime.cluster import RayCluster

    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(Error, match=r"a cluster needs Ray: pip install 'dodeca\[cluster\]'"):
        RayCluster(Tools(build, cases))
