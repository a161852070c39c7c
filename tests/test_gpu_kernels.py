"""Kernels of every kind on every GPU: they assemble without spills, and are right."""

from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from multiprocessing import get_context

import pytest
from gpu_kernels import CASES, SLICE, TOLERANCE, Outcome, outcome

SPILLS = {  # of schedules that are not good enough yet, and why
    (
        "matmul float16 tile, turned",
        "cuda:sm_90a",
    ): "ptxas takes 96 registers, and spills 4 of them",
    (
        "matmul bfloat16 tile, turned",
        "cuda:sm_90a",
    ): "ptxas takes 96 registers, and spills 4 of them",
    (
        "matmul int8 100x75x50",
        "hip:gfx1201",
    ): "bytes of ragged rows are loaded one by one, all first",
    **{
        ("attention float32 40x16 rolled", f"hip:{chip}"): "57 scalar registers, into vector ones"
        for chip in ("gfx1100", "gfx1201")
    },
}


@pytest.fixture(scope="module")
def outcomes(request: pytest.FixtureRequest) -> Iterator[dict[tuple[str, str], Future[Outcome]]]:
    """What comes of each pair that a test of this session asks for, made by two processes."""
    asked = {item.callspec.id for item in request.session.items if hasattr(item, "callspec")}
    with ProcessPoolExecutor(2, get_context("spawn")) as pool:
        yield {
            pair: pool.submit(outcome, *pair, both_orders=number % 5 == 0, link=number % 7 == 0)
            for number, pair in enumerate(SLICE)
            if _id(pair) in asked
        }
        pool.shutdown(cancel_futures=True)


def _id(pair: tuple[str, str]) -> str:
    return f"{pair[0]} {pair[1].partition(':')[2]}"


@pytest.mark.parametrize("pair", SLICE, ids=map(_id, SLICE))
def test_kernels(pair: tuple[str, str], outcomes: dict[tuple[str, str], Future[Outcome]]) -> None:
    name, _ = pair
    found = outcomes[pair].result()
    dtype = CASES[name].specs[0][1]
    assert found.error <= TOLERANCE[dtype]
    spilling = [k for k in found.kernels if k.spills or k.stack]
    assert bool(spilling) == (pair in SPILLS), spilling
    if name.endswith("flash"):
        assert len(found.kernels) == 1 and found.kernels[0].matrix
