"""Measuring on a Ray cluster: the nodes compile and measure, each for itself, on equal machines.

    with RayCluster(Tools(build, cases), address="auto") as measurer:
        trials = measurer.measure(measurer.build(candidates))    # in the order of the candidates
        measurer.device                                          # the machine that they are of

One actor a node (or `per_node`, each with cores of its own) has `LocalWorkers`, so that a candidate
that crashes costs no actor. An actor that dies all the same is replaced, and its candidates are run
again once, one by one. Times of different machines are not mixed: the cluster has one `device`,
this machine's if a node has that, else that of most nodes. Those with another CPU, another number
of cores or another version of the compiler are left out, with a warning; `refused` says why.

Each node needs dodeca, and the module of the tools, installed. All nodes and the network between
them are trusted: Ray runs what it is sent.
"""

from __future__ import annotations

import logging
import math
import os
import warnings
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Self

from ..dialect.errors import Error
from .driver import available_cores
from .identity import compiler_version, device_in_words, identity, is_this_machine
from .measurer import Limits, LocalWorkers, ProgramTrial, Tools
from .program import Program
from .trial import Built, Candidate, Trial

START_SECONDS = 120.0  # for an actor to be there: it waits for the cores that it is to have
MEASURED = 4  # candidates that an actor is given at once


class Node:
    """What an actor does, on one machine. `part` of `parts` says which of the cores are its own."""

    def __init__(self, tools: Tools, limits: Limits, part: int, parts: int):
        if parts > 1:
            cores = sorted(os.sched_getaffinity(0))
            share = len(cores) // parts
            if not share:
                raise Error(f"{parts} actors a node, but {len(cores)} cores")
            os.sched_setaffinity(0, cores[part * share : (part + 1) * share])
        self._workers = LocalWorkers(tools, limits=limits)

    def facts(self) -> tuple[str, str, int]:
        """The machine's identity, the compiler's version, and the number of cores."""
        cores = available_cores()
        return identity("cpu", cores), compiler_version(), cores

    def do(self, method: str, items: list[Any], more: tuple[Any, ...]) -> list[Any]:
        """Carry out a method of the measurer."""
        return getattr(self._workers, method)(items, *more)


@dataclass(eq=False)
class _Place:
    """Where an actor is, and the actor, if there is one now."""

    node: str
    name: str
    part: int
    cores: float  # as Ray counts them
    actor: Any = None
    workers: int = 1


class RayCluster:
    """A measurer on all nodes of a Ray cluster that are equal.

    `address` is Ray's: "auto" finds the cluster that this machine belongs to, "local" starts one on
    this machine alone. A connection that is there already is used, and left open by `close`.
    """

    def __init__(
        self,
        tools: Tools,
        address: str = "auto",
        *,
        per_node: int = 1,
        limits: Limits | None = None,
    ):
        self._ray = _import_ray()
        self._tools, self._limits, self._per_node = tools, limits or Limits(), per_node
        self.refused: dict[str, str] = {}  # nodes that are left out, and why
        self._ours = not self._ray.is_initialized()
        if self._ours:
            try:
                level = logging.WARNING
                self._ray.init(address=address, logging_level=level, log_to_driver=False)
            except (ConnectionError, ValueError, RuntimeError) as error:
                raise Error(f"there is no Ray cluster at {address!r}: {error}") from error
        try:
            self._places = self._find_places()
            self.device = self._choose_device()
        except BaseException:
            self.close()
            raise
        if self.refused:
            told = "; ".join(f"{name}: {why}" for name, why in self.refused.items())
            warnings.warn(f"nodes that are left out: {told}", RuntimeWarning, stacklevel=2)

    # --- the interface

    def build(self, candidates: Sequence[Candidate]) -> list[Built]:
        """Compile candidates on all nodes; the results are in order."""
        size = self._places[0].workers
        parts = [range(i, min(i + size, len(candidates))) for i in range(0, len(candidates), size)]
        found = self._on_all("build", candidates, parts)
        return [
            found.get(i) or Built(one, None, "crashed", _TWICE) for i, one in enumerate(candidates)
        ]

    def measure(
        self, built: Sequence[Built], seconds: float = 0.05, limit: float = math.inf
    ) -> list[Trial]:
        """Check and time candidates, each alone on a node; the results are in order."""
        by_task: dict[str, list[int]] = {}
        for i, one in enumerate(built):
            by_task.setdefault(one.candidate.task.key, []).append(i)
        parts = [
            ids[i : i + MEASURED] for ids in by_task.values() for i in range(0, len(ids), MEASURED)
        ]
        found = self._on_all("measure", built, parts, seconds, limit)
        return [
            found.get(i) or Trial(one.candidate, "crashed", message=_TWICE)
            for i, one in enumerate(built)
        ]

    def compare(self, built: Sequence[Built], seconds: float) -> list[Trial]:
        """Check candidates of one task and time them in turns, all on one node."""
        found = self._on_all("compare", built, [range(len(built))], seconds, split=False)
        return [
            found.get(i) or Trial(one.candidate, "crashed", message=_TWICE)
            for i, one in enumerate(built)
        ]

    def compare_programs(
        self, programs: Sequence[Program], seconds: float, threads: int | None = None
    ) -> list[ProgramTrial]:
        """Time calls of whole programs in turns, all on one node; results are not checked."""
        more = (seconds, threads)
        found = self._on_all(
            "compare_programs", programs, [range(len(programs))], *more, split=False
        )
        lost = ProgramTrial("crashed", message=_TWICE)
        return [found.get(i) or lost for i in range(len(programs))]

    def close(self) -> None:
        """End all actors, and the connection to the cluster if it was made here."""
        for place in getattr(self, "_places", []):
            self._end(place)
        if self._ours:
            self._ray.shutdown()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    # --- nodes and their actors

    def _find_places(self) -> list[_Place]:
        """The places for actors, in a fixed order, none of them started."""
        places = []
        for node in sorted(self._ray.nodes(), key=lambda node: node["NodeID"]):
            cores = math.floor(node["Resources"].get("CPU", 0) / self._per_node)
            if node["Alive"] and cores:
                name = node["NodeManagerAddress"]
                places += [
                    _Place(node["NodeID"], name, part, cores) for part in range(self._per_node)
                ]
        if not places:
            raise Error(f"no node of the Ray cluster has {self._per_node} cores to give")
        return places

    def _choose_device(self) -> str:
        """Start all actors, and keep those of one device; the device."""
        asked = [(place, self._start(place)) for place in self._places]
        devices: dict[_Place, str] = {}
        for place, reference in asked:
            try:
                device, compiler, place.workers = self._ray.get(reference, timeout=START_SECONDS)
            except self._ray.exceptions.GetTimeoutError:
                self.refused[place.name] = f"gave no {place.cores} cores in {START_SECONDS:.0f} s"
            except self._ray.exceptions.RayError as error:
                self.refused[place.name] = _in_words(error)
            else:
                if compiler == compiler_version():
                    devices[place] = device
                else:
                    self.refused[place.name] = f"its compiler is {compiler}"
        counts = Counter(devices.values())
        if not counts:
            told = "; ".join(f"{name}: {why}" for name, why in self.refused.items())
            raise Error(f"no node of the Ray cluster can be used: {told}")
        device = max(counts, key=lambda one: (is_this_machine("cpu", one), counts[one], one))
        for place in self._places:
            if place in devices and devices[place] != device:
                self.refused[place.name] = f"another device, {device_in_words(devices[place])}"
            if devices.get(place) != device:
                self._end(place)
        self._places = [place for place in self._places if devices.get(place) == device]
        return device

    def _start(self, place: _Place) -> Any:
        """Start a place's actor; a reference to what it says of itself."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        remote: Any = self._ray.remote(Node)
        place.actor = remote.options(
            num_cpus=place.cores,  # so that nothing else of Ray's runs beside a measurement
            max_restarts=0,
            scheduling_strategy=NodeAffinitySchedulingStrategy(place.node, soft=False),
        ).remote(self._tools, self._limits, place.part, self._per_node)
        return place.actor.facts.remote()

    def _end(self, place: _Place) -> None:
        """End a place's actor; its processes end with it."""
        actor, place.actor = place.actor, None
        if actor is not None and self._ray.is_initialized():
            self._ray.kill(actor)

    def _again(self, place: _Place) -> bool:
        """Replace an actor that died; whether its node has another that is equal."""
        self._end(place)
        try:
            facts = self._ray.get(self._start(place), timeout=START_SECONDS)
        except self._ray.exceptions.RayError as error:
            self.refused[place.name] = _in_words(error)
            return False
        return facts[0] == self.device

    # --- work

    def _on_all(
        self,
        method: str,
        items: Sequence[Any],
        parts: Sequence[Sequence[int]],
        *more: Any,
        split: bool = True,
    ) -> dict[int, Any]:
        """What a method gives for each item, by its number; parts go to whoever has nothing to do.

        A part whose actor dies is done once more, item by item with `split`; what is missing in the
        result was lost twice.
        """
        waiting = deque((list(part), False) for part in parts if part)
        idle, running, found = list(self._places), {}, {}
        try:
            while waiting or running:
                while waiting and idle:
                    place, (part, repeated) = idle.pop(0), waiting.popleft()
                    if place.actor is None and not self._again(place):
                        self._give_up(place)
                        waiting.appendleft((part, repeated))
                        continue
                    actor: Any = place.actor
                    reference = actor.do.remote(method, [items[i] for i in part], more)
                    running[reference] = place, part, repeated
                (done,), _ = self._ray.wait([*running], num_returns=1)
                place, part, repeated = running.pop(done)
                idle.append(place)
                try:
                    found.update(zip(part, self._ray.get(done), strict=True))
                except self._ray.exceptions.RayActorError:
                    self._end(place)
                    if not repeated:
                        again = [[i] for i in part] if split else [part]
                        waiting.extendleft((one, True) for one in reversed(again))
                except self._ray.exceptions.RayTaskError as error:
                    raise Error(_in_words(error)) from error
        except BaseException:  # an interrupt, too: answers that come later are nobody's
            for place, _, _ in running.values():
                self._end(place)
            raise
        return found

    def _give_up(self, place: _Place) -> None:
        """Go on without a node."""
        self._end(place)
        self._places.remove(place)
        if not self._places:
            raise Error(f"no node of the Ray cluster is left: {self.refused}")


_TWICE = "the actor that had it died, and so did another"


def _import_ray() -> ModuleType:
    try:
        import ray
    except ImportError:
        raise Error("a cluster needs Ray: pip install 'dodeca[cluster]'") from None
    return ray


def _in_words(error: Exception) -> str:
    """An error of Ray's: the one that it wraps, if it does, else its last line."""
    cause = getattr(error, "cause", None) or error
    lines = [line.strip() for line in str(cause).splitlines() if line.strip()]
    return (lines or [type(cause).__name__])[-1][:500]
