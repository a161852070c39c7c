"""Programs as bytes and back, and containers: what was changed or makes no sense is refused."""

import dataclasses
import hashlib
import json
import random
import zipfile
from io import BytesIO
from typing import Any

import dodeca as dd
import numpy as np
import pytest
from dodeca.dialect.errors import Error, ParseError
from dodeca.runtime import container, serial
from dodeca.runtime.program import Program
from dodeca.runtime.serial import MANIFEST, decode, encode, pack, unpack

RNG = np.random.default_rng(5)
W = RNG.normal(size=(6, 8)).astype(np.float32)
V = RNG.normal(size=(8, 5)).astype(np.float32)


def model(x: Any) -> Any:
    """Weights that are multiplied once, and two results."""
    y = x @ (dd.Tensor(W, "w") @ dd.Tensor(V, "v"))
    return dd.softmax(y), y


@pytest.fixture(scope="module")
def program() -> Program:
    made = dd.compile(model, dd.spec((4, 6), name="x"), threads=1).program
    assert made.prepare and len(made.plan) > 1
    return made


@pytest.fixture(scope="module")
def files(program: Program) -> dict[str, bytes]:
    return encode(program)


# --- round trips


@pytest.mark.parametrize("target", ["cpu", "cuda:sm_80", "hip:gfx942"])
def test_a_program_comes_back(target: str) -> None:
    made = dd.compile(model, dd.spec((4, 6)), target=target).program
    again = decode(unpack(pack(encode(made))))
    for field in dataclasses.fields(Program):
        assert getattr(again, field.name) == getattr(made, field.name), field.name


def test_equal_programs_give_equal_bytes(program: Program, files: dict[str, bytes]) -> None:
    assert pack(encode(decode(files))) == pack(files)


def test_facts_of_numpy_and_tuples_become_plain(program: Program) -> None:
    facts = {"seconds": {"tile": np.float64(0.5)}, "sizes": (1, np.int64(2)), "of": {3: None}}
    again = decode(encode(dataclasses.replace(program, report=facts)))
    assert again.report == {"seconds": {"tile": 0.5}, "sizes": [1, 2], "of": {"3": None}}


# --- what makes no sense

Change = Any  # a function of the manifest, which it changes


def changed(files: dict[str, bytes], change: Change) -> dict[str, bytes]:
    manifest = json.loads(files[MANIFEST])
    change(manifest)
    return {**files, MANIFEST: json.dumps(manifest).encode()}


def setting(*path: Any) -> Change:
    """Set the last of a path of keys: setting("plan", 0, 1, 0, 99)."""

    def change(manifest: Any) -> None:
        *way, key, value = path
        for step in way:
            manifest = manifest[step]
        manifest[key] = value

    return change


def first_kernel(manifest: dict[str, Any]) -> dict[str, Any]:
    return next(iter(manifest["kernels"].values()))


def prepared_in_plan(manifest: Any) -> None:
    """A launch of the plan that writes what was prepared."""
    manifest["plan"].append(manifest["prepare"][0])


def reads_an_input_once(manifest: Any) -> None:
    """A launch before all calls that reads an input."""
    manifest["prepare"].append(manifest["plan"][0])


def swap_kernel_names(manifest: Any) -> None:
    one, two = list(manifest["kernels"].values())[:2]
    one["name"] = two["name"]


WRONG = {
    "a buffer that is not there": (setting("plan", 0, 1, 0, 99), r"plan\[0\]: there is no buffer"),
    "a buffer below 0": (
        setting("plan", 0, 1, 0, -1),
        r"plan\[0\].arguments\[0\]: expected a whole",
    ),
    "a number as bool": (setting("plan", 0, 1, 0, True), r"expected a whole number.*got True"),
    "a number as float": (setting("plan", 0, 1, 0, 0.0), r"expected a whole number.*got 0.0"),
    "one argument more": (lambda m: m["plan"][0][1].append(0), r"arguments, not"),
    "an unknown kernel": (setting("plan", 0, 0, "k9"), r"plan\[0\]: there is no kernel 'k9'"),
    "another shape": (setting("buffers", 0, 0, [4, 7]), r"buffer 0 is float32 \(4, 7\)"),
    "another dtype": (setting("buffers", 0, 1, "int32"), r"buffer 0 is int32"),
    "an unknown dtype": (setting("buffers", 0, 1, "float8"), r"'float8' is not one of dodeca's"),
    "an unknown role": (setting("buffers", 0, 2, "secret"), r"role: expected one of input"),
    "an input that is none": (setting("inputs", []), r"inputs: \[\], but the buffers of that"),
    "an input twice": (lambda m: m["inputs"].append(0), r"inputs: \[0, 0\]"),
    "an output that is not there": (setting("outputs", 0, 50), r"outputs: there is no buffer 50"),
    "a weight twice": (setting("weights", "w", 2), r"weights: "),
    "writing what is prepared": (prepared_in_plan, r"may not write buffer \d+, whose role is prep"),
    "reading inputs once": (reads_an_input_once, r"may not read buffer 0, whose role is input"),
    "two kernels of a name": (swap_kernel_names, r"kernels: two have one name"),
    "a huge buffer": (setting("buffers", 0, 0, [1 << 40, 1 << 40]), r"is too large"),
    "a huge buffer with a 0": (setting("buffers", 0, 0, [0, 1 << 46, 1 << 46]), r"is too large"),
    "many dimensions": (setting("buffers", 0, 0, [1] * 60), r"is too large"),
    "a huge grid": (lambda m: first_kernel(m).update(grid=1 << 40), r"grid: expected a whole"),
    "a block on a CPU": (lambda m: first_kernel(m).update(block=2), r"block: 2 is not possible"),
    "many outputs": (lambda m: first_kernel(m).update(outputs=9), r"outputs: 9, of"),
    "another target": (lambda m: first_kernel(m).update(target="hip:x"), r"'hip:x' in a program"),
    "a name that is none": (lambda m: first_kernel(m).update(name="a\0b"), r"cannot be the name"),
    "a blob that is not there": (lambda m: first_kernel(m).update(binary="77"), r"no blob '77'"),
    "the manifest as a blob": (lambda m: first_kernel(m).update(binary=MANIFEST), r"no blob"),
    "a target that is none": (setting("target", "../cpu"), r"target: '../cpu' is not one of"),
    "a field more": (setting("extra", 1), r"the field 'extra' is unknown"),
    "a field less": (lambda m: m.pop("plan"), r"the field 'plan' is missing"),
    "a list for an object": (setting("kernels", []), r"kernels: expected an object, got \[\]"),
    "deep facts": (setting("report", "x", json.loads("[" * 50 + "]" * 50)), r"nests too deep"),
    "times in words": (setting("report", "seconds", {"tile": "long"}), r"expected a number"),
    "shared bytes": (
        lambda m: first_kernel(m)["resources"].update(dynamic_shared_bytes="a"),
        "who",
    ),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_makes_no_sense_is_refused(what: str, files: dict[str, bytes]) -> None:
    change, message = WRONG[what]
    with pytest.raises(ParseError, match=message):
        decode(changed(files, change))


def test_a_manifest_that_is_no_json(files: dict[str, bytes]) -> None:
    for text in (
        b"",
        b"{",
        b"\xff",
        b"[" * 100_000,
        b'{"target":1,"target":2}',
        b"[1]",
        b"9" * 9999,
    ):
        with pytest.raises(ParseError):
            decode({**files, MANIFEST: text})
    with pytest.raises(ParseError, match=r"has no program\.json"):
        decode({})


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths of all that a JSON value holds."""
    inside = value.items() if isinstance(value, dict) else enumerate(value)
    found = []
    for key, part in inside:
        found.append((*path, key))
        if isinstance(part, dict | list):
            found += places(part, (*path, key))
    return found


def test_any_field_may_be_anything(files: dict[str, bytes]) -> None:
    """No change of one field is answered by anything but a program or a ParseError."""
    values = [None, True, -1, 0, 3, 1 << 31, 1 << 80, 0.5, "", "x", [], [0], {}, {"x": 0}]
    found = places(json.loads(files[MANIFEST]))
    chance = random.Random(7)
    refused = 0
    for path in chance.sample(found, min(len(found), 250)):
        for value in chance.sample(values, 4):
            try:
                serial.check(decode(changed(files, setting(*path, value))))
            except ParseError:
                refused += 1
    assert refused > 500


# --- containers

SMALL = {"a.txt": b"alpha", "empty": b"", "b/c": bytes(range(256)) * 3}


def test_a_container_is_a_zip_file_whose_members_are_aligned() -> None:
    data = pack(SMALL)
    assert unpack(data) == SMALL
    with zipfile.ZipFile(BytesIO(data)) as packed:
        assert packed.testzip() is None
        assert packed.read("b/c") == SMALL["b/c"]
    for content in SMALL.values():
        assert not content or data.index(content) % container.ALIGNMENT == 0
    assert pack(dict(SMALL)) == data


def test_large_members_are_aligned_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(container, "_LARGE", 4)  # then their headers have sizes of 64 bits
    data = pack(SMALL)
    assert unpack(data) == SMALL
    for content in SMALL.values():
        assert not content or data.index(content) % container.ALIGNMENT == 0


def test_every_bit_is_guarded() -> None:
    """Each byte with one bit changed, and each length that is not the whole."""
    data = pack(SMALL)
    for at in range(len(data)):
        flipped = bytearray(data)
        flipped[at] ^= 1 << at % 8
        with pytest.raises(ParseError):
            unpack(bytes(flipped))
    for length in range(0, len(data), 7):
        with pytest.raises(ParseError):
            unpack(data[:length])
    with pytest.raises(ParseError):
        unpack(data + b"\0")


def test_a_later_format_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(container, "FORMAT", 7)
    data = pack(SMALL)
    monkeypatch.undo()
    with pytest.raises(ParseError, match="has format 7; this version of dodeca reads format 1"):
        unpack(data)


def test_other_zip_files_are_refused() -> None:
    made = BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr("a", b"x" * 1000)
    for data in (made.getvalue(), b"", b"PK", b"no zip at all"):
        with pytest.raises(ParseError, match="is not a container of dodeca's"):
            unpack(data)


def resealed(data: bytes, old: bytes, new: bytes) -> bytes:
    """The container with the index changed, and the hash that covers it made right again."""
    index_at = data.index(b'{"members"')
    changed = data.replace(old, new, 1)
    assert len(changed) == len(data) and changed != data and index_at
    spans = container._spans(BytesIO(changed), "it")
    digest = hashlib.sha256()
    for begin, end in container._between(spans, len(changed) - len(container._comment("0" * 64))):
        digest.update(changed[begin:end])
    return changed[:-64] + digest.hexdigest().encode()


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (b'"bytes":5', b'"bytes":6', "the size of 'a.txt'"),
        (b'"a.txt":{', b'"A.txt":{', "its index does not fit its members"),
        (b'"members"', b'"member_"', "its index does not fit its members"),
        (b'"sha256":"', b'"sha257":"', "the hash of 'a.txt' does not fit"),
        (b'{"members"', b'["members"', "is not JSON"),
    ],
)
def test_an_index_that_lies(old: bytes, new: bytes, message: str) -> None:
    data = resealed(pack(SMALL), old, new)
    with pytest.raises(ParseError, match=message):
        unpack(data)


def test_hashes_are_checked_by_several_threads() -> None:
    many = {str(i): bytes([i]) * 1000 for i in range(50)}
    data = pack(many)
    held = container.Container(memoryview(data), "it")
    held.check(held.names, 3)
    wrong = bytearray(data)
    wrong[data.index(many["31"]) + 5] ^= 1
    held = container.Container(memoryview(bytes(wrong)), "it")
    with pytest.raises(Error, match=r"the hash of '31' does not fit"):
        held.check(held.names, 3)
