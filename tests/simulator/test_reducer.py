"""The reducer: which gradients it averages, and when; what took no part, came twice or too late is named, on which rank
and which parameter, and never waited for."""
from __future__ import annotations

import gc
import threading
import weakref

import numpy as np
import pytest

import minigrad as mg
from minigrad import nn
from minigrad.checkpoint import checkpoint
from simulator import comm_ops
from simulator.errors import CollectiveMismatch, RankFailed
from simulator.spawn import spawn
from simulator.strategies import DDP


def mlp():
    return nn.Sequential(nn.Linear(4, 9), nn.Tanh(), nn.Linear(9, 5), nn.Tanh(), nn.Linear(5, 2))


# ---- several forwards and backwards ---------------------------------------------------------------
def test_backwards_without_zero_grad_add_up_averages():
    """The mean of (an equal part + an own part) is the equal part + the mean of the own ones."""
    def program(comm):
        model = nn.Linear(2, 1).double()
        ddp = DDP(model, comm)
        for k in range(3):
            ddp(mg.ones(1, 2, dtype=mg.float64) * (comm.rank + k)).sum().backward()
        return model.weight.grad.tolist()
    assert spawn(program, 2).values == [[[4.5, 4.5]]] * 2


@pytest.mark.parametrize("overlap", (True, False))
def test_two_forwards_one_backward_and_one_forward_two_backwards(overlap):
    x = mg.ones(1, 2, dtype=mg.float64)

    def program(comm):
        model = nn.Linear(2, 1).double()
        ddp = DDP(model, comm, overlap=overlap)
        (ddp(x * comm.rank) + ddp(x * 2)).sum().backward()
        first = model.weight.grad.tolist()
        y = ddp(x * comm.rank).sum()
        y.backward(retain_graph=True)
        y.backward()
        return first, model.weight.grad.tolist()
    for first, second in spawn(program, 2).values:
        assert first == [[2.5, 2.5]] and second == [[3.5, 3.5]]


class Heads(nn.Module):
    def __init__(self):
        self.a, self.b, self.c = (nn.Linear(2, 1).double() for _ in range(3))

    def forward(self, x, names):
        return tuple(getattr(self, name)(x) for name in names)


X = mg.tensor([[1.0, 2.0]], dtype=mg.float64)


def test_two_forwards_of_different_parts_and_one_backward():
    def program(comm):
        ddp = DDP(Heads(), comm, bucket_cap_mb=0, find_unused_parameters=True)
        (ddp(X * comm.rank, "a")[0] + ddp(X, "c")[0]).sum().backward()
        return ddp.module.a.weight.grad.tolist(), ddp.module.b.weight.grad
    assert spawn(program, 2).values == [([[0.5, 1.0]], None)] * 2


def test_two_forwards_of_different_parts_and_a_backward_for_each():
    def program(comm):
        ddp = DDP(Heads(), comm, bucket_cap_mb=0)
        first, second = sum(ddp(X * comm.rank, "ab")), ddp(X, "c")[0]
        second.sum().backward()
        first.sum().backward()
        return ddp.module.a.weight.grad.tolist()
    assert spawn(program, 2).values == [[[0.5, 1.0]]] * 2


def test_several_backwards_of_one_forward_may_share_the_parameters_among_them():
    def program(comm):
        ddp = DDP(Heads(), comm, bucket_cap_mb=0)
        for _ in range(2):
            ddp.zero_grad()
            for y in ddp(X * (1 + comm.rank), "abc"):
                y.sum().backward()
        return [p.grad.tolist() for p in (ddp.module.a.weight, ddp.module.b.weight, ddp.module.c.bias)]
    assert spawn(program, 2).values == [[[[1.5, 3.0]], [[1.5, 3.0]], [1.0]]] * 2


# ---- parameters that took no part ----------------------------------------------------------------
def test_without_looking_for_them_unused_parameters_are_named_in_the_same_step():
    def program(comm):
        ddp = DDP(Heads(), comm)
        ddp(X, "ab")[0].sum().backward()
    with pytest.raises(RankFailed, match=r"rank \d of 2: parameters c.weight \(1, 2\), c.bias \(1,\) took no part.*"
                                         "find_unused_parameters=True"):
        spawn(program, 2)


def test_those_that_might_have_come_are_named_at_the_next_forward():
    def program(comm):
        ddp = DDP(Heads(), comm)
        outs = ddp(X, "abc")
        outs[0].sum().backward()
        outs[2].sum().backward()
        ddp(X, "abc")
    with pytest.raises(RankFailed, match=r"parameters b.weight \(1, 2\), b.bias \(1,\) have no gradient"):
        spawn(program, 2)


@pytest.mark.parametrize("cap", (0, 25))
def test_a_branch_that_depends_on_the_rank_names_rank_and_parameters(cap):
    def program(comm):
        ddp = DDP(Heads(), comm, bucket_cap_mb=cap)
        sum(ddp(X, "abc" if comm.rank != 1 else "ac")).sum().backward()
    with pytest.raises(RankFailed, match=r"rank 1 of 3: parameters b.weight \(1, 2\), b.bias \(1,\) took no part"):
        spawn(program, 3)


def test_a_parameter_frozen_after_wrapping_is_named_as_such():
    def program(comm):
        ddp = DDP(mlp(), comm)
        ddp.module[2].requires_grad_(False)
        ddp(mg.ones(1, 4)).sum().backward()
    with pytest.raises(RankFailed, match=r"frozen \(2.weight, 2.bias\) after the module was wrapped"):
        spawn(program, 2)


@pytest.mark.parametrize("how", ({}, {"overlap": False}, {"bucket_cap_mb": 0}))
@pytest.mark.parametrize("unused", (None, "skip", "zero"))
def test_unused_parameters_by_choice(unused, how):
    def program(comm):
        ddp = DDP(Heads(), comm, unused=unused, find_unused_parameters=unused is None, **how)
        sum(ddp(X, "ab"[comm.rank])).sum().backward()        # a on rank 0, b on rank 1, c nowhere
        return [None if p.grad is None else p.grad.tolist() for p in
                (ddp.module.a.weight, ddp.module.b.weight, ddp.module.c.weight)]
    last = [[0.0, 0.0]] if unused == "zero" else None
    assert spawn(program, 2).values == [[[[0.5, 1.0]], [[0.5, 1.0]], last]] * 2


def test_those_unused_everywhere_can_be_an_error():
    def program(comm):
        ddp = DDP(Heads(), comm, find_unused_parameters=True, unused="error")
        sum(ddp(X, "ab"[comm.rank])).sum().backward()
    result = spawn(program, 2, check=False)
    assert sorted(result.failures) == [0, 1]
    assert all("c.weight (1, 2), c.bias (1,) took part in the loss on no rank" in str(e)
               for e in result.failures.values())


def test_what_was_used_within_no_sync_counts():
    def program(comm):
        ddp = DDP(Heads(), comm, find_unused_parameters=True)
        with ddp.no_sync():
            sum(ddp(X * (1 + comm.rank), "c")).sum().backward()
        sum(ddp(X, "a")).sum().backward()
        return ddp.module.b.weight.grad, ddp.module.c.weight.grad.tolist()
    assert spawn(program, 2).values == [(None, [[1.5, 3.0]])] * 2


def test_a_gradient_kept_from_the_step_before_stays_where_a_rank_uses_it_no_more():
    def program(comm):
        ddp = DDP(Heads(), comm, find_unused_parameters=True)
        sum(ddp(X, "a")).sum().backward()
        sum(ddp(X * 4, "a" if comm.rank else "b")).sum().backward()
        return ddp.module.a.weight.grad.tolist()
    assert spawn(program, 2).values == [[[3.0, 6.0]]] * 2


def test_a_parameter_used_outside_of_forward():
    def program(comm, overlap):
        ddp = DDP(Heads(), comm, find_unused_parameters=True, overlap=overlap, bucket_cap_mb=0)
        outside = ddp.module.c.weight.sum() * comm.rank      # the oldest of the graph comes last in backward
        (ddp(X, "a")[0].sum() + outside).backward()
        return ddp.module.c.weight.grad.tolist()
    assert spawn(program, 2, False).values == [[[0.5, 0.5]]] * 2
    with pytest.raises(RankFailed, match="c.weight got a gradient after its bucket had gone.*outside of forward"):
        spawn(program, 2, True)


@pytest.mark.parametrize("find_unused", (True, False))
def test_outputs_in_an_object_of_the_users_own(find_unused):
    """Nobody sees the graph then, so what took no part is known when backward is over."""
    class Out:
        def __init__(self, y):
            self.y = y

    def program(comm):
        ddp = DDP(Heads(), comm, find_unused_parameters=find_unused, bucket_cap_mb=0)
        forward = ddp.module.forward
        ddp.module.forward = lambda x, names: Out(sum(forward(x, names)))
        ddp(X * (1 + comm.rank), "a" if find_unused else "abc").y.sum().backward()
        return ddp.module.a.weight.grad.tolist()
    assert spawn(program, 2).values == [[[1.5, 3.0]]] * 2


# ---- other moments -------------------------------------------------------------------------------
def test_a_shared_parameter_whose_bucket_has_gone_is_refused():
    class Trunk(nn.Module):
        def __init__(self):
            self.trunk, self.a, self.b = (nn.Linear(2, 2) for _ in range(3))

        def forward(self, x):
            h = self.trunk(x)
            return self.a(h), self.b(h)

    def program(comm):
        ddp = DDP(Trunk(), comm, bucket_cap_mb=0)
        for _ in range(2):
            ya, yb = ddp(mg.ones(1, 2))
            (ya.sum() + yb.sum()).backward()
        ya, yb = ddp(mg.ones(1, 2))
        yb.sum().backward(retain_graph=True)
        ya.sum().backward()
    with pytest.raises(RankFailed, match="trunk.* got a gradient after its bucket had gone. Call backward once"):
        spawn(program, 2)


def test_gradients_of_gradients_are_refused():
    def program(comm):
        DDP(mlp(), comm)(mg.ones(1, 4)).sum().backward(create_graph=True)
    with pytest.raises(RankFailed, match="create_graph=True"):
        spawn(program, 2)


def test_a_backward_that_raises_before_anything_went_leaves_the_next_step_whole():
    def program(comm):
        model = nn.Linear(2, 1).double()
        ddp = DDP(model, comm)
        h = ddp(X * comm.rank)
        handle = model.bias.register_hook(lambda g: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            h.sum().backward()
        handle.remove()
        ddp.zero_grad()
        ddp(X * comm.rank).sum().backward()
        return model.weight.grad.tolist()
    assert spawn(program, 2).values == [[[0.5, 1.0]]] * 2


def test_evaluation_and_no_grad_send_no_gradients():
    def program(comm):
        ddp = DDP(mlp(), comm)
        with mg.no_grad():
            if comm.rank == 0:
                ddp.eval()(mg.ones(1, 4))                    # without buffers no other rank is needed
        ddp.train()(mg.ones(1, 4)).sum().backward()
    spawn(program, 2)


def test_deferred_gradients_are_averaged_when_the_last_is_there():
    def program(comm):
        model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1)).double()
        nn.init.ones_(model[1].weight)
        ddp = DDP(model, comm)
        params = list(model.parameters())
        for work in mg.autograd.backward(ddp(X * (1 + comm.rank)).sum(), defer=params):
            work()
        return model[0].weight.grad.tolist()
    assert spawn(program, 2).values == [[[1.5, 3.0], [1.5, 3.0]]] * 2


def test_checkpointed_forward_sends_nothing_twice():
    def program(comm, inside):
        mg.manual_seed(0)
        model = nn.Sequential(mlp(), nn.BatchNorm1d(2)).double()
        body = DDP(model, comm, bucket_cap_mb=3e-4)
        x = mg.ones(2, 4, dtype=mg.float64) * mg.tensor([[1.0], [2.0 + comm.rank]], dtype=mg.float64)
        (checkpoint(body, x) if inside else body(x)).pow(3).sum().backward()
        return [p.grad.numpy() for p in model.parameters()]
    again, once = spawn(program, 2, True), spawn(program, 2, False)
    for a, b in zip(again.values, once.values):
        assert all(np.array_equal(x, y) for x, y in zip(a, b))
    assert (again.nbytes == once.nbytes).all()


def test_ranks_that_do_not_make_the_same_steps_are_told():
    def program(comm):
        ddp = DDP(mlp(), comm)
        for _ in range(2 + comm.rank):
            ddp(mg.ones(1, 4)).sum().backward()
    with pytest.raises(CollectiveMismatch, match="ended without making it"):
        spawn(program, 2, timeout=20)
    assert not [t for t in threading.enumerate() if t.name.startswith("minigrad rank")]


def test_other_collectives_in_the_middle_of_backward_do_not_meet_buckets():
    """Rank 1 uses a layer before the all-reduce, the others after it: its buckets go at another moment."""
    class Around(nn.Module):
        def __init__(self, comm):
            self.t, self.last, self.comm = nn.Linear(2, 2), nn.Linear(2, 1), comm

        def forward(self, x):
            before = self.comm.rank == 1
            x = comm_ops.all_reduce(self.t(x) if before else x * 1.0, self.comm)
            return self.last(x if before else self.t(x))

    def program(comm):
        ddp = DDP(Around(comm), comm, bucket_cap_mb=0)
        for _ in range(2):
            ddp(mg.ones(1, 2, requires_grad=True)).sum().backward()
    spawn(program, 3, timeout=20)



# ---- any program ---------------------------------------------------------------------------------
LAYERS = 5


def drawn_program(seed):
    """Steps of (zero_grad first?, averaged?, for each rank the layers it uses, in order)."""
    rng = np.random.default_rng(seed)
    world = int(rng.integers(1, 5))
    use = lambda: rng.choice(LAYERS, rng.integers(1, LAYERS + 1)).tolist()
    return world, [(rng.random() < 0.6, rng.random() < 0.7, [use() for _ in range(world)]) for _ in range(5)]


def layers():
    mg.manual_seed(1)
    return nn.ModuleList([nn.Linear(2, 2, bias=False) for _ in range(LAYERS)]).double()


class InTurn(nn.Module):
    def __init__(self):
        self.layers = layers()

    def forward(self, x, use):
        for k in use:
            x = self.layers[k](x).tanh()
        return x


def local_gradients(rank, use):
    model = InTurn()
    model(X * (1 + rank), use).sum().backward()
    return {k: p.grad.numpy() for k, p in enumerate(model.parameters()) if p.grad is not None}


def expected(world, steps):
    """After each step, of each rank, its gradients: own ones add up, and those that any rank used are averaged."""
    grads, used, found = [{} for _ in range(world)], set(), []
    for zero, sync, uses in steps:
        for rank, own in enumerate(grads):
            if zero:
                own.clear()
            for k, g in local_gradients(rank, uses[rank]).items():
                own[k] = own.get(k, 0) + g
            used |= set(uses[rank])
        if sync:
            for k in used:
                mean = sum((own.get(k, np.zeros((2, 2))) for own in grads), np.zeros((2, 2))) / world
                for own in grads:
                    own[k] = mean
            used = set()
        found.append([dict(own) for own in grads])
    return found


@pytest.mark.parametrize("how", ({}, {"bucket_cap_mb": 0}, {"bucket_cap_mb": 6e-5}, {"overlap": False}), ids=str)
@pytest.mark.parametrize("seed", range(12))
def test_gradients_of_any_program_are_what_they_should_be(seed, how):
    world, steps = drawn_program(seed)

    def program(comm):
        ddp, found = DDP(InTurn(), comm, find_unused_parameters=True, **how), []
        for zero, sync, uses in steps:
            if zero:
                ddp.zero_grad()
            ddp.require_backward_grad_sync = sync
            ddp(X * (1 + comm.rank), uses[comm.rank]).sum().backward()
            found.append([None if p.grad is None else p.grad.numpy().copy() for p in ddp.module.parameters()])
        return found
    want = expected(world, steps)
    for rank, found in enumerate(spawn(program, world, timeout=20).values):
        for grads, after in zip(found, want):
            assert [k for k, g in enumerate(grads) if g is not None] == sorted(after[rank])
            for k, g in after[rank].items():
                np.testing.assert_allclose(grads[k], g, rtol=0, atol=1e-14)


def test_nothing_is_left_of_a_run_even_before_the_garbage_is_collected():
    left = []

    def program(comm):
        ddp = DDP(mlp(), comm, bucket_cap_mb=0)
        for _ in range(2):
            ddp(mg.ones(1, 4)).sum().backward()
        left.extend(map(weakref.ref, (ddp, ddp.reducer, ddp.module[0].weight)))
    gc.disable()
    try:
        spawn(program, 2)
        assert [each() for each in left] == [None] * 6
    finally:
        gc.enable()
