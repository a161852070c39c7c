"""The SIMT executor sees what is wrong: each barrier, wait and index of some kernels matters."""

import pytest
from dodeca.dialect.errors import Error
from simt_hopper import CASES as HOPPER
from simt_kernels import optimised, text_for_chip
from simt_mutants import CASES, mutants, outcome

CASES = CASES + HOPPER
MUTANTS = [(case, name, ir) for case in CASES for name, ir in mutants(case)]


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_the_kernels_are_right(case):
    assert text_for_chip(case.ir, case.target)
    for reverse in (False, True):
        for checked in (False, True):
            assert outcome(case, case.ir, reverse, checked) < case.tolerance


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_the_kernels_are_right_after_the_passes_of_their_target(case):
    ir = optimised(case.ir, case.target)
    assert ir != case.ir
    for reverse in (False, True):
        assert outcome(case, ir, reverse) < case.tolerance


@pytest.mark.parametrize("case, name, ir", MUTANTS, ids=[f"{c.name}: {n}" for c, n, _ in MUTANTS])
def test_mutants_are_caught(case, name, ir):
    try:
        error = max(outcome(case, ir), outcome(case, ir, reverse=True))
    except Error as found:
        assert str(found).startswith("kernel k, block")
    else:
        assert error > case.tolerance, "nobody noticed"
