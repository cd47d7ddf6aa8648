"""Models side by side: every deterministic number is the one that can be had otherwise; intervals are those of the
books."""
import json
import math
import sys

import numpy as np
import pytest

import minigrad as mg
from minigrad import comparison
from minigrad.comparison import median_ratio, wilson


def models():
    mg.manual_seed(0)
    small = mg.nn.Linear(4, 3)
    large = mg.nn.Sequential(mg.nn.Linear(4, 64), mg.nn.ReLU(), mg.nn.Dropout(0.5), mg.nn.Linear(64, 3))
    return small, large, (mg.randn(20, 4), mg.randint(0, 3, (20,)))


def test_what_repeats_exactly_is_what_can_be_had_otherwise(tmp_path):
    small, large, (x, y) = models()
    found = mg.compare({"small": small, "large": large}, data=(x, y), repeat=3)
    for name, model in (("small", small), ("large", large)):
        c = found[name]
        mg.save(model.state_dict(), tmp_path / name)
        assert c.nbytes_on_disk == (tmp_path / name).stat().st_size
        assert c.parameters == sum(p.numel() for p in model.parameters()) and c.items == 20
        model.eval()
        right = int((model(x).argmax(1) == y).sum().item())
        assert c.accuracy == wilson(right, 20)
        assert len(c.seconds) == 3 and c.items_per_s == 20 / c.latency_p50_s
    assert found["small"].peak_bytes >= 20 * 3 * 4 and found["large"].peak_bytes >= 20 * 64 * 4
    again = mg.compare({"small": small, "large": large}, data=(x, y), repeat=2)
    for a, b in zip(found.candidates, again.candidates):
        assert all(getattr(a, name) == getattr(b, name) for name in comparison.DETERMINISTIC)


def test_modes_and_gradients_are_as_they_were():
    small, large, data = models()
    large[2].eval()
    before = [m.training for m in large.modules()]
    mg.compare({"a": large, "the same": large, "b": small}, data=data, repeat=1)
    assert [m.training for m in large.modules()] == before and small.training
    assert all(p.grad is None for p in large.parameters())
    with pytest.raises(ValueError, match="classes"):
        mg.compare({"a": mg.nn.Flatten(0)}, data=data, repeat=1)
    large.train()
    with pytest.raises(mg.errors.ShapeError):
        mg.compare({"a": large}, data=(mg.randn(2, 5), mg.tensor([0, 1])), repeat=1)
    assert all(m.training for m in large.modules())


def test_candidates_take_turns():
    seen = []
    mg.compare({"a": lambda: seen.append("a"), "b": lambda: seen.append("b")}, repeat=4, warm_up=1)
    rounds = seen[4:]                                         # after warming up and watching each
    assert rounds == ["a", "b"] * 4


def test_functions_and_pairs():
    small, _, (x, _) = models()
    found = mg.compare({"f": lambda: None, "pair": (small, x[:5]), "g": (lambda b: b * 2, x)}, repeat=2)
    f, pair, g = found.candidates
    assert f.items is f.items_per_s is f.parameters is f.nbytes_on_disk is f.accuracy is f.time_ratio is None
    assert f.peak_bytes == 0 and g.peak_bytes == 20 * 4 * 4
    assert pair.items == 5 and pair.parameters == 15 and pair.accuracy is None and pair.time_ratio is not None


def test_the_batch_is_the_beginning_of_the_data():
    small, large, data = models()
    found = mg.compare({"a": small, "b": large}, data=data, repeat=1, batch_size=8)
    assert found["a"].items == 8 and found["a"].accuracy.value in np.arange(21) / 20


def test_interrupted_it_tells_what_was_measured():
    calls = []

    def interrupts():
        calls.append(0)
        if len(calls) == 5:                                   # two to warm up, one watched, the second round
            raise KeyboardInterrupt

    found = mg.compare({"a": lambda: None, "b": interrupts}, repeat=50)
    assert found.interrupted and found.rounds == 1 and [len(c.seconds) for c in found.candidates] == [1, 1]
    assert "Interrupted" in str(found)
    calls[:] = [0] * 4
    none = mg.compare({"a": lambda: None, "b": interrupts}, repeat=50)
    assert none.rounds == 0 and none["b"].latency_p50_s is none["b"].time_ratio is None
    assert json.loads(json.dumps(none.to_data(), allow_nan=False))["interrupted"] and "–" in str(none)


def test_without_numba_there_are_no_peaks(monkeypatch):
    monkeypatch.setitem(sys.modules, "minigrad.memory.native", None)
    found = mg.compare({"f": lambda: None}, repeat=1)
    assert found["f"].peak_bytes is None and "not counted" in found.not_counted and found.not_counted in str(found)


@pytest.mark.parametrize("bad, error, words", [
    (dict(candidates={}), TypeError, "empty"), (dict(candidates=[1]), TypeError, "list"),
    (dict(candidates={"a": 3}), TypeError, "'a' is a int"), (dict(candidates={3: print}), TypeError, "texts"),
    (dict(repeat=0), ValueError, "repeat"), (dict(warm_up=-1), ValueError, "warm_up"),
    (dict(candidates={"m": mg.nn.Linear(2, 2)}), ValueError, "no batch"),
    (dict(candidates={"m": (mg.nn.Linear(2, 2), np.ones((2, 2)))}), TypeError, "ndarray"),
    (dict(data=3), TypeError, "pair"), (dict(data=(mg.ones(2, 2), mg.ones(3))), ValueError, r"\(2, 2\) and \(3,\)"),
    (dict(data=(mg.ones(0, 2), mg.ones(0))), ValueError, "at least one"),
    (dict(data=(mg.ones(2, 2), mg.ones(2)), batch_size=0), ValueError, "batch_size"),
])
def test_bad_input_is_told(bad, error, words):
    with pytest.raises(error, match=words):
        mg.compare(**{"candidates": {"f": lambda: None}, **bad})
    with pytest.raises(KeyError, match="no candidate"):
        mg.compare({"f": lambda: None}, repeat=1)["g"]


# ---- intervals -----------------------------------------------------------------------------------
def test_wilson_is_where_the_normal_test_changes_its_mind():
    z = comparison.Z
    for right, n in ((0, 10), (1, 10), (5, 10), (87, 100), (100, 100)):
        got = wilson(right, n)
        assert got.value == right / n and 0 <= got.low <= got.value <= got.high <= 1
        for p in (got.low, got.high):
            if 0 < p < 1:
                assert abs(right / n - p) == pytest.approx(z * math.sqrt(p * (1 - p) / n))
    assert wilson(0, 10).high == pytest.approx(0.2775, abs=1e-4)     # Brown, Cai & DasGupta 2001, closed form z²/(n+z²)
    for wrong in ((3, 2), (-1, 2), (0, 0)):
        with pytest.raises(ValueError, match="share"):
            wilson(*wrong)


def test_the_interval_of_a_median_covers_it_as_often_as_it_says():
    for n in (6, 11, 20, 50):
        got = median_ratio(list(np.arange(1.0, n + 1)), [1.0] * n)
        k = int(got.low) - 1
        tail = sum(math.comb(n, j) for j in range(k + 1)) / 2**n
        assert tail <= 0.025 < tail + math.comb(n, k + 1) / 2**n and got.high == n - k
    assert median_ratio([2.0, 3.0], [1.0, 1.0]) == comparison.Interval(2.5, 2.0, 3.0)
    rng = np.random.default_rng(0)
    lows, highs = np.array([[r.low, r.high] for r in (
        median_ratio(list(rng.lognormal(size=20)), [1.0] * 20) for _ in range(400))]).T
    assert 0.93 < np.mean((lows <= 1) & (1 <= highs)) < 0.99         # 0.9586 in theory, ± 3 standard errors


def test_ratios_compare_the_same_round():
    assert median_ratio([2.0, 20.0, 200.0], [1.0, 10.0, 100.0]) == comparison.Interval(2.0, 2.0, 2.0)


def test_shown():
    small, large, data = models()
    found = mg.compare({"small": small, "large": large}, data=data, repeat=6)
    text = str(found)
    assert "small" in text and "time × first" in text and "6 rounds" in text and "Interrupted" not in text
    assert found._repr_html_().count("<tr>") == 3
    told = json.loads(json.dumps(found.to_data(), allow_nan=False))
    assert told["candidates"][1]["accuracy"]["low"] <= told["candidates"][1]["accuracy"]["value"]
