"""A compiler with a bug, for tests of the search: the last program of a grid is left out."""

from dataclasses import replace

from dodeca.kernel_tasks import build as right_build
from dodeca.runtime.space import from_json
from dodeca.runtime.trial import Candidate


def build(candidate: Candidate):
    """Wrong for a tile of several rows, right for all other schedules."""
    schedule = from_json(candidate.schedule)
    kernel = right_build(candidate)
    if dict(schedule.tiles).get("d0", 1) == 1 or kernel.grid < 2:
        return kernel
    return replace(kernel, grid=kernel.grid - 1)
