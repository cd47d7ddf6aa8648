"""Data: every item once, the same order for the same seed whatever the threads, errors that say which batch."""

import gc
import importlib.util
import threading
import time
from collections import namedtuple

import numpy as np
import pytest

import minigrad as mg
from minigrad import data

Pair = namedtuple("Pair", "x y")


class Squares(data.Dataset):
    """k and k², made one by one."""

    def __init__(self, n, fail_at=None, nap_s=0.0):
        self.n, self.fail_at, self.nap_s = n, fail_at, nap_s

    def __len__(self):
        return self.n

    def __getitem__(self, k):
        time.sleep(self.nap_s)
        if k == self.fail_at:
            raise OSError(f"item {k} is broken")
        return mg.tensor([float(k)]), k * k


def items(loader):
    return [y for _, batch in loader for y in batch.tolist()]


# ---- datasets and samplers -----------------------------------------------------------------------


def test_datasets_add_up_and_split():
    both = Squares(3) + Squares(2)
    assert [both[k][1] for k in range(len(both))] == [0, 1, 4, 0, 1] and both[-1][1] == 1
    with pytest.raises(IndexError, match="item 5 of 5"):
        both[5]
    parts = data.random_split(Squares(11), [0.5, 0.25, 0.25], mg.Generator(3))
    assert [len(p) for p in parts] == [6, 3, 2]
    again = data.random_split(Squares(11), [0.5, 0.25, 0.25], mg.Generator(3))
    assert [p.indices for p in parts] == [p.indices for p in again]
    assert sorted(i for p in parts for i in p.indices) == list(range(11))
    assert [len(p) for p in data.random_split(Squares(4), [3, 1])] == [3, 1]
    with pytest.raises(ValueError, match="11 items"):
        data.random_split(Squares(11), [5, 5])
    with pytest.raises(ValueError, match="same number"):
        data.TensorDataset(mg.zeros(2), mg.zeros(3))


def test_samplers_draw_what_they_say():
    g = mg.Generator(0)
    assert sorted(data.RandomSampler(range(9), generator=g)) == list(range(9))
    drawn = list(data.RandomSampler(range(3), replacement=True, num_samples=50, generator=g))
    assert set(drawn) == {0, 1, 2} and len(drawn) == 50
    heavy = list(data.WeightedRandomSampler([0, 1, 3], 400, generator=g))
    assert 0 not in heavy and 2 < heavy.count(2) / heavy.count(1) < 4.5
    assert list(data.BatchSampler(range(5), 2, False)) == [[0, 1], [2, 3], [4]]
    assert list(data.BatchSampler(range(5), 2, True)) == [[0, 1], [2, 3]]
    with pytest.raises(ValueError, match="batch_size"):
        data.BatchSampler(range(5), 0, True)


# ---- the loader ----------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_every_item_once_in_order(workers):
    loader = data.DataLoader(Squares(10), batch_size=4, num_workers=workers)
    assert items(loader) == [k * k for k in range(10)] and len(loader) == 3
    assert [len(y) for _, y in loader] == [4, 4, 2]
    short = data.DataLoader(Squares(10), batch_size=4, drop_last=True, num_workers=workers)
    assert [len(y) for _, y in short] == [4, 4] and len(short) == 2
    assert list(data.DataLoader(Squares(0), num_workers=workers)) == []


class Noisy(Squares):
    """Items that draw random numbers: as an augmentation does."""

    def __getitem__(self, k):
        return mg.rand(1), int(mg.randint(1000, (1,)).item())


@pytest.mark.parametrize("dataset", [Squares(20), Noisy(20)], ids=["order", "augmentation"])
def test_one_seed_one_sequence_whatever_the_threads(dataset):
    def run(workers):
        mg.manual_seed(7)
        loader = data.DataLoader(dataset, 3, shuffle=True, num_workers=workers)
        return [items(loader), items(loader), mg.rand(2).tolist()]

    one = run(0)
    assert one[0] != one[1] and run(0) == run(1) == run(3) == one


def test_a_generator_of_ones_own_leaves_the_stream_alone():
    mg.manual_seed(1)
    want = mg.rand(1).item()
    mg.manual_seed(1)
    first = items(data.DataLoader(Squares(9), shuffle=True, generator=mg.Generator(5)))
    assert mg.rand(1).item() == want
    assert first == items(data.DataLoader(Squares(9), shuffle=True, generator=mg.Generator(5)))


def test_whole_rows_equal_item_by_item():
    x, y = mg.arange(12.0).reshape(6, 2), mg.arange(6)
    whole = data.TensorDataset(x, y)
    for dataset in (whole, data.Subset(whole, [5, 0, 3, 2])):
        fast = list(data.DataLoader(dataset, 3))
        slow = list(data.DataLoader(dataset, 3, collate_fn=lambda b: data.default_collate(b)))
        for (a, b), (c, d) in zip(fast, slow, strict=True):
            assert a.tolist() == c.tolist() and b.tolist() == d.tolist() and b.dtype == d.dtype


@pytest.mark.parametrize("workers", [0, 2])
def test_an_error_names_its_batch_and_items(workers):
    loader = data.DataLoader(Squares(9, fail_at=5), batch_size=2, num_workers=workers)
    with pytest.raises(OSError, match="item 5 is broken") as caught:
        list(loader)
    assert any("batch 2 of the items [4, 5]" in note for note in caught.value.__notes__)


def threads():
    return [t for t in threading.enumerate() if t.name.startswith("minigrad-loader")]


@pytest.mark.parametrize("fail_at", [None, 3])
def test_leaving_early_ends_the_threads(fail_at):
    loader = iter(data.DataLoader(Squares(200, fail_at, nap_s=0.001), num_workers=2))
    next(loader)
    assert threads()
    if fail_at:
        with pytest.raises(OSError):
            list(loader)
    del loader
    gc.collect()
    assert not threads()


def test_settings_hold_in_the_threads():
    class Asks(Squares):
        def __getitem__(self, k):
            return mg.zeros(1), mg.is_grad_enabled()

    with mg.no_grad():
        assert items(data.DataLoader(Asks(3), num_workers=2)) == [False] * 3


def test_what_contradicts_itself_is_refused():
    for options in (
        dict(shuffle=True, sampler=[0]),
        dict(batch_sampler=[[0]], batch_size=2),
        dict(num_workers=-1),
        dict(batch_size=0),
    ):
        with pytest.raises(ValueError):
            data.DataLoader(Squares(3), **options)


def test_samplers_of_ones_own_and_no_batches():
    assert items(data.DataLoader(Squares(5), batch_sampler=[[4, 0], [2]])) == [16, 0, 4]
    assert items(data.DataLoader(Squares(5), 2, sampler=[3, 1])) == [9, 1]
    single = list(data.DataLoader(Squares(3), batch_size=None))
    assert [y for _, y in single] == [0, 1, 4]


def test_collate_goes_into_nested_items():
    batch = data.default_collate([
        {"a": (mg.ones(2), 1), "b": Pair(0.5, "x"), "c": [True, np.float32(1)]},
        {"a": (mg.zeros(2), 2), "b": Pair(1.5, "y"), "c": [False, np.float32(2)]},
    ])  # fmt: skip
    assert batch["a"][0].tolist() == [[1, 1], [0, 0]] and batch["a"][1].tolist() == [1, 2]
    assert isinstance(batch["b"], Pair) and batch["b"].x.dtype == mg.float64
    assert batch["b"].y == ["x", "y"] and batch["c"][0].tolist() == [True, False]
    assert batch["c"][1].dtype == mg.float32
    with pytest.raises(ValueError, match="different shapes"):
        data.default_collate([mg.ones(2), mg.ones(3)])
    with pytest.raises(ValueError, match="different lengths"):
        data.default_collate([[1], [1, 2]])
    with pytest.raises(TypeError, match="collate_fn"):
        data.default_collate([object()])


# ---- digits --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def handwriting():
    if importlib.util.find_spec("sklearn") is None:
        pytest.skip("needs scikit-learn")
    return data.digits()


def test_the_digits_are_all_there(handwriting):
    x, y = handwriting
    assert x.shape == (1797, 1, 8, 8) and x.dtype == mg.float32 and y.dtype == mg.int64
    assert (x.min().item(), x.max().item()) == (0, 1)
    assert np.bincount(y.numpy()).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    assert x[0, 0, 0].tolist() == [0, 0, 5 / 16, 13 / 16, 9 / 16, 1 / 16, 0, 0]


def test_without_scikit_learn_one_error_says_what_to_do(monkeypatch):
    module = importlib.import_module("minigrad.data.digits")
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    with pytest.raises(ModuleNotFoundError, match="pip install scikit-learn"):
        data.digits()


@pytest.mark.parametrize("k", [2, 5])
def test_folds_are_stratified_and_cover_all(k):
    y = np.repeat(np.arange(7), [13, 10, 9, 3, 20, 1, 5])
    folds = data.stratified_folds(mg.tensor(y), k, seed=1)
    tests = [test for _, test in folds]
    assert sorted(np.concatenate(tests)) == list(range(len(y)))
    assert max(map(len, tests)) - min(map(len, tests)) <= 1
    counts = np.array([np.bincount(y[test], minlength=7) for test in tests])
    assert (counts.max(0) - counts.min(0) <= 1).all()
    for train, test in folds:
        assert sorted([*train, *test]) == list(range(len(y)))
    again = data.stratified_folds(y, k, seed=1)
    assert all((a[1] == b[1]).all() for a, b in zip(folds, again))
    with pytest.raises(ValueError, match="folds"):
        data.stratified_folds(y, 1)


def test_shifting_moves_and_never_mixes_images():
    x = mg.zeros(50, 1, 4, 4)
    x[:, 0, 1, 2] = mg.arange(1.0, 51.0)
    moved = data.shifted(x, 1, mg.Generator(0)).numpy()
    assert (moved.sum((1, 2, 3)) == np.arange(1, 51)).all()
    places = {tuple(map(int, np.argwhere(image[0])[0])) for image in moved}
    assert places == {(r, c) for r in (0, 1, 2) for c in (1, 2, 3)}


def test_more_samples_than_items_are_one_order_after_the_other():
    drawn = list(data.RandomSampler(range(3), num_samples=7))
    assert len(drawn) == 7 and sorted(drawn[:3]) == sorted(drawn[3:6]) == [0, 1, 2]


def test_weights_of_zero_cannot_be_drawn_without_replacement():
    with pytest.raises(ValueError, match="3 samples of 2 items"):
        data.WeightedRandomSampler([0, 1.0, 2.0], 3, replacement=False)
