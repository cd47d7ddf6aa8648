"""Making tensors: constructors against NumPy, hostile input, random streams, and how tensors print."""

import copy
import pickle
import threading

import numpy as np
import pytest

import minigrad as mg
from minigrad import streams
from minigrad.checkpoint import checkpoint
from minigrad.errors import DTypeError, GraphError


def same(t, array, dtype=None):
    assert t.dtype == (dtype or array.dtype) and t.shape == np.shape(array)
    np.testing.assert_array_equal(t.cpu().numpy(), np.asarray(array).astype(t.dtype))


# -- from data


@pytest.mark.parametrize(
    "data, dtype",
    [
        (3, mg.int64),
        (3.5, mg.float32),
        (True, mg.bool_),
        ([1, 2], mg.int64),
        ([1, 2.5], mg.float32),
        ([True, 2], mg.int64),
        ([], mg.float32),
        ([[], []], mg.float32),
        (((1, 2), (3, 4)), mg.int64),
        (range(3), mg.int64),
        (np.float64(2.5), mg.float64),
        (np.arange(3, dtype="i4"), mg.int32),
        ([np.arange(2), np.arange(2)], mg.int64),
        ([np.float64(1)], mg.float64),
        ([mg.ones((), dtype=mg.float64), 2.0], mg.float64),
        ([np.float16(1)], mg.float16),
        (np.array(2.0), mg.float64),
        (np.zeros((0, 2)), mg.float64),
        (np.arange(6.0).reshape(2, 3).T, mg.float64),
        ([float("nan"), float("inf")], mg.float32),
        (np.array([1.5, 2.5], ">f4"), mg.float32),
        (np.float16(1), mg.float16),
    ],
)
def test_tensor_takes_numbers_lists_and_arrays(data, dtype):
    same(mg.tensor(data), np.array(data), dtype)


def test_tensor_copies_and_from_numpy_shares():
    a = np.zeros(3)
    t, s, u = mg.tensor(a), mg.from_numpy(a), mg.as_tensor(a)
    a[0] = 1
    assert t.tolist() == [0, 0, 0] and s.tolist() == u.tolist() == [1, 0, 0] and s.numpy() is not None
    assert mg.as_tensor(t) is t and mg.as_tensor([1.0]).dtype == mg.float32
    assert not np.shares_memory(np.array(s), a) and np.shares_memory(np.asarray(s), a)
    assert np.asarray(s, dtype="f4").dtype == np.float32 and np.array(s.t(), copy=True).tolist() == [1, 0, 0]


def test_tensor_of_a_tensor_is_a_leaf_copy_on_its_device_unless_told_otherwise():
    x = mg.ones(2, device="sim:0", requires_grad=True)
    y, z = mg.tensor(x * 2), mg.tensor(x, device="cpu", dtype=mg.float64)
    assert y.device == x.device and not y.requires_grad and (z.device, z.dtype) == (mg.device("cpu"), mg.float64)
    assert mg.tensor([x.sum(), 3]).tolist() == [2, 3] and not np.shares_memory(mg.tensor(z).array, z.array)


ENDLESS = []
ENDLESS.append(ENDLESS)


@pytest.mark.parametrize(
    "data, error",
    [
        ([[1], [2, 3]], ValueError),
        ([1, [2]], ValueError),
        ([[1, 2], 3], ValueError),
        ([np.zeros(2), np.zeros(3)], ValueError),
        (ENDLESS, ValueError),
        ("x", TypeError),
        (["x"], TypeError),
        (None, TypeError),
        ([1, None], TypeError),
        ({}, TypeError),
        ({1}, TypeError),
        (1j, TypeError),
        (object(), TypeError),
        ([2**70], ValueError),
        (2**70, ValueError),
        (b"x", TypeError),
        (np.array(["a"]), TypeError),
        (np.array([1j]), TypeError),
        (np.array([None]), TypeError),
        (np.array(["2020"], "M8[D]"), TypeError),
        (lambda: 1, TypeError),
        (mg, TypeError),
    ],
)
def test_hostile_data_is_one_clear_error(data, error):
    with pytest.raises(error, match="tensor|dtype"):
        mg.tensor(data)


def test_integers_that_do_not_fit_are_refused():
    for value, dtype in ((300, mg.uint8), (-1, mg.uint8), (2**31, mg.int32), (np.int64(200), mg.int8)):
        with pytest.raises(ValueError, match="does not fit"):
            mg.tensor([0, value], dtype=dtype)
    assert mg.tensor([1.7, -1.7], dtype=mg.int64).tolist() == [1, -1] and mg.tensor(
        [0, 2], dtype=mg.bool_
    ).tolist() == [False, True]


@pytest.mark.parametrize(
    "make",
    [
        lambda: mg.tensor([1, 2], requires_grad=True),
        lambda: mg.zeros(2, dtype=mg.int64, requires_grad=True),
        lambda: mg.arange(3, requires_grad=True),
    ],
)
def test_only_floats_require_gradients(make):
    """A090"""
    with pytest.raises(DTypeError, match="int64.*float"):
        make()


def test_requires_grad_is_an_attribute_too():
    x = mg.zeros(2)
    x.requires_grad = True
    assert x.is_leaf and x.requires_grad
    with pytest.raises(GraphError, match="detach"):
        (x * 2).requires_grad = False
    with pytest.raises(DTypeError):
        mg.tensor([1]).requires_grad = True


# -- filled and counted


@pytest.mark.parametrize("where", ["cpu", "sim:0"])
def test_filled_tensors_equal_numpys(where):
    for shape in ((), (0, 3), (2, 3)):
        same(mg.zeros(shape, device=where), np.zeros(shape, "f4"))
        same(mg.ones(*shape, device=where), np.ones(shape, "f4"))
        same(mg.full(shape, 7, device=where), np.full(shape, 7))
        same(mg.empty(shape, dtype=mg.int8, device=where), np.zeros(shape, "i1"))
    x = mg.full((2, 2), 2.5, dtype=mg.float64, device=where)
    same(mg.zeros_like(x), np.zeros((2, 2)))
    same(mg.full_like(x, 3, dtype=mg.int64), np.full((2, 2), 3))
    assert mg.ones_like(x).device == x.device and mg.full((), True).dtype == mg.bool_
    same(mg.eye(2, 3, device=where), np.eye(2, 3, dtype="f4"))
    same(mg.linspace(0, 1, 5, device=where), np.linspace(0, 1, 5, dtype="f4"))


@pytest.mark.parametrize("bounds", [(5,), (2, 5), (5, 0, -2), (0,), (0.0, 1.0, 0.25), (3.0,), (2, 2), (-1, 1, 0.5)])
def test_arange_is_numpys(bounds):
    array = np.arange(*bounds)
    same(mg.arange(*bounds), array, mg.int64 if array.dtype.kind == "i" else mg.float32)


@pytest.mark.parametrize(
    "bad",
    [
        lambda: mg.zeros(-1),
        lambda: mg.zeros(2.5),
        lambda: mg.zeros((2, 2.5)),
        lambda: mg.zeros("ab"),
        lambda: mg.zeros([[1]]),
        lambda: mg.full(None, 1),
        lambda: mg.randn(2, -1),
        lambda: mg.arange(),
        lambda: mg.arange(0, 5, 0),
        lambda: mg.arange(5, 2),
        lambda: mg.arange(0, 1, -1),
        lambda: mg.arange(float("inf")),
        lambda: mg.arange(float("nan")),
        lambda: mg.arange("x"),
        lambda: mg.linspace(0, 1, -1),
        lambda: mg.randint(5, 5, (2,)),
        lambda: mg.randint(0),
        lambda: mg.randn(2, dtype=mg.int64),
        lambda: mg.randperm(-1),
        lambda: mg.from_numpy([1]),
        lambda: mg.from_numpy(np.zeros(2, ">f4")),
        lambda: mg.from_numpy(np.zeros(2, "c8")),
        lambda: mg.zeros(2, dtype="nonsense"),
        lambda: mg.zeros(2, device="nowhere"),
        lambda: mg.eye(-1),
        lambda: mg.ones(2).reshape(2.0),
        lambda: mg.ones(2).expand(2.0, 2),
        lambda: mg.cat([1, 2]),
        lambda: mg.stack(3),
        lambda: mg.cat(mg.ones(())),
    ],
)
def test_nonsense_is_refused_in_words(bad):
    with pytest.raises((ValueError, TypeError, RuntimeError)) as e:
        bad()
    assert len(str(e.value)) > 10 and "NoneType" not in str(e.value)


# -- random streams


def test_a_seed_is_a_sequence():
    def draw():
        mg.manual_seed(5)
        return [
            mg.randn(3).tolist(),
            mg.rand(3).tolist(),
            mg.randint(0, 99, (3,)).tolist(),
            mg.randperm(9).tolist(),
            mg.randn(3).tolist(),
        ]

    first = draw()
    assert first == draw() and first[0] != first[4]
    mg.manual_seed(6)
    assert mg.randn(3).tolist() != first[0]


def test_a_state_replays_and_a_private_stream_disturbs_nobody():
    """A109"""
    mg.manual_seed(1)
    mg.randn(2)
    state = mg.get_rng_state()
    want = mg.randn(4).tolist()
    mg.set_rng_state(state)
    private = mg.Generator(3)
    a, b = mg.randn(2, generator=private).tolist(), mg.randn(2, generator=mg.Generator().manual_seed(3)).tolist()
    assert mg.randn(4).tolist() == want and a == b
    saved = private.get_state()
    c = mg.rand(2, generator=private).tolist()
    private.set_state(saved)
    assert mg.rand(2, generator=private).tolist() == c and private.initial_seed() == 3


def test_an_own_stream_stands_in_for_the_processs_in_its_context():
    mg.manual_seed(4)
    before = mg.get_rng_state().tolist()
    with streams.drawing_from(mg.Generator(9)), streams.own_stream(mg.Generator(8)):
        first = mg.randn(3).tolist()
        assert mg.get_rng_state().tolist() == [8, 1]
        assert mg.manual_seed(8).initial_seed() == 8 and mg.randn(3).tolist() == first
        x = mg.ones(50, requires_grad=True)
        y = checkpoint(lambda x: mg.nn.functional.dropout(x, 0.5), x)
        y.sum().backward()                           # what is dropped again is drawn again from the same place
        assert x.grad.tolist() == y.tolist()
    assert mg.get_rng_state().tolist() == before


@pytest.mark.parametrize("state", [None, [1, 2], mg.tensor([1]), mg.tensor([1.0, 2.0]), mg.tensor([-1, 2])])
def test_a_wrong_state_is_refused(state):
    with pytest.raises(ValueError, match="get_state"):
        mg.Generator().set_state(state)


def test_streams_do_not_overlap():
    """Draws of one seed at different offsets, and of different seeds, share no number: each has its own counters."""
    draws = [mg.rand(4096, dtype=mg.float64, generator=g).numpy() for g in [mg.Generator(0)] * 3 + [mg.Generator(1)]]
    assert len(np.unique(np.concatenate(draws))) == 4 * 4096


def test_threads_never_draw_the_same_numbers():
    g, seen = mg.Generator(0), []

    def work():
        seen.extend(g.key().tolist()[1] for _ in range(500))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(set(seen)) == 2000


def test_draws_are_what_they_say():
    mg.manual_seed(0)
    x, u, i = mg.randn(20_000), mg.rand(20_000), mg.randint(-2, 3, (20_000,))
    assert abs(x.mean().item()) < 0.03 and abs(x.var().item() - 1) < 0.05  # 4 standard errors
    assert 0 <= u.min().item() and u.max().item() < 1 and abs(u.mean().item() - 0.5) < 0.01
    assert sorted(set(i.tolist())) == [-2, -1, 0, 1, 2] and sorted(mg.randperm(50).tolist()) == list(range(50))
    assert mg.randint(3, (2, 2)).shape == (2, 2) and mg.rand_like(x.double()).dtype == mg.float64


def test_every_device_draws_the_same():
    def draw(where):
        mg.manual_seed(0)
        return mg.randn(5, device=where).tolist() + mg.rand(5, device=where).tolist()

    assert draw("cpu") == draw("sim:0")


# -- copies


@pytest.mark.parametrize("where", ["cpu", "sim:0"])
def test_deepcopy_and_pickle_keep_leaves(where):
    x = mg.tensor([1.5, 2.5], device=where, requires_grad=True)
    p = mg.nn.Parameter(mg.ones(2))
    for other in (copy.deepcopy(x), pickle.loads(pickle.dumps(x))):
        (other * 2).sum().backward()
        assert (
            other.tolist() == [1.5, 2.5]
            and other.device == x.device
            and other.grad.tolist() == [2, 2]
            and x.grad is None
        )
    assert isinstance(copy.deepcopy(p), mg.nn.Parameter) and pickle.loads(pickle.dumps(p)).requires_grad
    a, b = copy.deepcopy([x, x])
    assert a is b and a is not x
    with pytest.raises(GraphError, match="detach"):
        copy.deepcopy(x * 2)


# -- text


def text(data, **how):
    return repr(mg.tensor(data, **how))


@pytest.mark.parametrize(
    "got, want",
    [
        (lambda: text([1.0, 2.5]), "tensor([1.0000, 2.5000])"),
        (lambda: text([1.0, 10.0]), "tensor([ 1., 10.])"),
        (lambda: text(3.25), "tensor(3.2500)"),
        (lambda: text([1, -20]), "tensor([  1, -20])"),
        (lambda: text([True, False]), "tensor([ True, False])"),
        (lambda: text([1e-5, 1.0]), "tensor([1.0000e-05, 1.0000e+00])"),
        (lambda: text([1.0, float("nan"), float("-inf")]), "tensor([1., nan, -inf])"),
        (lambda: text([0.5, float("nan")]), "tensor([0.5000,    nan])"),
        (lambda: text([0.0, -0.0]), "tensor([0., -0.])"),
        (lambda: text([123456.0, 0.5]), "tensor([1.2346e+05, 5.0000e-01])"),
        (lambda: text([[1, 2], [3, 4]]), "tensor([[1, 2],\n        [3, 4]])"),
        (lambda: text([[[1.5]], [[2.5]]]), "tensor([[[1.5000]],\n\n        [[2.5000]]])"),
        (lambda: text([]), "tensor([])"),
        (lambda: repr(mg.zeros(0, 3)), "tensor([], size=(0, 3))"),
        (lambda: repr(mg.zeros(0, dtype=mg.int64)), "tensor([], dtype=int64)"),
        (lambda: text([1.0], dtype=mg.float64), "tensor([1.], dtype=float64)"),
        (lambda: text([1], dtype=mg.int32), "tensor([1], dtype=int32)"),
        (lambda: text([1.0], requires_grad=True), "tensor([1.], requires_grad=True)"),
        (lambda: repr(mg.tensor([1.0], requires_grad=True) * 2), "tensor([2.], grad_fn=<MulBackward>)"),
        (lambda: text([1.5], device="sim:0"), "tensor([1.5000], device='sim:0')"),
        (lambda: repr(mg.zeros(2, 3, device="meta")), "tensor(..., device='meta', size=(2, 3))"),
        (lambda: repr(mg.arange(2000)), "tensor([   0,    1,    2,  ..., 1997, 1998, 1999])"),
        (lambda: repr(mg.nn.Parameter(mg.ones(1))), "Parameter containing:\ntensor([1.], requires_grad=True)"),
        (lambda: repr(mg.arange(12)), "tensor([ 0,  1,  2,  3,  4,  5,  6,  7,  8,  9, 10, 11])"),
        (lambda: f"{mg.tensor(3.14159):.2f}", "3.14"),
        (lambda: f"{mg.tensor([1.5])}", "tensor([1.5000])"),
        (lambda: f"{mg.tensor(2)}", "2"),
    ],
)
def test_text_is_pytorchs(got, want):
    assert got() == want


def test_numbers():
    x = mg.tensor(2.5)
    assert (float(x), int(x), bool(x), x.item(), round(float(x), 1)) == (2.5, 2, True, 2.5, 2.5)
    assert (
        [10, 20, 30][mg.tensor(1)] == 20
        and list(range(mg.tensor([2])))[1] == 1
        and 2 in mg.arange(3)
        and len(mg.zeros(3, 2)) == 3
    )
    for bad in (
        lambda: [1][mg.tensor(0.5)],
        lambda: bool(mg.ones(2)),
        lambda: float(mg.ones(2)),
        lambda: len(x),
        lambda: iter(x),
        lambda: f"{mg.ones(2):.2f}",
    ):
        with pytest.raises((TypeError, RuntimeError)):
            bad()
    a, b = mg.tensor([1, 2])
    assert (a.item(), b.item()) == (1, 2) and hash(x) == hash(x) and (x == None) is False  # noqa: E711
