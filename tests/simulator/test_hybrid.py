"""Several strategies on one mesh: data parallel along one axis, the model cut along another, are one device."""
from __future__ import annotations

import numpy as np
import pytest

import minigrad as mg
from minigrad import nn
from minigrad.nn import functional as F
from simulator.mesh import Mesh
from simulator.spawn import spawn
from simulator.strategies import DDP, ExpertParallelMoE, gather_state, parallelize, vocab_parallel_cross_entropy


def gpt() -> nn.CharGPT:
    mg.manual_seed(1)
    return nn.CharGPT(vocab_size=7, block_size=6, n_layer=2, n_head=4, n_embd=8).double()


def batch() -> tuple[np.ndarray, np.ndarray]:
    tokens = np.random.default_rng(2).integers(0, 7, (12, 7))
    return tokens[:, :-1], tokens[:, 1:]


def trained(model: nn.Module, loss_of, steps: int = 3) -> None:
    optimizer = mg.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    for _ in range(steps):
        optimizer.zero_grad()
        loss_of(model).backward()
        optimizer.step()


@pytest.mark.parametrize("dp, tp", [(1, 2), (2, 2), (3, 2), (2, 3)])
@pytest.mark.parametrize("sequence", [False, True], ids=["", "sequence"])
def test_data_and_tensor_parallel(dp, tp, sequence):
    x, y = batch()
    whole = gpt()
    trained(whole, lambda m: F.cross_entropy(m(mg.tensor(x)).reshape(-1, 7), mg.tensor(y).reshape(-1)))

    def program(comm):
        mesh = Mesh(comm, dp=dp, tp=tp)
        rows = np.array_split(np.arange(12), dp)[mesh.place["dp"]]
        model = DDP(parallelize(gpt(), mesh["tp"], sequence=sequence), mesh["dp"])
        trained(model, lambda m: vocab_parallel_cross_entropy(m(mg.tensor(x[rows])), mg.tensor(y[rows]), mesh["tp"]))
        return gather_state(model.module)
    want = whole.state_dict()
    for state in spawn(program, dp * tp, timeout=60).values:
        assert state.keys() == want.keys()
        for name in want:                                    # three steps of sums in another order
            np.testing.assert_allclose(state[name].numpy(), want[name].numpy(), rtol=0, atol=1e-13, err_msg=name)


def test_experts_along_the_axis_of_data():
    """Each rank has tokens and experts of its own; what all hold is averaged elsewhere than what each holds."""
    x = np.random.default_rng(3).standard_normal((8, 4))

    def made():
        mg.manual_seed(2)
        return nn.Linear(4, 4).double(), nn.MoE(4, 6, 4).double()

    def loss_of(first, moe, rows):
        out, balance = moe(first(mg.tensor(x[rows])).tanh())
        return (out ** 2).sum() + balance
    first, moe = made()
    loss_of(first, moe, slice(None)).backward()

    def program(comm):
        own, mixture = made()
        own, mixture = DDP(own, comm, gradient_as="sum"), ExpertParallelMoE(mixture, comm)
        loss_of(own, mixture, slice(2 * comm.rank, 2 * comm.rank + 2)).backward()
        return own.module.weight.grad.numpy(), mixture.gate.weight.grad.numpy(), mixture.w1.grad.numpy()
    got = spawn(program, 4, timeout=20).values
    for dense, gate, _ in got:
        np.testing.assert_allclose(dense, first.weight.grad.numpy(), rtol=0, atol=1e-14)
        np.testing.assert_allclose(gate, moe.gate.weight.grad.numpy(), rtol=0, atol=1e-14)
    np.testing.assert_allclose(np.concatenate([w1 for *_, w1 in got]), moe.w1.grad.numpy(), rtol=0, atol=1e-14)


def test_what_is_cut_is_not_averaged():
    """Experts of ranks are different ones: a mean of their gradients, or rank 0's weights for all, would be wrong."""
    def program(comm):
        mesh = Mesh(comm, dp=2, ep=2)
        model = nn.Sequential(nn.Linear(4, 4), ExpertParallelMoE(nn.MoE(4, 6, 4), mesh["ep"]))
        with pytest.raises(ValueError, match=f"1.w1 is cut among ranks {', '.join(map(str, mesh['ep'].ranks))}"):
            DDP(model, comm)
        DDP(model, mesh["dp"])
    spawn(program, 4, timeout=20)


@pytest.mark.parametrize("timed", [False, True], ids=["", "timed"])
def test_on_simulated_devices(timed):
    """Nothing is read on the host by accident, and the numbers are those of the host."""
    x, y = (mg.tensor(a[:2]) for a in batch())

    def program(comm):
        model = parallelize(gpt().float().to(comm.device), comm, sequence=True)
        loss = vocab_parallel_cross_entropy(model(x.to(comm.device)), y.to(comm.device), comm)
        mg.manual_seed(2)
        moe = ExpertParallelMoE(nn.MoE(4, 6, 4).to(comm.device), comm)
        out, balance = moe(mg.ones(3, 4, device=comm.device) * (comm.rank + 1.0))
        (loss + (out * out).sum() + balance).backward()
        assert comm.time > 0 and str(model.wte.weight.grad.device) == str(moe.w1.grad.device) == comm.device
        return [t.cpu().detach().numpy() for t in (loss, out, moe.w1.grad, gather_state(model)["h.1.mlp.c_fc.weight"])]
    host, device = (spawn(program, 2, device=kind, timed=timed, timeout=60).values for kind in ("cpu", "sim"))
    for a, b in zip(host, device):
        for left, right in zip(a, b):
            np.testing.assert_allclose(left, right, rtol=1e-5, atol=1e-6)            # float32, kernels of another kind
