"""Data parallel: whatever the model, the buckets and the number of ranks, a step is that of one device on the joined
batch; and what cannot be averaged is named, on which rank and which parameter, and never waited for."""
from __future__ import annotations

import copy
import gc
import weakref

import numpy as np
import pytest

import minigrad as mg
from minigrad import nn
from simulator.cluster import uniform
from simulator.device import device
from simulator.errors import RankFailed
from simulator.spawn import spawn
from simulator.strategies import DDP, token_loss

EPS = np.finfo(np.float64).eps
WORLDS = (1, 2, 3, 4, 5)
BATCH, STEPS = 7, 3                          # 7 examples: ranks have different numbers of them
WAYS = {
    "naive": {"bucket_cap_mb": 0, "overlap": False},
    "naive, overlapped": {"bucket_cap_mb": 0},
    "buckets": {"bucket_cap_mb": 3e-4, "overlap": False},
    "one bucket": {"overlap": False},
    "overlapped": {"bucket_cap_mb": 3e-4},
    "overlapped, who takes part is asked": {"bucket_cap_mb": 3e-4, "find_unused_parameters": True},
}


def close(got, want) -> None:
    """Sums of the same numbers in another order: 64 roundings of the largest."""
    got, want = (np.asarray(a.detach().numpy() if isinstance(a, mg.Tensor) else a) for a in (got, want))
    assert got.shape == want.shape and got.dtype == want.dtype
    assert np.abs(got - want).max(initial=0) <= 64 * EPS * np.abs(want).max(initial=0)


# ---- models --------------------------------------------------------------------------------------
def mlp():
    return nn.Sequential(nn.Linear(4, 9), nn.Tanh(), nn.Linear(9, 5), nn.Tanh(), nn.Linear(5, 2))


def cnn():
    return nn.Sequential(Reshape(1, 2, 2), nn.Conv2d(1, 3, 2, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(27, 2))


def frozen():
    model = mlp()
    model[2].requires_grad_(False)
    return model


class Reshape(nn.Module):
    def __init__(self, *shape):
        self.shape = shape

    def forward(self, x):
        return x.reshape(x.shape[0], *self.shape)


class Tied(nn.Module):
    """The same weight at both ends, and layers registered in another order than they are used."""

    def __init__(self):
        self.out, self.mid, self.into = nn.Linear(6, 4), nn.Linear(6, 6), nn.Linear(4, 6)
        self.mid2 = self.mid

    def forward(self, x):
        h = self.mid2(self.mid(self.into(x).tanh()).tanh()).tanh()
        return self.out(h) @ self.into.weight.T[:, :2]


class Tree(nn.Module):
    """A cell for each kind of node; which are used, and in which order, each example says itself (tree-LSTM-like)."""

    def __init__(self):
        self.leaf, self.sum, self.product, self.never = (nn.Linear(4, 4) for _ in range(4))
        self.head = nn.Linear(4, 2)

    def grow(self, x, code):
        if code < 2:
            return self.leaf(x).tanh()
        cell = self.sum if code % 2 else self.product
        return cell(self.grow(x, code // 2) * self.grow(x.flip(0), code // 3)).tanh()

    def forward(self, xs):
        return mg.stack([self.head(self.grow(x, int(abs(1000 * x[0].item())) % 14)) for x in xs])


MODELS = {"mlp": mlp, "cnn": cnn, "frozen": frozen, "tied": Tied, "tree": Tree}


def made(name, seed=0):
    mg.manual_seed(seed)
    return MODELS[name]().double()


def batches(steps=STEPS):
    rng = np.random.default_rng(5)
    return [(mg.tensor(rng.standard_normal((BATCH, 4))), mg.tensor(rng.standard_normal((BATCH, 2))))
            for _ in range(steps)]


def loss_sum(model, x, y):
    return ((model(x) - y) ** 2 * mg.tensor([1.0, 3.0], dtype=mg.float64)).sum()


def optimizer_of(model):
    return mg.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.02, momentum=0.5)


def one_device(name, data):
    model = made(name)
    optimizer, grads = optimizer_of(model), []
    for x, y in data:
        optimizer.zero_grad()
        (loss_sum(model, x, y) / BATCH).backward()
        grads.append([None if p.grad is None else p.grad.detach().clone() for p in model.parameters()])
        optimizer.step()
    return grads, [p.detach() for p in model.parameters()]


def many(comm, name, data, how):
    model = made(name, seed=comm.rank)                       # rank 0's values count
    ddp = DDP(model, comm, **how)
    optimizer, grads = optimizer_of(model), []
    for x, y in data:
        x, y = x[comm.rank::comm.world_size], y[comm.rank::comm.world_size]
        optimizer.zero_grad()
        token_loss(loss_sum(ddp, x, y), len(x), comm).backward()
        grads.append([None if p.grad is None else p.grad.detach().clone() for p in model.parameters()])
        optimizer.step()
    return grads, [p.detach() for p in model.parameters()]


# ---- equal to one device -------------------------------------------------------------------------
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("world", WORLDS)
def test_steps_are_those_of_one_device_on_the_joined_batch(name, way, world):
    how = WAYS[way] | ({"find_unused_parameters": True} if name == "tree" else {})
    data = batches()
    want_grads, want = one_device(name, data)
    ranks = spawn(many, world, name, data, how, timeout=60).values
    for grads, params in ranks:
        for got, ref in zip([*grads, params], [*want_grads, want]):
            for a, b in zip(got, ref):
                assert (a is None) == (b is None)            # what took part nowhere has no gradient
                if a is not None:
                    close(a, b)
        for a, b in zip(params, ranks[0][1]):
            assert np.array_equal(a.numpy(), b.numpy())      # all ranks add in one order: equal to the last bit


def test_two_ranks_of_equal_parts_are_one_device_to_the_last_bit():
    """a + b has one order, and halves are exact: where one device adds two examples, the bits are its."""
    x = mg.tensor(np.random.default_rng(0).standard_normal((2, 3)))

    def program(comm):
        mg.manual_seed(0)
        model = nn.Linear(3, 1).double()
        ddp = DDP(model, comm)
        ddp(x[comm.rank:comm.rank + 1]).exp().sum().backward()
        return model.weight.grad
    mg.manual_seed(0)
    model = nn.Linear(3, 1).double()
    grads = []
    for k in range(2):
        model.zero_grad()
        model(x[k:k + 1]).exp().sum().backward()
        grads.append(model.weight.grad.numpy())
    for got in spawn(program, 2).values:
        assert np.array_equal(got.numpy(), (grads[0] + grads[1]) / 2)


@pytest.mark.parametrize("dtype", (mg.float16, mg.float32))
def test_dtypes_have_buckets_of_their_own(dtype):
    def program(comm):
        mg.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 4).double(), nn.Linear(4, 2).to(dtype))
        ddp = DDP(model, comm)
        h = ddp.module[0](mg.ones(1, 3, dtype=mg.float64) * (comm.rank + 1))
        ddp.module.forward = lambda x: ddp.module[1](ddp.module[0](x).to(dtype))
        ddp(mg.ones(1, 3, dtype=mg.float64) * (comm.rank + 1)).sum().backward()
        assert h.dtype == mg.float64 and len(ddp.reducer.buckets) == 2
        return [(p.grad.dtype, p.grad.numpy()) for p in model.parameters()]
    a, b = spawn(program, 2).values
    for (kind, x), (_, y) in zip(a, b):
        assert np.array_equal(x, y) and kind in (mg.float64, dtype)


def test_on_simulated_devices_with_their_memory():
    data = batches(1)
    (want,), _ = one_device("mlp", data)

    def program(comm):
        model = made("mlp").to(comm.device)
        ddp = DDP(model, comm, bucket_cap_mb=3e-4)
        x, y = (t[comm.rank::comm.world_size].to(comm.device) for t in data[0])
        token_loss(((ddp(x) - y) ** 2 * mg.tensor([1.0, 3.0], dtype=mg.float64).to(comm.device)).sum(), len(x),
                   comm).backward()
        return [p.grad.cpu() for p in model.parameters()]
    result = spawn(program, 3, device="sim")
    for grads in result.values:
        for a, b in zip(grads, want):
            close(a, b)
    assert all(result.peak_bytes)


def test_the_same_program_runs_the_same_way_each_time():
    data = batches()
    machine = uniform(3, device("A100").with_(peak_flops={"float64": 9.7e12}))
    how = WAYS["overlapped, who takes part is asked"]
    runs = [spawn(many, 3, "tree", data, how, timed=True, cluster=machine) for _ in range(2)]
    assert runs[0].time_s == runs[1].time_s and (runs[0].nbytes == runs[1].nbytes).all()
    for a, b in zip(runs[0].values[1][1], runs[1].values[1][1]):
        assert np.array_equal(a.numpy(), b.numpy())


# ---- wrapping ------------------------------------------------------------------------------------
def test_replicas_begin_with_the_values_of_rank_0():
    def program(comm):
        mg.manual_seed(100 + comm.rank)
        model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
        model[1].running_mean.fill_(float(comm.rank))
        model[1].num_batches_tracked.fill_(comm.rank)
        ddp = DDP(model, comm)
        assert list(ddp.state_dict()) == ["module." + key for key in model.state_dict()]
        return [t.numpy() for t in model.state_dict().values()]
    ranks = spawn(program, 3).values
    assert all(np.array_equal(a, b) for rank in ranks for a, b in zip(rank, ranks[0]))
    assert (ranks[2][4] == 0).all()


def test_buffers_become_those_of_rank_0_before_each_forward_that_follows_a_reduced_one():
    def program(comm, broadcast):
        model = nn.BatchNorm1d(1, momentum=1.0).double()
        ddp = DDP(model, comm, broadcast_buffers=broadcast)
        x = mg.tensor([[0.0], [2.0]], dtype=mg.float64) + 10.0 * comm.rank
        ddp(x).sum().backward()
        own = model.running_mean.item()
        with mg.no_grad():
            ddp.eval()(x)
            if comm.rank == 0:                               # it needs nobody now
                ddp(x)
        return own, model.running_mean.item()
    assert spawn(program, 2, True).values == [(1.0, 1.0), (11.0, 1.0)]
    assert spawn(program, 2, False).values == [(1.0, 1.0), (11.0, 11.0)]


def other(comm):
    """Modules that differ on rank 1."""
    return {"shape": lambda: nn.Linear(3, 2 + comm.rank),
            "dtype": lambda: nn.Linear(3, 2).to(mg.float64 if comm.rank else mg.float32),
            "number": lambda: nn.Sequential(*[nn.Linear(3, 3) for _ in range(1 + comm.rank)]),
            "name": lambda: nn.ModuleDict({"ab"[comm.rank]: nn.Linear(3, 2)}),
            "frozen": lambda: nn.Linear(3, 2).requires_grad_(comm.rank == 0)
            if comm.rank == 0 else _with_frozen_bias()}


def _with_frozen_bias():
    m = nn.Linear(3, 2)
    m.bias.requires_grad_(False)
    return m


@pytest.mark.parametrize("kind", ("shape", "dtype", "number", "name", "frozen"))
def test_modules_that_differ_are_refused_on_all_ranks(kind):
    result = spawn(lambda comm: DDP(other(comm)[kind](), comm), 2, check=False)
    assert sorted(result.failures) == [0, 1]
    for error in result.failures.values():
        assert isinstance(error, RuntimeError) and "rank 1" in str(error) and "ranks 0 and 1" in str(error)


@pytest.mark.parametrize("how", ({"bucket_cap_mb": 0}, {"overlap": False}, {"unused": "zero"}), ids=str)
def test_so_are_options_that_differ(how):
    with pytest.raises(RankFailed, match=f"ranks 0 and 1 differ: {next(iter(how))}=.* on rank 0"):
        spawn(lambda comm: DDP(mlp(), comm, **(how if comm.rank else {})), 2)


def test_a_backward_through_the_module_itself_is_averaged_too():
    def program(comm):
        model = nn.Linear(1, 1, bias=False).double()
        held = DDP(model, comm)
        held.module(mg.full((1, 1), float(comm.rank), dtype=mg.float64)).sum().backward()
        return model.weight.grad.item()
    assert spawn(program, 3).values == [1.0] * 3


def test_ranks_of_a_sub_group_average_among_themselves():
    def program(comm):
        mg.manual_seed(0)
        model = nn.Linear(1, 1, bias=False).double()
        group = comm.split(comm.rank % 2)
        DDP(model, group)(mg.full((1, 1), float(comm.rank), dtype=mg.float64)).sum().backward()
        return model.weight.grad.item()
    assert spawn(program, 5).values == [2.0, 2.0, 2.0, 2.0, 2.0]
    assert spawn(program, 4).values == [1.0, 2.0, 1.0, 2.0]


WRONG = {
    "no module": (lambda comm: DDP(lambda x: x, comm), TypeError, "wraps a Module"),
    "all frozen": (lambda comm: DDP(mlp().requires_grad_(False), comm), RuntimeError, "nothing to average"),
    "twice": (lambda comm: DDP(DDP(mlp(), comm), comm), ValueError, "wrapped already"),
    "a part": (lambda comm: DDP(nn.Sequential(DDP(mlp(), comm)), comm), ValueError, "wrapped already"),
    "cap": (lambda comm: DDP(mlp(), comm, bucket_cap_mb=-1), ValueError, "bucket_cap_mb"),
    "unused": (lambda comm: DDP(mlp(), comm, unused="drop"), ValueError, "error, zero, skip"),
    "gradient_as": (lambda comm: DDP(mlp(), comm, gradient_as="median"), ValueError, "mean, sum"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_cannot_be_wrapped_is_refused(name):
    program, kind, text = WRONG[name]
    with pytest.raises(RankFailed, match=text) as caught:
        spawn(program, 2)
    assert isinstance(caught.value.__cause__, kind)


def test_the_module_of_two_wrappers_is_refused_while_the_first_is_there():
    def program(comm):
        model = mlp()
        first = DDP(model, comm)
        with pytest.raises(ValueError, match="0.weight.* wrapped already"):
            DDP(model, comm)
        del first
        gc.collect()
        DDP(model, comm)
    spawn(program, 2)


def test_ranks_that_share_one_module_are_told_so():
    model = mlp()
    with pytest.raises(RankFailed, match=r"rank \d has wrapped this very module.*deepcopy"):
        spawn(lambda comm: DDP(model, comm), 2)
    spawn(lambda comm: DDP(copy.deepcopy(model), comm)(mg.ones(1, 4)).sum().backward(), 2)
    assert all(p.grad is None for p in model.parameters())


def test_a_wrapper_that_nobody_holds_still_averages_and_then_goes():
    def program(comm):
        model = nn.Linear(2, 1).double()
        ddp = DDP(model, comm)
        gone = weakref.ref(ddp.reducer)
        loss = ddp(mg.ones(1, 2, dtype=mg.float64) * comm.rank).sum()
        del ddp
        gc.collect()
        loss.backward()
        del loss
        gc.collect()
        assert gone() is None
        return model.weight.grad.tolist()
    assert spawn(program, 2).values == [[[0.5, 0.5]]] * 2


# ---- accumulation --------------------------------------------------------------------------------
@pytest.mark.parametrize("way", WAYS)
def test_no_sync_adds_up_and_then_all_is_averaged_once(way):
    rng = np.random.default_rng(1)
    xs = rng.standard_normal((3, 3, 1, 4))                   # (rank, micro-batch, example, feature)

    def program(comm):
        model = made("mlp")
        ddp = DDP(model, comm, **WAYS[way])
        for _ in range(3):
            ddp.zero_grad()
            with ddp.no_sync():
                before = comm.time
                for k in (0, 1):
                    ddp(mg.tensor(xs[comm.rank, k])).sum().backward()
            assert comm.time == before                       # nothing was sent
            local = [p.grad.detach().clone() for p in model.parameters()]
            ddp(mg.tensor(xs[comm.rank, 2])).sum().backward()
        return local, [p.grad for p in model.parameters()]

    def alone(inputs):
        model = made("mlp")
        sum(model(mg.tensor(x)).sum() for x in inputs).backward()
        return [p.grad for p in model.parameters()]
    for rank, (local, whole) in enumerate(spawn(program, 3).values):
        for a, b in zip(local, alone(xs[rank, :2])):
            close(a, b)
        for a, b in zip(whole, alone(xs.reshape(9, 1, 4))):
            close(a, b.detach() / 3)
