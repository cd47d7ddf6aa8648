"""What becomes of items: padded, packed, in buckets, joined to forests, split by class, transformed."""

from functools import partial

import numpy as np
import pytest

import minigrad as mg
from minigrad import data, nn
from minigrad.data import transforms as T

RNG = np.random.default_rng(0)
LENGTHS = [3, 1, 5, 2]
SEQUENCES = [RNG.standard_normal((n, 2)).astype("f4") for n in LENGTHS]


# ---- datasets ------------------------------------------------------------------------------------


def test_datasets_beside_each_other_and_after_each_other():
    pair = data.StackDataset([1, 2, 3], "abc")
    assert len(pair) == 3 and pair[1] == (2, "b")
    named = data.StackDataset(x=[1, 2], y="ab")
    assert named[0] == {"x": 1, "y": "a"} and len(named) == 2
    with pytest.raises(ValueError, match=r"\[2, 3\]"):
        data.StackDataset([1, 2], [1, 2, 3])
    with pytest.raises(ValueError, match="not both"):
        data.StackDataset([1], x=[1])

    class Counting(data.IterableDataset):
        def __iter__(self):
            return iter(range(3))

    assert list(Counting() + Counting()) == [0, 1, 2, 0, 1, 2]
    with pytest.raises(TypeError, match="ConcatDataset"):
        list(data.ChainDataset([[1, 2]]))
    with pytest.raises(TypeError, match="no length"):
        len(Counting())


# ---- ragged --------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [np.asarray, mg.tensor], ids=["arrays", "tensors"])
def test_padding_keeps_every_value_and_marks_the_rest(kind):
    padded = data.pad_collate([kind(s) for s in SEQUENCES], padding_value=-1.0)
    assert padded.values.shape == (4, 5, 2) and padded.lengths.tolist() == LENGTHS
    assert padded.mask.numpy().sum(1).tolist() == LENGTHS
    for row, mask, sequence in zip(padded.values.numpy(), padded.mask.numpy(), SEQUENCES):
        np.testing.assert_array_equal(row[mask], sequence)
        assert (row[~mask] == -1).all()


def test_padding_goes_into_tuples_and_dicts():
    batch = data.pad_collate([([1, 2], 5, {"s": "a", "z": np.ones(3)}), ([3], 6, {"s": "b", "z": np.ones(1)})])
    assert batch[0].values.tolist() == [[1, 2], [3, 0]] and batch[0].values.dtype == mg.int64
    assert batch[1].tolist() == [5, 6] and batch[2]["s"] == ["a", "b"] and batch[2]["z"].lengths.tolist() == [3, 1]
    with pytest.raises(ValueError, match="parts"):
        data.pad_collate([(1, 2), (1,)])


def test_a_packed_batch_gives_an_rnn_what_single_sequences_give():
    mg.manual_seed(0)
    rnn = nn.GRU(2, 3, batch_first=True)
    _, together = rnn(data.pad_collate(SEQUENCES).packed())
    for k, sequence in enumerate(SEQUENCES):
        _, alone = rnn(mg.tensor(sequence[None]))
        np.testing.assert_allclose(together[0, k].detach().numpy(), alone[0, 0].detach().numpy(), atol=1e-6)


@pytest.mark.parametrize("drop_last", [False, True])
def test_buckets_have_every_item_once_and_little_padding(drop_last):
    lengths = RNG.integers(1, 100, 103).tolist()
    sampler = data.BucketBatchSampler(lengths, 8, drop_last, window=4, generator=mg.Generator(1))
    walks = [list(sampler), list(sampler)]
    assert walks[0] != walks[1] and len(walks[0]) == len(sampler)
    assert walks[0] == list(data.BucketBatchSampler(lengths, 8, drop_last, window=4, generator=mg.Generator(1)))
    items = sorted(sum(walks[0], []))
    assert len(items) == len(set(items)) and (drop_last or items == list(range(103)))
    assert all(len(batch) == 8 for batch in walks[0]) or not drop_last

    def padding(batches):
        return sum(max(lengths[i] for i in b) * len(b) - sum(lengths[i] for i in b) for b in batches)

    plain = list(data.BatchSampler(range(103), 8, drop_last))
    assert padding(walks[0]) < padding(plain) / 2
    loader = data.DataLoader(lengths, batch_sampler=data.BucketBatchSampler(lengths, 8), num_workers=2)
    assert sorted(sum((b.tolist() for b in loader), [])) == sorted(lengths)


def test_a_forest_gives_a_tree_lstm_what_single_trees_give():
    trees = [
        (mg.randn(3, 4), [[1, 2], [], []], 1),
        (mg.randn(1, 4), [[]], 0),
        (mg.randn(4, 4), [[1], [2, 3], [], []], 2),
    ]
    forest = data.tree_collate(trees)
    assert forest.roots.tolist() == [0, 3, 4] and forest.labels.tolist() == [1, 0, 2]
    net = nn.ChildSumTreeLSTM(4, 5)
    together = net(forest.inputs, forest.children)[0][forest.roots]
    for k, (x, children, _) in enumerate(trees):
        np.testing.assert_allclose(together[k].detach().numpy(), net(x, children)[0][0].detach().numpy(), atol=1e-6)
    with pytest.raises(ValueError, match="2 nodes and children of 1"):
        data.tree_collate([(mg.randn(2, 4), [[]], 0)])


# ---- splits --------------------------------------------------------------------------------------


@pytest.mark.parametrize("fractions", [[0.8, 0.2], [0.6, 0.2, 0.2], [1.0], [0.5, 0.0, 0.5]])
def test_a_stratified_split_spreads_each_class(fractions):
    labels = RNG.permutation(np.repeat(np.arange(6), [50, 20, 7, 3, 1, 33]))
    parts = data.stratified_split(mg.tensor(labels), fractions, mg.Generator(2))
    assert sorted(np.concatenate(parts)) == list(range(len(labels)))
    for share, part in zip(fractions, parts):
        counts = np.bincount(labels[part], minlength=6)
        assert (np.abs(counts - share * np.bincount(labels)) < 1).all()
        assert abs(len(part) - share * len(labels)) < 2
    again = data.stratified_split(labels, fractions, mg.Generator(2))
    assert all((a == b).all() for a, b in zip(parts, again))
    assert len(data.Subset(labels, parts[0])) == len(parts[0])


def test_what_is_no_split_is_refused():
    for labels, fractions in ((np.zeros(3), [0.5, 0.6]), (np.zeros((2, 2)), [1.0]), (np.zeros(3), [-0.5, 1.5])):
        with pytest.raises(ValueError, match="add up to 1"):
            data.stratified_split(labels, fractions)


# ---- transforms ----------------------------------------------------------------------------------

IMAGE = RNG.integers(0, 256, (5, 6, 3)).astype("u1")


def test_bytes_become_a_tensor_of_channels():
    x = T.ToTensor()(IMAGE)
    assert x.shape == (3, 5, 6) and x.dtype == mg.float32
    np.testing.assert_allclose(x.numpy(), IMAGE.transpose(2, 0, 1) / 255, rtol=1e-6)
    assert T.ToTensor()(IMAGE[..., 0]).shape == (1, 5, 6)


def test_normalised_channels_have_mean_0_and_deviation_1():
    x = T.ToTensor()(IMAGE).numpy()
    y = T.Normalize(x.mean((1, 2)), x.std((1, 2)))(x).numpy()
    np.testing.assert_allclose(y.mean((1, 2)), 0, atol=1e-6)
    np.testing.assert_allclose(y.std((1, 2)), 1, rtol=1e-5)
    with pytest.raises(ValueError, match="2 means for an image of 3"):
        T.Normalize([0, 0], [1, 1])(x)
    with pytest.raises(ValueError, match="above 0"):
        T.Normalize([0], [0])


def test_crops_are_windows_drawn_evenly():
    x = np.arange(16.0, dtype="f4").reshape(1, 4, 4)
    crop, seen = T.RandomCrop(3), {}
    with mg.streams.drawing_from(mg.Generator(0)):
        for _ in range(400):
            y = crop(x).numpy()
            top, left = divmod(int(y[0, 0, 0]), 4)
            np.testing.assert_array_equal(y, x[:, top : top + 3, left : left + 3])
            seen[top, left] = seen.get((top, left), 0) + 1
    assert set(seen) == {(0, 0), (0, 1), (1, 0), (1, 1)} and min(seen.values()) > 60
    assert T.RandomCrop((4, 2), padding=1)(x).shape == (1, 4, 2)
    np.testing.assert_array_equal(T.Pad(1, 9)(x).numpy()[:, 1:-1, 1:-1], x)
    with pytest.raises(ValueError, match="does not fit"):
        T.RandomCrop(7, padding=1)(x)


def test_flips_are_drawn_and_undo_themselves():
    x = np.arange(6.0, dtype="f4").reshape(1, 2, 3)
    always = T.RandomHorizontalFlip(1.0)
    np.testing.assert_array_equal(always(always(x)).numpy(), x)
    np.testing.assert_array_equal(T.RandomHorizontalFlip(0.0)(x).numpy(), x)
    flipped = sum(T.RandomHorizontalFlip()(x).numpy()[0, 0, 0] != 0 for _ in range(300))
    assert 100 < flipped < 200
    with pytest.raises(ValueError, match="p must"):
        T.RandomHorizontalFlip(2)
    with pytest.raises(ValueError, match="expected an image"):
        always(x[0])


@pytest.mark.parametrize("workers", [0, 2])
def test_augmented_items_come_from_the_seed_whoever_works(workers):
    change = T.Compose([T.ToTensor(), T.RandomCrop(4, padding=2), T.RandomHorizontalFlip(), T.Lambda(lambda x: x * 2)])
    images = [(IMAGE, k) for k in range(6)]
    loader = data.DataLoader(T.Transformed(images, change), 2, generator=mg.Generator(3), num_workers=workers)
    x = np.concatenate([batch[0].numpy() for batch in loader])
    again = data.DataLoader(T.Transformed(images, change), 2, generator=mg.Generator(3))
    np.testing.assert_array_equal(x, np.concatenate([batch[0].numpy() for batch in again]))
    assert x.shape == (6, 3, 4, 4) and not (x[0] == x[1]).all()
    assert repr(change).splitlines()[2] == "    RandomCrop(size=(4, 4), padding=2)"


def test_a_collate_function_with_options_is_a_partial():
    loader = data.DataLoader(SEQUENCES, 2, collate_fn=partial(data.pad_collate, padding_value=7.0))
    assert [b.values.shape for b in loader] == [(2, 3, 2), (2, 5, 2)]
