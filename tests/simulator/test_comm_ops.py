"""comm_ops: each gradient is the transposed map over all ranks, found by differences; and so is the gradient of it."""
from __future__ import annotations

import numpy as np
import pytest

import minigrad as mg
from simulator import comm_ops as ops
from simulator.errors import CommunicationError
from simulator.spawn import spawn

WORLDS = (1, 2, 3, 5)
EPS = 1e-5


def ring(x, comm):
    """To the right neighbour; a world of one keeps it."""
    if comm.world_size == 1:
        return x
    token = ops.send(x, comm, (comm.rank + 1) % comm.world_size, tag=3)
    return ops.joined(ops.recv(comm, (comm.rank - 1) % comm.world_size, tag=3, like=x), token)


def several(x, comm):
    """A piece for each rank, of rank + k rows."""
    pieces = ops.all_to_all([x[:k + 1] * (k + 1.0) for k in range(comm.world_size)], comm)
    return mg.cat(pieces)


SAME = lambda rank, world: (world + 2, 3)
RAGGED = lambda rank, world: (rank % 3, 2)
WIDE = lambda rank, world: (2, rank % 3, 2)
OPS = {
    "all_reduce": (ops.all_reduce, SAME),
    "all_reduce mean": (lambda x, c: ops.all_reduce(x, c, "mean"), SAME),
    "all_gather": (ops.all_gather, RAGGED),
    "all_gather dim 1": (lambda x, c: ops.all_gather(x, c, 1), WIDE),
    "reduce_scatter": (ops.reduce_scatter, SAME),
    "reduce_scatter mean": (lambda x, c: ops.reduce_scatter(x, c, op="mean"), SAME),
    "reduce_scatter dim 1": (lambda x, c: ops.reduce_scatter(x, c, -1), lambda r, n: (2, n + 1)),
    "reduce_scatter sizes": (lambda x, c: ops.reduce_scatter(x, c, sizes=[*[0] * (c.world_size - 1), c.world_size + 2]),
                             SAME),
    "all_to_all": (several, lambda r, n: (n, 2)),
    "exchange": (lambda x, c: ops.exchange(x, c, 2, 1), lambda r, n: (2, r % 3, n + 1)),
    "exchange rows": (lambda x, c: ops.exchange(x, c, 0, 0), lambda r, n: (n + r, 2)),
    "broadcast": (lambda x, c: ops.broadcast(x, c, c.world_size - 1), SAME),
    "reduce": (lambda x, c: ops.reduce(x, c, c.world_size - 1), SAME),
    "reduce mean": (lambda x, c: ops.reduce(x, c, 0, "mean"), SAME),
    "scatter": (lambda x, c: ops.scatter(x, c, c.world_size - 1), SAME),
    "scatter dim 1": (lambda x, c: ops.scatter(x, c, 0, 1, [c.world_size, *[1] * (c.world_size - 1)]),
                      lambda r, n: (2, 2 * n - 1)),
    "gather": (lambda x, c: ops.gather(x, c, c.world_size - 1), RAGGED),
    "gather dim 1": (lambda x, c: ops.gather(x, c, 0, 1), WIDE),
    "send and recv": (ring, SAME),
}


def inputs(shape, world: int, seed: int) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(shape(rank, world)) for rank in range(world)]


def agrees(of, slope: np.ndarray, xs: list[np.ndarray], comm, tol: float) -> None:
    """The sum over ranks of `of(its input)` changes along random directions of all inputs as the slopes of all say."""
    for seed in range(3):
        vs = inputs(lambda rank, world: xs[rank].shape, len(xs), 50 + seed)
        ahead, behind = (comm.all_reduce(of(mg.tensor(xs[comm.rank] + step * vs[comm.rank], requires_grad=True)).item())
                         for step in (EPS, -EPS))
        told = comm.all_reduce(slope.reshape(-1) @ vs[comm.rank].reshape(-1))
        size = comm.all_reduce(np.abs(slope * vs[comm.rank]).sum())
        assert abs((ahead - behind) / (2 * EPS) - told) <= tol * max(1.0, size)


def weighted(y: mg.Tensor, seed: int) -> mg.Tensor:
    """A loss that is not linear in y, with weights of its own."""
    w = mg.tensor(np.random.default_rng(seed).standard_normal(y.shape))
    return (w * (y + 0.5).sin()).sum()


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("name", OPS)
def test_gradient_is_the_transposed_map(name, world):
    op, shape = OPS[name]
    xs = inputs(shape, world, seed=world)

    def program(comm):
        loss = lambda x: weighted(op(x, comm), comm.rank)
        x = mg.tensor(xs[comm.rank], requires_grad=True)
        loss(x).backward()
        agrees(loss, x.grad.numpy(), xs, comm, 1e-7)           # of the differences: eps² and rounding / eps
    spawn(program, world, timeout=60)


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("name", OPS)
def test_a_gradient_has_a_gradient(name, world):
    op, shape = OPS[name]
    xs = inputs(shape, world, seed=world)

    def program(comm):
        def slope(x):
            (g,) = mg.autograd.grad(weighted(op(x, comm), comm.rank), [x], create_graph=True)
            return weighted(g, comm.rank + 100)
        x = mg.tensor(xs[comm.rank], requires_grad=True)
        slope(x).backward()
        agrees(slope, x.grad.numpy(), xs, comm, 1e-6)
    spawn(program, world, timeout=60)


# ---- regions -------------------------------------------------------------------------------------
def branches(x, comm, w):
    """sum over ranks of tanh(x wᵣ), of what all have alike."""
    return ops.reduce_from((ops.copy_to(x, comm) @ w[comm.rank]).tanh(), comm)


def pieces(x, comm, w):
    """Each works on its columns; all have the whole again."""
    mine = ops.scatter_to(x, comm, sizes=None)
    return ops.gather_from((mine * mine * float(comm.rank + 1)).sin(), comm)


def one_device(name, x, w):
    if name == "branches":
        return sum((x @ each).tanh() for each in w)
    sizes = [len(part) for part in np.array_split(np.arange(x.shape[1]), len(w))]
    factor = mg.tensor(np.repeat(np.arange(1.0, len(w) + 1), sizes))
    return (x * x * factor).sin()


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("name", ["branches", "pieces"])
def test_regions_are_one_device(name, world):
    """Value, gradient and gradient of the gradient, on each rank, as where one device does it all."""
    (start,) = inputs(lambda r, n: (2, 7), 1, seed=3)
    w = [mg.tensor(each) for each in inputs(lambda r, n: (7, 4), world, seed=4)]

    def twice(f):
        x = mg.tensor(start, requires_grad=True)
        y = f(x)
        (g,) = mg.autograd.grad(weighted(y, 5), [x], create_graph=True)
        weighted(g, 6).backward()
        return y.detach().numpy(), g.detach().numpy(), x.grad.numpy()

    region = {"branches": branches, "pieces": pieces}[name]
    want = twice(lambda x: one_device(name, x, w))
    for got in spawn(lambda comm: twice(lambda x: region(x, comm, w)), world, timeout=60).values:
        for a, b in zip(got, want):
            np.testing.assert_allclose(a, b, rtol=0, atol=64 * 2.0**-52 * np.abs(b).max())   # sums in another order


# ---- what is refused, and what ends a run that cannot go on --------------------------------------
@pytest.mark.parametrize("call, words", [
    (lambda x, c: ops.all_reduce(x, c, "max"), "op is one of sum, mean"),
    (lambda x, c: ops.all_gather(x, c, 2), r"dim=2, and a tensor of shape \(4, 3\)"),
    (lambda x, c: ops.all_gather(x.sum(), c), "x.reshape"),
    (lambda x, c: ops.reduce_scatter(x, c, sizes=[1, 2]), "add up to 4"),
    (lambda x, c: ops.scatter_to(x, c, 0, sizes=[4]), "one for each rank"),
    (lambda x, c: ops.send(x, c, 1 - c.rank, tag=-1), "tags are at least 0"),
    (lambda x, c: ops.exchange(x[:1], c, 0, 1), "cannot share the 1 of dimension 0"),
])
def test_refused_before_anything_moves(call, words):
    def program(comm):
        with pytest.raises(ValueError, match=words):
            call(mg.ones(4, 3, requires_grad=True), comm)
    assert spawn(program, 2, timeout=20).nbytes.sum() == 0


def test_a_forgotten_token_is_told():
    def program(comm):
        x = mg.ones(2, requires_grad=True)
        if comm.rank == 0:
            ops.send(x, comm, 1)
            x.sum().backward()                         # without the token
        else:
            ops.recv(comm, 0).sum().backward()
    with pytest.raises(CommunicationError, match="rank 1 to rank 0"):
        spawn(program, 2, timeout=20)


def test_without_grad_nothing_is_kept_and_integers_pass():
    def program(comm):
        x = mg.ones(2, requires_grad=True)
        with mg.no_grad():
            assert not ops.broadcast(x, comm).requires_grad
        assert not ops.broadcast(mg.tensor([1, 2]), comm).requires_grad
        assert not ops.all_gather(mg.ones(2), comm).requires_grad
        assert ops.all_gather(x, comm).requires_grad
    spawn(program, 2, timeout=20)


def test_gradients_go_the_way_back_in_bytes():
    """The gradient of send is a message the other way, as large; of all_gather a reduce_scatter of as many bytes."""
    def program(comm):
        x = mg.ones(8, requires_grad=True)
        if comm.rank == 0:
            ops.send(x, comm, 1).backward()
        else:
            ops.recv(comm, 0).sum().backward()
    assert spawn(program, 2, timeout=20).nbytes.tolist() == [[0, 32], [32, 0]]
