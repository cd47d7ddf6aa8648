"""Laws of the collectives, over the whole table of kinds and algorithms: each plan computes its meaning (a proof on
symbols), gives what NumPy gives, and planted faults are found.  Bytes and times: test_collective_prices.py."""

import re
from pathlib import Path
from random import Random

import numpy as np
import pytest

import simulator.collectives
from simulator.collectives import (
    ALGORITHMS,
    DEFAULT,
    FORMS,
    KINDS,
    Move,
    Plan,
    PlanError,
    additions,
    algorithms,
    check,
    collective,
    cut,
    make_plan,
    same_everywhere,
)
from simulator.collectives.plan import ROOTED

WORLDS = (*range(1, 10), 12, 13, 16)
DTYPES = (np.float64, np.float32, np.float16, np.complex64, np.int64, np.int32, np.int8, np.uint8, np.bool_)


def table():
    return pytest.mark.parametrize("kind, algorithm", ALGORITHMS, ids=lambda text: text.replace(" ", "-"))


def ways(kind, algorithm, world):
    """Plans of one entry: each root, and chunk counts, node sizes, servers, rings where it has them."""
    choices = [{}]
    if algorithm == "double tree":
        choices += [{"chunks": count} for count in (2, 3, 7)]
    if kind in ("broadcast", "reduce") and algorithm in ("ring", "tree"):
        choices += [{"chunks": count} for count in (1, 3)]
    if algorithm == "hierarchical":
        choices += [{"per_node": size} for size in range(1, world + 1) if world % size == 0]
    if algorithm == "server":
        choices += [{"servers": count} for count in range(1, world + 1)]
    if algorithm == "ring" and kind in ("all_reduce", "all_gather", "reduce_scatter"):
        choices += [{"rings": [range(world), [*range(0, world, 2), *range(1, world, 2)]]}]
    roots = range(world) if kind in ROOTED else [None]
    return [make_plan(kind, algorithm, world, root=root, **how) for how in choices for root in roots]


# ---- the meaning ---------------------------------------------------------------------------------
def test_every_kind_has_algorithms_and_a_usual_one():
    assert {kind for kind, _ in ALGORITHMS} == set(KINDS) == set(DEFAULT)
    assert all(DEFAULT[kind] in algorithms(kind) for kind in KINDS)
    assert set(FORMS) == set(ALGORITHMS)


def test_the_readme_lists_the_table():
    page = Path(simulator.collectives.__file__).with_name("README.md").read_text(encoding="utf-8")
    rows = [re.split(r" *\| *", line)[1:3] for line in page.splitlines() if line.startswith("| ")]
    said = {kind: names.split(", ") for kinds, names in rows for kind in kinds.split(", ")}
    assert {kind: sorted(said[kind]) for kind in KINDS} == {kind: sorted(algorithms(kind)) for kind in KINDS}


@table()
@pytest.mark.parametrize("world", WORLDS)
def test_a_plan_computes_its_meaning(kind, algorithm, world):
    for plan in ways(kind, algorithm, world):
        assert check(plan) is plan
        assert (plan.world, plan.kind) == (world, kind)
        assert same_everywhere(plan), "ranks would differ in the last bits"


@table()
def test_one_rank_moves_nothing(kind, algorithm):
    assert make_plan(kind, algorithm, 1).rounds == ()


@table()
@pytest.mark.parametrize("world", [2, 3, 4, 6, 8, 9])
def test_planted_faults_are_found(kind, algorithm, world):
    """A move dropped, doubled in its round or the next, of another chunk, or that keeps instead of combining."""
    dice, plan = Random(world), make_plan(kind, algorithm, world)
    for _ in range(12):
        number = dice.randrange(len(plan.rounds))
        place = dice.randrange(len(plan.rounds[number]))
        move = plan.rounds[number][place]
        others = [chunk for chunk in range(plan.chunks) if chunk != move.chunk]
        faults = {
            "dropped": [],
            "doubled": [move, move],
            "other way": [move._replace(reduce=not move.reduce)],
            "to itself": [move._replace(dst=move.src)],
            "no such rank": [move._replace(dst=world)],
        }
        if others:
            faults["wrong chunk"] = [move._replace(chunk=dice.choice(others))]
        for fault, moves in faults.items():
            with pytest.raises(PlanError, match="rank|round"):
                check(with_moves(plan, number, place, moves))
                pytest.fail(f"{fault}: {move} of round {number} of {plan}")
        with pytest.raises(PlanError):
            check(with_round(plan, number + 1, (move,)))


def with_moves(plan, number, place, moves):
    rounds = [list(each) for each in plan.rounds]
    rounds[number][place : place + 1] = moves
    return Plan(plan.name, plan.world, plan.chunks, tuple(map(tuple, rounds)), plan.kind, plan.root)


def with_round(plan, at, moves):
    rounds = (*plan.rounds[:at], moves, *plan.rounds[at:])
    return Plan(plan.name, plan.world, plan.chunks, rounds, plan.kind, plan.root)


def test_a_fault_is_named_with_its_round_and_move():
    plan = make_plan("all_reduce", "ring", 3)
    with pytest.raises(PlanError, match=r"round 1, chunk 1 from rank 0 to 1 to combine: .* \[0, 2\] would count twice"):
        check(with_moves(plan, 1, 0, [Move(0, 1, 1, True), Move(0, 1, 1, True)]))
    with pytest.raises(PlanError, match=r"at the end rank \d has the values of ranks .* should have .*\[0, 1, 2\]"):
        check(with_round(Plan(plan.name, 3, 3, plan.rounds[:-1]), 0, ()))


def test_additions_say_the_order():
    """A ring adds along the ring, halving in pairs, a server in the order in which it takes the messages."""
    assert additions(make_plan("all_reduce", "ring", 4), 0) == "(0+((1+2)+3))"
    assert additions(make_plan("all_reduce", "halving-doubling", 4), 0) == "((0+2)+(1+3))"
    assert additions(make_plan("all_reduce", "doubling", 4), 0) == "((0+1)+(2+3))"
    assert additions(make_plan("reduce", "ring", 4), 0) == "(0+(1+(2+3)))"
    assert additions(make_plan("reduce", "ring", 3000, chunks=1), 0).endswith("(2998+2999" + 2999 * ")")


@pytest.mark.parametrize("algorithm", algorithms("all_reduce"))
def test_float_sums_are_the_additions_that_the_plan_says(algorithm):
    """Evaluated with Python's floats, the text of `additions` gives the same bits."""
    n = 6
    plan = make_plan("all_reduce", algorithm, n)
    values = np.random.default_rng(0).standard_normal((n, plan.chunks)) * 10.0 ** np.arange(n)[:, None]
    got = collective("all_reduce", values, algorithm)
    for chunk in range(plan.chunks):
        text = additions(plan, chunk)
        for rank in range(n):
            text = text.replace(f"({rank}+", f"(v[{rank}]+").replace(f"+{rank})", f"+v[{rank}])")
        want = eval(text, {"v": values[:, chunk]})  # noqa: S307 – text of sums that we made
        assert {array[chunk] for array in got} == {want}


# ---- on arrays -----------------------------------------------------------------------------------
def numpy_says(kind, arrays, root, rows=None):
    """What each rank must have, by NumPy alone."""
    n = len(arrays)
    if kind == "broadcast":
        return [arrays[root]] * n
    if kind in ("reduce", "all_reduce", "reduce_scatter"):
        total = arrays[0].copy()
        for each in arrays[1:]:
            total = total + each
        if kind != "reduce_scatter":
            return [total if kind == "all_reduce" or rank == root else None for rank in range(n)]
        return parted(total, n, rows)
    if kind in ("all_gather", "gather"):
        joined = np.concatenate(arrays)
        return [joined if kind == "all_gather" or rank == root else None for rank in range(n)]
    if kind == "scatter":
        return parted(arrays[root], n, rows)
    pieces = [parted(array, n, rows) for array in arrays]
    return [np.concatenate([pieces[src][dst] for src in range(n)]) for dst in range(n)]


def parted(array, n, rows):
    return np.split(array, np.cumsum(rows)[:-1]) if rows is not None else np.array_split(array, n)


def draw(dtype, shape, seed):
    values = np.random.default_rng(seed).integers(0, 9, shape)  # sums of these are exact in every dtype
    return np.asarray(values % 2 if dtype is np.bool_ else values).astype(dtype)


def assert_same(got, want):
    assert len(got) == len(want)
    for mine, theirs in zip(got, want):
        assert (mine is None) == (theirs is None)
        if theirs is not None:
            assert mine.dtype == theirs.dtype and mine.shape == theirs.shape
            np.testing.assert_array_equal(mine, theirs)


@table()
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: np.dtype(dtype).name)
def test_arrays_as_numpy_in_every_dtype(kind, algorithm, dtype):
    for n in (1, 2, 3, 5, 8):
        arrays = [draw(dtype, (13, 2), rank) for rank in range(n)]
        how = {"root": n - 1} if kind in ROOTED else {}
        before = [array.copy() for array in arrays]
        assert_same(collective(kind, arrays, algorithm, **how), numpy_says(kind, arrays, n - 1))
        assert_same(arrays, before)


@pytest.mark.parametrize("kind", KINDS)
def test_arrays_of_bfloat16(kind):
    dtype = np.dtype(pytest.importorskip("ml_dtypes").bfloat16)
    arrays = [draw(dtype, (7, 2), rank) for rank in range(3)]
    for algorithm in algorithms(kind):
        assert_same(collective(kind, arrays, algorithm), numpy_says(kind, arrays, 0))


@table()
@pytest.mark.parametrize("shape", [(0,), (1,), (0, 3), (3, 0), (2, 3), (29,), (5, 1, 2)], ids=str)
def test_arrays_empty_and_smaller_than_the_world(kind, algorithm, shape):
    for n in (2, 3, 4, 7, 12):
        arrays = [draw(np.float32, shape, rank) for rank in range(n)]
        how = {"root": n // 2} if kind in ROOTED else {}
        assert_same(collective(kind, arrays, algorithm, **how), numpy_says(kind, arrays, n // 2))


@table()
def test_arrays_ragged(kind, algorithm):
    """Ranks give, or get, different numbers of rows, some of them none."""
    for n in (2, 3, 5, 8, 9):
        rows = [(3 * rank) % 5 for rank in range(n)]
        how = {"root": 1} if kind in ROOTED else {}
        if kind in ("all_gather", "gather"):
            arrays = [draw(np.int32, (count, 2), k) for k, count in enumerate(rows)]
            assert_same(collective(kind, arrays, algorithm, **how), numpy_says(kind, arrays, 1))
        elif kind in ("scatter", "reduce_scatter", "all_to_all"):
            arrays = [draw(np.int32, (sum(rows), 2), rank) for rank in range(n)]
            got = collective(kind, arrays, algorithm, rows=rows, **how)
            assert_same(got, numpy_says(kind, arrays, 1, rows))


@pytest.mark.parametrize("combine", [np.maximum, np.minimum, np.multiply, np.bitwise_xor], ids=lambda f: f.__name__)
@pytest.mark.parametrize("algorithm", algorithms("all_reduce"))
def test_other_operations_than_sums(algorithm, combine):
    arrays = [draw(np.int64, (11,), rank) - 3 for rank in range(7)]
    assert_same(collective("all_reduce", arrays, algorithm, combine=combine), [combine.reduce(arrays)] * 7)


@pytest.mark.parametrize("algorithm", algorithms("all_reduce"))
def test_all_ranks_have_the_same_bits(algorithm):
    arrays = list(np.random.default_rng(0).standard_normal((7, 50)).astype(np.float32))
    got = collective("all_reduce", arrays, algorithm)
    assert len({array.tobytes() for array in got}) == 1
    np.testing.assert_allclose(got[0], sum(map(np.float64, arrays)), rtol=0, atol=7 * 7 * 2.0**-24 * 4)  # n roundings


def test_what_does_not_fit_is_refused_before_anything_moves():
    ones = np.ones(4)
    with pytest.raises(ValueError, match=r"all_reduce: rank 1 gives float64 \(3,\), rank 0 float64 \(4,\)"):
        collective("all_reduce", [ones, np.ones(3)])
    with pytest.raises(ValueError, match=r"rank 1 gives float32"):
        collective("all_gather", [ones, ones.astype(np.float32)])
    with pytest.raises(ValueError, match=r"rows \[3, 2\] for 2 ranks and an array of 4 rows"):
        collective("scatter", [ones, ones], rows=[3, 2])
    with pytest.raises(ValueError, match="without dimensions"):
        collective("scatter", [np.float32(1), np.float32(1)])


# ---- bad input -----------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "arguments, message",
    [
        (("all_sum", "ring", 2), "collective 'all_sum' is none of broadcast"),
        (("all_reduce", "star", 2), "no algorithm 'star'; there are ring, tree"),
        (("broadcast", "tree", 0), "at least one rank, got 0"),
        (("broadcast", "tree", 4, {"root": 4}), "root 4 is not a rank; there are 0 … 3"),
        (("all_reduce", "hierarchical", 12, {"per_node": 5}), r"nodes of 5; per_node is one of \[1, 2, 3, 4, 6, 12\]"),
        (("all_reduce", "server", 4, {"servers": 5}), "5 servers among 4 ranks; 1 … 4 are possible"),
        (("broadcast", "ring", 4, {"chunks": 0}), "at least 1 chunks, got 0"),
        (("broadcast", "double tree", 4, {"chunks": 1}), "at least 2 chunks, got 1"),
        (("all_reduce", "ring", 3, {"rings": [[0, 1, 1]]}), r"each of 0 … 2 once, got \[0, 1, 1\]"),
        (("all_reduce", "ring", 3, {"root": 1}), "all_reduce by ring: no such choice as 'root'; it has rings"),
        (("scatter", "tree", 3, {"chunks": 1}), "scatter by tree: no such choice as 'chunks'; it has root"),
        (("all_to_all", "ring", 3, {"chunks": 1}), "it has none"),
    ],
)
def test_bad_plans_are_refused(arguments, message):
    *positional, how = arguments if isinstance(arguments[-1], dict) else (*arguments, {})
    with pytest.raises(ValueError, match=message):
        make_plan(*positional, **how)


def test_cut_is_array_split():
    for total in range(12):
        for parts in range(1, 6):
            assert cut(total, parts) == [len(part) for part in np.array_split(np.zeros(total), parts)]
