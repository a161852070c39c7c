"""The space of schedules: all that it gives is legal, and it covers what a kernel can be."""

import json
from dataclasses import replace
from functools import cache
from itertools import permutations, product

import numpy as np
import pytest
from dodeca.dialect import DTYPES
from dodeca.dialect.errors import CompileError, ParseError
from dodeca.fusion import fuse, schedule_attribute
from dodeca.pass_pipeline import build_pipeline
from dodeca.passes import terms
from dodeca.passes.index import Axis, of_axis
from dodeca.passes.schedule import Schedule
from dodeca.passes.stage import LOCAL_BYTES
from dodeca.passes.targets import Target
from dodeca.passes.tile import read_kernel
from dodeca.runtime.block_space import find_space
from dodeca.runtime.device import find_target
from dodeca.runtime.space import FEATURES, Space, from_json, to_json
from dodeca.schedule_attribute import SCHEDULE, read_schedule
from mlir import ir
from programs import PROGRAMS

SETTINGS = [
    ("cpu", "fast"), ("cpu", "strict"), ("cuda:sm_80", "fast"), ("cuda:sm_80", "strict"),
    ("hip:gfx942", "fast"),
]  # fmt: skip
NAMES = [
    "matmul_batched", "dot", "softmax_rows", "attention", "layer_norm_linear", "argmax",
    "embedding", "bool_any", "int_mix", "bfloat_norm", "double_solve", "scalar", "empty",
]  # fmt: skip
F32 = DTYPES["float32"]
# a machine of known registers, whatever runs the test
CPU = replace(find_target("cpu"), vector_bytes=32, registers=16, units=2, near=256e3)


@cache
def spaces(name: str, target: str, precision: str) -> list[tuple[Space, Schedule]]:
    """The spaces of a program's kernels, and the schedules that the compiler chose."""
    graph, found, row = PROGRAMS[name].graph(), [], find_target(target)
    context = graph.module.context
    with context, ir.Location.unknown():
        work = ir.Module.parse(str(graph.module))
        build_pipeline("dodeca-simplify", context).run(work)
        fused = fuse(work.operation, row, precision)
        for function in list(fused.module.body.operations)[1:]:
            kernel = read_kernel(function.operation)
            chosen = read_schedule(function.operation.attributes[SCHEDULE], kernel.axes)
            space = find_space(kernel.term, kernel.axes, row, precision == "strict")
            assert from_json(to_json(chosen)) == chosen
            assert read_schedule(schedule_attribute(chosen), kernel.axes) == chosen
            found.append((space, chosen))
    return found


def matmul(
    m: int, n: int, k: int, strict: bool = False, target: Target = CPU, dtype: str = "float32"
) -> Space:
    """The space of a matrix product."""
    i, j, r = Axis("d0", m), Axis("d1", n), Axis("r0", k)
    a = terms.load("a0", (of_axis(i), of_axis(r)), (m, k), DTYPES[dtype])
    b = terms.load("a1", (of_axis(r), of_axis(j)), (k, n), DTYPES[dtype])
    wide = [terms.cast(x, F32) for x in (a, b)]
    return find_space(terms.reduction("sum", r, wide[0] * wide[1]), (i, j), target, strict)


def attention(rows: int, places: int, width: int, target: Target = CPU) -> Space:
    """The space of softmax(s) @ v for scores that are there."""
    i, e, r = Axis("d0", rows), Axis("d1", width), Axis("r0", places)
    score = terms.load("a0", (of_axis(i), of_axis(r)), (rows, places), F32)
    weight = terms.load("a1", (of_axis(r), of_axis(e)), (places, width), F32)
    return find_space(terms.plain(terms.reduction("roll", r, score, weight)), (i, e), target)


def scatter(count: int, rows: int, width: int) -> Space:
    """The space of rows added at their places."""
    d, e, r = Axis("d0", rows), Axis("d1", width), Axis("r0", count)
    place = terms.load("a0", (of_axis(r),), (count,), DTYPES["int64"])
    value = terms.load("a1", (of_axis(r), of_axis(e)), (count, width), F32)
    position = terms.index(of_axis(d), DTYPES["int64"])
    return Space(terms.plain(terms.reduction("scatter", r, place, value, position)), (d, e), CPU)


# --- what it gives ------------------------------------------------------------------------------


@pytest.mark.parametrize(("target", "precision"), SETTINGS)
@pytest.mark.parametrize("name", NAMES)
def test_all_that_it_gives_is_legal(name: str, target: str, precision: str) -> None:
    for space, chosen in spaces(name, target, precision):
        rng = np.random.default_rng(0)
        assert space.default == chosen == space.known[0]
        drawn = [space.sample(rng) for _ in range(6)]
        made = [space.mutate(s, rng) for s in drawn] + [space.mutate(chosen, rng)]
        made += [space.cross(a, b, rng) for a, b in zip(drawn, made, strict=False)]
        for schedule in [*space.known, space.plainest, *drawn, *made]:
            assert not space.legal(schedule), schedule
            assert from_json(to_json(schedule)) == schedule
        for schedule in (chosen, drawn[0]):
            found = space.features(schedule)
            assert found.shape == (len(FEATURES),)
            assert np.isfinite(found).all()
            assert space.predict(schedule) > 0
        assert len({*drawn, *made}) <= space.size


def test_the_same_generator_gives_the_same_schedules() -> None:
    def draw() -> list[Schedule]:
        space, rng = matmul(60, 70, 80), np.random.default_rng(3)
        drawn = [space.sample(rng) for _ in range(10)]
        return drawn + [space.mutate(s, rng) for s in drawn] + [space.cross(*drawn[:2], rng)]

    assert draw() == draw()


def test_samples_are_spread_over_the_space() -> None:
    space, rng = matmul(100, 200, 64), np.random.default_rng(0)
    drawn = [space.sample(rng) for _ in range(400)]
    assert {s.vector for s in drawn} == {None, "d0", "d1"}
    assert {s.lanes for s in drawn if s.vector is None} >= {1, 2, 4, 8, 16, 32}
    widths = {s.tile(space.axes[1]) for s in drawn if s.vector == "d1"}
    assert widths >= {2, 4, 8, 16, 32, 64}
    rows = {s.tile(space.axes[0]) for s in drawn if s.vector == "d1"}
    assert rows >= {1, 2, 4, 8}
    orders = {tuple(one) for n in range(3) for one in permutations(["d0", "d1"], n)}
    assert {s.order for s in drawn} == orders
    blocks = {s.block(space.axes[0]) for s in drawn}
    assert {1, 100} <= blocks and len(blocks) > 20
    both = [s for s in drawn if min(dict(s.tiles).values()) > 1]
    assert len(both) > 40


def test_folds_are_in_the_space() -> None:
    space, rng = attention(48, 100, 24), np.random.default_rng(0)
    drawn = [space.sample(rng) for _ in range(200)]
    folds = [s for s in drawn if s.fold]
    assert 30 < len(folds) < 170
    assert len({s.fold for s in folds}) > 6 and len({s.blocks for s in folds}) > 20
    assert any(s.fold for s in space.known) and not all(s.fold for s in space.known)
    there = [space.mutate(s, rng) for s in drawn]
    moved = [bool(s.fold) != bool(t.fold) for s, t in zip(drawn, there, strict=True)]
    assert 5 < sum(moved) < 60
    plain = next(s for s in drawn if not s.fold)
    kinds = {bool(space.cross(plain, folds[0], rng).fold) for _ in range(20)}
    assert kinds == {False, True}


def test_programs_that_scatter_share_no_place() -> None:
    space, rng = scatter(40, 9, 24), np.random.default_rng(0)
    folds = [s for s in (space.sample(rng) for _ in range(200)) if s.fold]
    assert len({s.blocks for s in folds}) > 3
    for s in folds:
        assert s.fold == 1 and s.block(space.axes[0]) == 9 and 24 % s.block(space.axes[1]) == 0
    cut = (("d0", 9), ("d1", 10))
    assert "two programs would add" in space.legal(replace(folds[0], blocks=cut))
    assert "a program has all" in space.legal(replace(folds[0], blocks=(("d0", 3), ("d1", 24))))


def test_a_mutation_is_one_decision() -> None:
    space, rng = matmul(64, 64, 64), np.random.default_rng(0)
    middle = Schedule("d1", (("d0", 2), ("d1", 16)), (("d0", 8), ("d1", 32)), ("d0", "d1"), 8)
    assert not space.legal(middle)
    made = [space.mutate(middle, rng) for _ in range(300)]
    assert middle not in made and len({*made}) > 25
    for s in made:
        tiles = [a.name for a in space.axes if s.tile(a) != middle.tile(a)]
        if s.vector == middle.vector:
            assert len(tiles) <= 1  # blocks and order follow what the tile makes serial
        else:
            assert s.tile(space.axes[0]) in (2, 16)
    same = [s for s in made if s.tiles == middle.tiles and s.order == middle.order]
    assert same and all(len({*s.blocks} - {*middle.blocks}) == 1 for s in same)
    assert any(s.order == ("d1", "d0") and s.blocks == middle.blocks for s in made)


def test_a_cross_takes_from_both() -> None:
    space, rng = matmul(64, 64, 64), np.random.default_rng(0)
    a = Schedule("d1", (("d0", 2), ("d1", 16)), (("d0", 2), ("d1", 16)), (), 8)
    b = Schedule("d1", (("d0", 4), ("d1", 8)), (("d0", 8), ("d1", 64)), ("d1", "d0"), 8)
    made = {space.cross(a, b, rng) for _ in range(60)}
    assert {a, b} < made
    for s in made:
        for axis in space.axes:
            pair = (s.tile(axis), s.block(axis))
            assert pair in [(x.tile(axis), x.block(axis)) for x in (a, b)]
    heavy = Schedule("d0", (("d0", 32), ("d1", 1)), (("d0", 32), ("d1", 1)), (), 8)
    wide = Schedule("d1", (("d0", 1), ("d1", 64)), (("d0", 1), ("d1", 64)), (), 8)
    assert not any(space.legal(space.cross(heavy, wide, rng)) for _ in range(60))  # 32 x 64


def test_a_space_of_one() -> None:
    ((space, chosen),) = spaces("scalar", "cpu", "fast")
    rng = np.random.default_rng(0)
    assert space.size == 1 and space.known == [chosen] == [space.plainest]
    assert space.sample(rng) == space.mutate(chosen, rng) == space.cross(chosen, chosen, rng)


# --- legality and size --------------------------------------------------------------------------

GOOD = Schedule("d1", (("d0", 4), ("d1", 16)), (("d0", 8), ("d1", 70)), ("d0", "d1"), 8)
BAD = {
    "tiles: expected one for each of d0, d1": replace(GOOD, tiles=GOOD.tiles[:1]),
    "blocks: expected one": replace(GOOD, blocks=GOOD.blocks[::-1]),
    "d0: 1 <= tile 4 <= block 3": replace(GOOD, blocks=(("d0", 3), ("d1", 70))),
    "block 71 <= size 70": replace(GOOD, blocks=(("d0", 8), ("d1", 71))),
    "1 <= tile 0": replace(GOOD, tiles=(("d0", 0), ("d1", 16))),
    "reassociate": replace(GOOD, reassociate=False),
    "order: expected each of d0, d1 once": replace(GOOD, order=("d0",)),
    "expected each of d0 once": replace(GOOD, blocks=(("d0", 8), ("d1", 16))),
    "vector: 'd2'": replace(GOOD, vector="d2"),
    "the tile of d0 is 1": replace(GOOD, vector="d0", tiles=(("d0", 1), ("d1", 16))),
    "lanes: 16 is none of 8": replace(GOOD, lanes=16),
    "fold: the kernel has no folds": replace(GOOD, fold=4),
    "vectors at once, more than 32": replace(
        GOOD, tiles=(("d0", 8), ("d1", 40)), order=("d1",)
    ),
}  # fmt: skip


@pytest.mark.parametrize("words", BAD)
def test_what_is_not_legal_is_told_in_words(words: str) -> None:
    space = matmul(60, 70, 80)
    assert space.legal(GOOD) == ""
    assert words in space.legal(BAD[words])


BLOCK = Schedule("d1", (("d0", 4), ("d1", 64)), (("d0", 8), ("d1", 70)), ("d0", "d1"), 4, warps=4)
PRODUCT = Schedule(
    "d1", (("d0", 32), ("d1", 64)), (("d0", 32), ("d1", 64)), (), 8,
    warps=4, matrix=True, depth=32, stages=2,
)  # fmt: skip
BAD_BLOCK = {
    "warps: 0 is none of 1, 2, 4, 8": replace(BLOCK, warps=0),
    "warps: 3": replace(BLOCK, warps=3),
    "lanes: 3": replace(BLOCK, lanes=3),
    "tiles: 3 of d0 is no power of two, and not all of it": replace(
        BLOCK, tiles=(("d0", 3), ("d1", 64))
    ),
    "the tile of d1 is 1": replace(BLOCK, tiles=(("d0", 4), ("d1", 1))),
    "depth, stages: only products": replace(BLOCK, stages=2),
    "registers of a thread, more than": replace(
        BLOCK, warps=1, tiles=(("d0", 60), ("d1", 70)), blocks=(("d0", 60), ("d1", 70)), order=()
    ),
    "depth: 33 is none of": replace(PRODUCT, depth=33),
    "stages: 1 is none of": replace(PRODUCT, stages=1),
    "with these has one tile": replace(PRODUCT, blocks=(("d0", 32), ("d1", 70)), order=("d1",)),
    "less than an instruction's 16": replace(
        PRODUCT, tiles=(("d0", 8), ("d1", 64)), blocks=(("d0", 8), ("d1", 64))
    ),
    "matrix: expected tiles of more than 1": replace(
        PRODUCT, tiles=(("d0", 1), ("d1", 64)), blocks=(("d0", 1), ("d1", 64))
    ),
    "vector: products on matrix instructions have d1": replace(PRODUCT, vector="d0"),
    "of a thread, more": replace(PRODUCT, warps=1, depth=128, **{
        x: (("d0", 60), ("d1", 70)) for x in ("tiles", "blocks")
    }),
}  # fmt: skip


@pytest.mark.parametrize("words", BAD_BLOCK)
def test_what_threads_cannot_run_is_told_in_words(words: str) -> None:
    space = matmul(60, 70, 80, target=find_target("cuda:sm_80"), dtype="float16")
    assert space.legal(BLOCK) == space.legal(PRODUCT) == ""
    assert words in space.legal(BAD_BLOCK[words])


def test_threads_share_no_more_than_they_have() -> None:
    deep = replace(PRODUCT, depth=128, stages=4, warps=8)
    deep = replace(deep, **{x: (("d0", 64), ("d1", 128)) for x in ("tiles", "blocks")})
    for target, words in (("cuda:sm_80", "more than the 166912"), ("cuda:sm_90", "")):
        space = matmul(512, 512, 512, target=find_target(target), dtype="float16")
        found = space.legal(deep)
        assert found.endswith("bytes, more than the 166912 that it has") if words else not found
    space = matmul(512, 512, 512, target=find_target("hip:gfx942"), dtype="float16")
    assert "more than the 65536 that it has" in space.legal(deep)
    assert space.legal(replace(deep, stages=0)) == ""


def test_no_matrix_instructions_for_what_has_none() -> None:
    target = find_target("cuda:sm_80")
    for space in (
        matmul(60, 70, 80, target=target),
        matmul(60, 70, 80, True, target, "float16"),
    ):
        made = replace(PRODUCT, reassociate=not space.strict)
        assert "matrix: " in space.legal(made)
        rng = np.random.default_rng(0)
        assert not any(space.sample(rng).matrix for _ in range(50))
    assert "only a GPU's schedules have them" in matmul(60, 70, 80).legal(replace(GOOD, warps=1))


def test_samples_for_blocks_of_threads_are_spread() -> None:
    space, rng = matmul(100, 200, 64, target=find_target("cuda:sm_80"), dtype="float16"), np.random
    drawn = [space.sample(rng.default_rng(n)) for n in range(300)]
    assert {s.warps for s in drawn} == {1, 2, 4, 8}
    assert {s.vector for s in drawn if not s.matrix} == {None, "d0", "d1"}
    assert {n for s in drawn for _, n in s.tiles} > {1, 2, 4, 8, 16, 32, 64, 100, 200}
    products = [s for s in drawn if s.matrix]
    assert 75 < len(products) < 225
    assert {s.depth for s in products} == {16, 32, 64, 128}
    assert {s.stages for s in products} == {0, 2, 3, 4}
    assert len({s.tiles for s in products}) > 8
    moved = [space.mutate(s, rng.default_rng(n)) for n, s in enumerate(drawn)]
    assert sum(s.matrix != t.matrix for s, t in zip(drawn, moved, strict=True)) > 10
    crossed = [space.cross(*drawn[n : n + 2], rng.default_rng(n)) for n in range(200)]
    assert not any(map(space.legal, (*moved, *crossed)))


def test_folds_of_blocks_of_threads() -> None:
    space, rng = attention(48, 100, 24, find_target("cuda:sm_80")), np.random.default_rng(0)
    folds = [s for s in (space.sample(rng) for _ in range(200)) if s.fold]
    assert {s.warps for s in folds} == {1, 2, 4, 8} and {s.vector for s in folds} == {"d0"}
    assert len({s.fold for s in folds}) > 6 and not any(s.matrix for s in folds)
    good = folds[0]
    assert "no instructions for" in space.legal(replace(good, matrix=True, vector=None))
    assert "of a fold" in space.legal(replace(good, vector=None))
    assert "only products" in space.legal(replace(good, stages=1))
    most = replace(good, fold=1024, blocks=(("d0", 48), ("d1", 24)), warps=1)
    assert "more than 192" in space.legal(most)


def test_folds_that_are_not_legal() -> None:
    space = attention(48, 100, 24)
    good = Schedule(None, (("d0", 1), ("d1", 1)), (("d0", 8), ("d1", 24)), (), 8, fold=16)
    assert space.legal(good) == ""
    assert "of a fold" in space.legal(replace(good, lanes=4))
    assert "of a fold" in space.legal(replace(good, tiles=(("d0", 2), ("d1", 1))))
    assert "not between 1 and 1024" in space.legal(replace(good, fold=1025))
    large = attention(4096, 4096, 64)
    made = replace(good, blocks=(("d0", 4096), ("d1", 64)), fold=4096)
    assert f"more than {LOCAL_BYTES}" in large.legal(made)


def test_the_default_fits_a_thread_s_stack() -> None:
    space = attention(64, 64, 200_000)
    whole = replace(space.plainest, lanes=8, fold=64, blocks=(("d0", 32), ("d1", 200_000)))
    assert f"more than {LOCAL_BYTES}" in space.legal(whole)
    assert space.predict(whole) == float("inf") > space.predict(space.default)


def test_code_does_not_grow_without_bound() -> None:
    """A tile of 64 x 64 would be thousands of instructions."""
    i, j = Axis("d0", 64), Axis("d1", 64)
    x = terms.load("a0", (of_axis(j), of_axis(i)), (64, 64), F32)
    space = Space(terms.apply("sin", x), (i, j), CPU)
    small = Schedule("d1", (("d0", 1), ("d1", 32)), (("d0", 64), ("d1", 64)), ("d0", "d1"), 8)
    assert space.legal(small) == ""
    assert "vectors at once" in space.legal(
        replace(small, tiles=(("d0", 64), ("d1", 64)), order=())
    )
    for _ in range(8):
        x = terms.apply("sin", x) * terms.apply("log2", x)
    space = Space(x, (i, j), CPU)
    tiles = (("d0", 8), ("d1", 32))
    assert "unrolls to" in space.legal(replace(small, tiles=tiles))


def test_a_kernel_without_a_schedule() -> None:
    i, j = Axis("d0", 4), Axis("d1", 5)
    x = terms.load("a0", (of_axis(i), of_axis(j)), (4, 5), F32)
    y = terms.load("a1", (of_axis(i),), (4,), F32)
    with pytest.raises(CompileError, match="no schedule"):
        Space(terms.results([(x, 2), (y, 1)]), (i, j), CPU)


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("shape", [(3, 2, 4), (5, 1, 1), (2, 2, 9)])
def test_the_size_of_a_small_space_is_exact(shape: tuple[int, int, int], strict: bool) -> None:
    space = matmul(*shape, strict)
    ways = [[(t, b) for b in range(1, a.size + 1) for t in range(1, b + 1)] for a in space.axes]
    orders = [(), ("d0",), ("d1",), ("d0", "d1"), ("d1", "d0")]
    found = 0
    for pairs in product(*ways):
        tiles = tuple((a.name, t) for a, (t, _) in zip(space.axes, pairs, strict=True))
        blocks = tuple((a.name, b) for a, (_, b) in zip(space.axes, pairs, strict=True))
        for vector, order, n in product((None, "d0", "d1"), orders, range(8)):
            made = Schedule(vector, tiles, blocks, order, 1 << n, not strict)
            found += not space.legal(made)
    assert space.size == found


def test_the_size_of_a_large_space_is_a_lower_bound() -> None:
    assert matmul(100, 100, 8).size > 100_000 > matmul(9, 9, 8).size > 10_000
    assert attention(6, 10, 24).size > matmul(6, 24, 10).size


def test_every_feature_tells_schedules_apart() -> None:
    rng = np.random.default_rng(0)
    rows = []
    gpu = find_target("cuda:sm_80")
    spaces = (
        matmul(300, 257, 64), attention(30, 50, 24), matmul(70, 80, 64, False, gpu, "float16"),
    )  # fmt: skip
    for space in spaces:
        rows += [space.features(space.sample(rng)) for _ in range(40)]
    spread = np.std(rows, axis=0)
    assert all(spread > 1e-3), [n for n, s in zip(FEATURES, spread, strict=True) if s <= 1e-3]


# --- as text ------------------------------------------------------------------------------------


def test_the_text_is_canonical() -> None:
    text = to_json(GOOD)
    assert json.loads(text)["tiles"] == [["d0", 4], ["d1", 16]]
    assert to_json(from_json(" " + text.replace(",", " , "))) == text


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("{", "["),
        ('"fold":0', '"fold":-1'),
        ('"fold":0', '"fold":0,"more":1'),
        ('"lanes":8', '"lanes":0'),
        ('"lanes":8', '"lanes":8.0'),
        ('"lanes":8', '"lanes":true'),
        ('"lanes":8', '"lanes":99999999999999999999'),
        ('"reassociate":true', '"reassociate":1'),
        ('"vector":"d1"', '"vector":1'),
        ('["d0",4]', '["d0",0]'),
        ('["d0",4]', '["d0"]'),
        ('["d0",4]', '["d1",4]'),
        ('["d0",4]', '["d0",4,4]'),
        ('["d0",4]', '[0,4]'),
        ('"order":["d0","d1"]', '"order":"d0"'),
        ('"order":["d0","d1"]', '"order":[0]'),
        ('"fold":0,', ""),
        ('"matrix":false', '"matrix":0'),
        ('"warps":0', '"warps":-1'),
        ('"stages":0', '"stages":false'),
        ('"depth":0,', ""),
    ],
)  # fmt: skip
def test_a_text_that_is_no_schedule_is_refused(old: str, new: str) -> None:
    text = to_json(GOOD)
    assert old in text
    with pytest.raises(ParseError, match="schedule"):
        from_json(text.replace(old, new, 1))


def test_a_deep_text_is_refused() -> None:
    with pytest.raises(ParseError):
        from_json("[" * 100_000)
