"""What a measurement depends on besides the program: this machine, and the compiler's version."""

import json
import re
from dataclasses import replace

import pytest
from dodeca.runtime.database import Key, apart
from dodeca.runtime.identity import (
    compiler_version,
    device_in_words,
    identity,
    is_this_machine,
    threads_of,
)

DEVICE = '{"core":"znver9","kind":"cpu","model":"A CPU","threads":4}'
KEY = Key("3fa9c0ffee", "f32[4x8]", "fast", "cpu", DEVICE, "1.0+abc")


def test_a_cpu_is_known_by_what_it_can_do() -> None:
    device = identity("cpu", 2)
    facts = json.loads(device)
    assert list(facts) == ["core", "features", "kind", "model", "threads"]
    assert facts["kind"] == "cpu" and facts["threads"] == 2 and facts["features"]
    assert device == json.dumps(facts, sort_keys=True, separators=(",", ":"))
    assert device == identity("cpu", 2) != identity("cpu", 3)
    assert is_this_machine("cpu", identity("cpu", 7))
    assert not is_this_machine("cpu", DEVICE)
    assert not is_this_machine("cpu", device.replace(facts["features"][0], "other"))
    assert threads_of(identity("cpu", 7)) == 7


def test_a_gpu_target_without_a_device_is_known_by_its_name() -> None:
    assert json.loads(identity("cuda:sm_90", 4)) == {"kind": "cuda", "target": "cuda:sm_90"}
    assert is_this_machine("hip:gfx942", identity("hip:gfx942", 0))
    assert not is_this_machine("hip:gfx942", identity("hip:gfx1100", 0))


@pytest.mark.parametrize(
    ("device", "words"),
    [
        (DEVICE, "A CPU (znver9), 4 threads"),
        (DEVICE.replace("4", "1"), "A CPU (znver9), 1 thread"),
        ('{"kind":"cuda","name":"A GPU","capability":"9.0"}', "A GPU (9.0)"),
        ('{"kind":"cuda","target":"cuda:sm_90"}', "cuda:sm_90"),
        ("[1]", "an unknown device"),
        ("{", "an unknown device"),
    ],
)
def test_a_device_in_words(device: str, words: str) -> None:
    assert device_in_words(device) == words


def test_what_holds_here_is_of_this_machine_and_version() -> None:
    here = replace(KEY, device=identity("cpu", 2))
    assert apart(here, KEY.compiler) == ""
    assert apart(here, "2.0") == "another version of dodeca: 1.0+abc"
    assert apart(KEY, KEY.compiler) == "another machine: A CPU (znver9), 4 threads"
    assert re.fullmatch(r"[\w.]+\+[0-9a-f]{12}", compiler_version())
