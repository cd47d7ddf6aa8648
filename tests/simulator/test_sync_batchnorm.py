"""SyncBatchNorm: every output, gradient and running statistic is that of one BatchNorm over the joined batch."""
from __future__ import annotations

import numpy as np
import pytest

import minigrad as mg
from minigrad import nn
from simulator.errors import RankFailed
from simulator.spawn import spawn
from simulator.strategies import DDP, SyncBatchNorm

SIZES = [(3, 3), (5, 1), (1, 1), (4, 0), (0, 2), (6,), (2, 0, 3), (1, 1, 1, 1, 1)]
HOW = [{}, {"momentum": None}, {"momentum": 0.7, "eps": 1e-2}, {"affine": False}, {"track_running_stats": False}]
TAILS = {"1d": (), "1d of sequences": (4,), "2d": (3, 2)}
STEPS = 2


def joined(sizes, tail):
    rng = np.random.default_rng(len(tail))
    n = sum(sizes)
    return [(rng.standard_normal((n, 3, *tail)) * 3 + 1, rng.standard_normal((n, 3, *tail))) for _ in range(STEPS)]


def prepared(bn):
    bn = bn.double()
    if bn.weight is not None:
        with mg.no_grad():
            bn.weight.copy_(mg.tensor([0.5, 2.0, -1.0]))
            bn.bias.copy_(mg.tensor([1.0, 0.0, 3.0]))
    return bn


def passes(bn, data, part, second):
    """Outputs, gradients of inputs and parameters, then evaluation: as arrays."""
    found = []
    for x, w in data:
        x = mg.tensor(x[part], requires_grad=True)
        y = bn(x)
        loss = (y * y * mg.tensor(w[part])).sum()
        if second:                                           # the graph is walked again, towards a larger gradient
            loss.backward(retain_graph=True)
        loss.backward()
        found += [y, x.grad]
    params = [p.grad for p in bn.parameters()]
    state = [b for b in bn.buffers()]
    bn.eval()
    if bn.track_running_stats:
        found.append(bn(mg.tensor(data[0][0][part])))
    return [t.detach().numpy() for t in found], [t.detach().numpy() for t in params], [b.numpy() for b in state]


def close(got, want, scale=1):
    """Sums of the same numbers in another order: 64 roundings of the largest, or of 1."""
    np.testing.assert_allclose(got, want, rtol=0, atol=scale * 64 * np.finfo(float).eps * max(1, np.abs(want).max()))


def of(kind):
    return nn.BatchNorm2d if kind == "2d" else nn.BatchNorm1d


@pytest.mark.parametrize("second", (False, True))
@pytest.mark.parametrize("how", HOW, ids=str)
@pytest.mark.parametrize("kind", TAILS)
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_is_one_batch_norm_over_the_joined_batch(sizes, kind, how, second):
    data, ends = joined(sizes, TAILS[kind]), np.cumsum((0, *sizes))

    def program(comm):
        part = slice(ends[comm.rank], ends[comm.rank + 1])
        return passes(prepared(SyncBatchNorm(3, **how, comm=comm)), data, part, second)
    tensors, params, state = passes(prepared(of(kind)(3, **how)), data, slice(None), second)
    ranks = spawn(program, len(sizes)).values
    cancels = 64 if sum(sizes) == 2 else 1                   # of two values little is left of large terms
    for k, want in enumerate(tensors):
        close(np.concatenate([r[0][k] for r in ranks]), want, cancels)
    for k, want in enumerate(params):
        close(sum(r[1][k] for r in ranks), want)             # each rank has its part of the sum
    for _, _, own in ranks:
        for a, b in zip(own, state):
            close(a, b)


def test_second_derivatives_are_those_of_the_joined_batch():
    data = joined((2, 3), ())[0]

    def curvature(bn, part):
        x = mg.tensor(data[0][part], requires_grad=True)
        (g,) = mg.autograd.grad((bn(x) ** 3 * mg.tensor(data[1][part])).sum(), x, create_graph=True)
        (h,) = mg.autograd.grad((g * g).sum(), x)
        return h.numpy()

    def program(comm):
        return curvature(prepared(SyncBatchNorm(3, comm=comm)), slice(0, 2) if comm.rank == 0 else slice(2, 5))
    want = curvature(prepared(nn.BatchNorm1d(3)), slice(None))
    np.testing.assert_allclose(np.concatenate(spawn(program, 2).values), want, rtol=0, atol=1e-11 * np.abs(want).max())


def test_half_precision_does_not_overflow():
    def program(comm):
        bn = SyncBatchNorm(1, comm=comm).half()
        return bn(mg.tensor([[300.0], [-300.0]], dtype=mg.float16) * (comm.rank + 1))
    whole = nn.BatchNorm1d(1)(mg.tensor([[300.0], [-300.0], [600.0], [-600.0]])).detach().numpy()
    got = np.concatenate([y.detach().numpy() for y in spawn(program, 2).values])
    assert got.dtype == np.float16
    np.testing.assert_allclose(got, whole, rtol=2e-3)


def test_values_far_from_zero_keep_their_variance():
    def program(comm):
        x = mg.tensor([[1e8 + comm.rank], [1e8 - comm.rank]], dtype=mg.float64)
        return SyncBatchNorm(1, comm=comm).double()(x).detach().tolist()
    got = np.concatenate(spawn(program, 2).values)
    assert np.abs(got).max() == pytest.approx(2**0.5, rel=1e-4) and got.sum() == pytest.approx(0, abs=1e-6)


def test_one_value_in_all_and_wrong_shapes_are_refused_on_all_ranks():
    def one(comm):
        SyncBatchNorm(2, comm=comm)(mg.ones(1 - comm.rank, 2))

    def shape(comm):
        SyncBatchNorm(2, comm=comm)(mg.ones(4, 3))
    for program, text in ((one, "all 2 ranks together have 1"), (shape, r"input \(4, 3\)")):
        with pytest.raises(RankFailed, match=text):
            spawn(program, 2)
        result = spawn(program, 2, check=False)
        assert all(isinstance(e, ValueError) for e in result.failures.values()) and len(result.failures) == 2


def test_evaluation_sends_nothing():
    def program(comm):
        bn = SyncBatchNorm(2, comm=comm).eval()
        if comm.rank == 0:
            bn(mg.ones(4, 2))
    assert spawn(program, 2).nbytes.sum() == 0


def test_a_model_is_converted_and_trains_in_data_parallel_as_on_one_device():
    x = np.random.default_rng(0).standard_normal((6, 2, 4, 4))

    def model_of():
        mg.manual_seed(0)
        return nn.Sequential(nn.Conv2d(2, 3, 2), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(27, 4),
                             nn.BatchNorm1d(4)).double()

    def program(comm):
        model = model_of()
        keys = list(model.state_dict())
        model = SyncBatchNorm.convert_sync_batchnorm(model, comm)
        assert list(model.state_dict()) == keys and type(model[1]) is type(model[5]) is SyncBatchNorm
        ddp = DDP(model, comm, gradient_as="sum")
        for _ in range(2):
            ddp.zero_grad()
            (ddp(mg.tensor(x[2 * comm.rank:2 * comm.rank + 2])) ** 3).sum().backward()
        return [p.grad.numpy() for p in model.parameters()], [b.numpy() for b in model.buffers()]
    want = model_of()
    for _ in range(2):
        want.zero_grad()
        (want(mg.tensor(x)) ** 3).sum().backward()
    for grads, buffers in spawn(program, 3).values:
        for got, ref in zip(grads, want.parameters()):       # of conv's bias it is 0 but for rounding
            np.testing.assert_allclose(got, ref.grad.numpy(), rtol=0, atol=1e-12 * 27)
        for got, ref in zip(buffers, want.buffers()):
            close(got, ref.numpy())
