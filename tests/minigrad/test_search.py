"""Searches: every setting tried once, the best found, errors kept, and nothing made twice after an interruption."""

import math
import threading
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context

import pytest

import minigrad as mg
from minigrad import search as S

SPACE = {"x": [0, 1, 2, 3], "y": (0.5, -1.0)}
QUIET = {"progress": False}


def bowl(x, y):
    return (x - 2) ** 2 + y


def picky(x, y):
    if x == 1:
        raise ValueError(f"not {x}")
    return {"score": bowl(x, y), "steps": x * 10}


def test_a_grid_is_every_combination():
    found = S.grid_search(bowl, SPACE, **QUIET)
    assert [tuple(t.settings.values()) for t in found] == [(x, y) for x in SPACE["x"] for y in SPACE["y"]]
    assert all(t.score == bowl(**t.settings) for t in found)
    assert found.best().settings == {"x": 2, "y": -1.0} and found.best().score == -1.0
    assert S.grid_search(bowl, SPACE, maximize=True, **QUIET).best().score == 4.5
    assert mg.search is S


def test_draws_lie_in_their_space_and_come_from_the_seed():
    space = {"u": S.uniform(-1, 2), "lr": S.log_uniform(1e-4, 1), "c": S.choice("ab"), "l": [1, 2, 3]}
    drawn = S.drawn(space, 400, seed=3)
    assert all(-1 <= d["u"] < 2 and 1e-4 <= d["lr"] < 1 and d["c"] in "ab" and d["l"] in (1, 2, 3) for d in drawn)
    assert 0.4 < sum(d["lr"] < 1e-2 for d in drawn) / 400 < 0.6  # half of the decades
    assert drawn == S.drawn(space, 400, seed=3) != S.drawn(space, 400, seed=4)
    assert S.drawn(space, 7, seed=3) == drawn[:7]


def test_an_error_is_a_result_like_others():
    found = S.grid_search(picky, SPACE, **QUIET)
    wrong = [t for t in found if t.error]
    assert len(found) == 8 and {t.settings["x"] for t in wrong} == {1}
    assert "ValueError: not 1" in wrong[0].error and "test_search.py" in wrong[0].error and wrong[0].score is None
    assert found.best().more == {"steps": 20}
    assert [t.settings["x"] for t in found.sorted()][-2:] == [1, 1]
    assert "ValueError: not 1" in found.table() and found.sorted("x")[0].settings["x"] == 0


def test_no_number_is_never_the_best():
    found = S.grid_search(lambda x: math.nan if x == 0 else x, {"x": [0, 5, 3]}, **QUIET)
    assert found.best().score == 3
    with pytest.raises(RuntimeError, match="none of 2 trials has a score. TypeError"):
        S.grid_search(lambda x: "a" + x, {"x": [0, 1]}, **QUIET).best()


def reversed_map(function, jobs):
    return (function(job) for job in reversed(list(jobs)))


@pytest.mark.parametrize("how", ["threads", "map", "processes"])
def test_made_in_parallel_the_results_are_the_same(how):
    one = S.grid_search(picky, SPACE, **QUIET)
    if how == "map":
        found = S.grid_search(picky, SPACE, map=reversed_map, **QUIET)
    else:
        new_process = get_context("spawn")
        with ThreadPoolExecutor(2) if how == "threads" else ProcessPoolExecutor(1, mp_context=new_process) as pool:
            found = S.grid_search(picky, SPACE, map=pool, **QUIET)
    assert [(t.number, t.settings, t.score, t.more) for t in found] == [
        (t.number, t.settings, t.score, t.more) for t in one
    ]


class Counted:
    """bowl that counts its calls, and is interrupted at one of them."""

    def __init__(self, stop_at=None):
        self.calls, self.stop_at, self.lock = 0, stop_at, threading.Lock()

    def __call__(self, x, y):
        with self.lock:
            self.calls += 1
            if self.calls == self.stop_at:
                raise KeyboardInterrupt
        return bowl(x, y)


def test_an_interrupted_search_returns_what_is_done_and_goes_on_later(tmp_path):
    file = tmp_path / "runs.jsonl"
    first = Counted(stop_at=4)
    found = S.grid_search(first, SPACE, file=file, **QUIET)
    assert len(found) == 3 and found.planned == 8 and "3 of 8 trials done" in repr(found)
    second = Counted()
    whole = S.grid_search(second, SPACE, file=file, **QUIET)
    assert second.calls == 5 and len(whole) == 8
    assert [t.score for t in whole] == [t.score for t in S.grid_search(bowl, SPACE, **QUIET)]
    third = Counted()
    assert S.grid_search(third, SPACE, file=file, **QUIET)[:] == whole[:] and third.calls == 0


@pytest.mark.parametrize("cut", [1, 5, 30])
def test_a_line_that_was_cut_off_is_made_again(tmp_path, cut):
    file = tmp_path / "runs.jsonl"
    S.grid_search(bowl, SPACE, file=file, **QUIET)
    data = file.read_bytes()
    file.write_bytes(data[:-cut])
    again = Counted()
    assert len(S.grid_search(again, SPACE, file=file, **QUIET)) == 8 and again.calls == (cut > 1)
    assert len(S.grid_search(again, SPACE, file=file, **QUIET)) == 8 and again.calls == (cut > 1)


def test_errors_are_kept_or_tried_again(tmp_path):
    file = tmp_path / "runs.jsonl"
    S.grid_search(picky, SPACE, file=file, **QUIET)
    kept, again = Counted(), Counted()
    assert sum(t.error is not None for t in S.grid_search(kept, SPACE, file=file, **QUIET)) == 2 and kept.calls == 0
    whole = S.grid_search(again, SPACE, file=file, retry=True, **QUIET)
    assert all(t.error is None for t in whole) and again.calls == 2


def test_random_searches_are_extended(tmp_path):
    file, space = tmp_path / "runs.jsonl", {"x": S.uniform(0, 4), "y": S.log_uniform(0.1, 1)}
    few = S.random_search(bowl, space, 4, seed=1, file=file, **QUIET)
    more = Counted()
    many = S.random_search(more, space, 10, seed=1, file=file, **QUIET)
    assert many[:4] == few[:] and more.calls == 6


def test_equal_settings_are_tried_once():
    counted = Counted()
    found = S.random_search(counted, {"x": [0, 1], "y": [1.0]}, 20, **QUIET)
    assert counted.calls == 2 and len(found) == 20 and [t.number for t in found] == list(range(20))


def test_what_is_no_space_is_refused():
    with pytest.raises(TypeError, match="use random_search"):
        S.grid_search(bowl, {"x": S.uniform(0, 1)})
    with pytest.raises(TypeError, match="'x'"):
        S.random_search(bowl, {"x": "abc"}, 3)
    for wrong in (lambda: S.uniform(2, 1), lambda: S.log_uniform(0, 1), lambda: S.choice([])):
        with pytest.raises(ValueError):
            wrong()


def test_a_negative_number_of_draws_is_refused():
    with pytest.raises(ValueError, match="at least 0"):
        S.random_search(bowl, {"x": S.uniform(0, 1)}, -1)
