"""Parameter servers: in step they are one device on the joined batch; out of step, every update is what the log says it
is, and no worker is further ahead than it may be."""
from __future__ import annotations

import numpy as np
import pytest

import minigrad as mg
from minigrad import nn
from simulator.cluster import Cluster, uniform
from simulator.device import device
from simulator.errors import CollectiveMismatch, RankFailed
from simulator.shapes import switch
from simulator.spawn import spawn
from simulator.strategies import History, collect, parameter_server, take_role
from simulator.strategies.pieces import cut_over
from simulator.strategies.servers import Server
from simulator.topology import Link

EPS = np.finfo(np.float64).eps
STEPS, ROWS = 4, 11


class Odd(nn.Module):
    """A parameter without dimensions, one that is used twice, one that only some batches use, a frozen one."""

    def __init__(self):
        self.scale = nn.Parameter(mg.tensor(1.5))
        self.tied, self.sometimes, self.fixed = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)
        self.fixed.requires_grad_(False)
        self.out = nn.Linear(4, 2)

    def forward(self, x):
        h = self.fixed(self.tied(self.tied(x).tanh()).tanh())
        if float(x[0, 0].item()) > 0:
            h = h + self.sometimes(h)
        return self.out(h * self.scale)


MODELS = {"mlp": lambda: nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2)), "odd": Odd}
OPTIMIZERS = {"momentum": lambda ps: mg.optim.SGD(ps, lr=0.05, momentum=0.8, weight_decay=0.01),
              "adam": lambda ps: mg.optim.Adam(ps, lr=0.02)}


def made(name="mlp"):
    mg.manual_seed(3)
    return MODELS[name]().double()


def sgd(ps):
    return mg.optim.SGD(ps, lr=0.1)


def data(seed=0, rows=ROWS, steps=STEPS):
    rng = np.random.default_rng(seed)
    return [(mg.tensor(rng.standard_normal((rows, 4))), mg.tensor(rng.standard_normal((rows, 2))))
            for _ in range(steps)]


def loss_of(model, batch):
    x, y = batch
    return 3 * ((model(x) - y) ** 2).mean()


def trained(params):
    return [p.detach().numpy().copy() for p in params if p.requires_grad]


def close(got, want):
    for a, b in zip(got, want, strict=True):
        assert a.shape == b.shape and a.dtype == b.dtype
        assert np.abs(a - b).max(initial=0) <= 64 * EPS * max(np.abs(b).max(initial=0), 1.0)


def same(got, want):
    for a, b in zip(got, want, strict=True):
        np.testing.assert_array_equal(a, b)


def one_device(model, optimizer_of, batches):
    optimizer = optimizer_of([p for p in model.parameters() if p.requires_grad])
    for batch in batches:
        optimizer.zero_grad()
        loss_of(model, batch).backward()
        optimizer.step()
    return trained(model.parameters())


def served(comm, name, optimizer_of, batches, speeds=None, **how):
    """Train, each step of a worker taking 1 / its speed; what the log says and the parameters."""
    model = made(name)

    def timed(model, batch):
        number = comm.rank - how.get("servers", 1)
        comm.compute((1 / speeds[number] if speeds else 1) * 1e-3)
        return loss_of(model, batch)
    history = parameter_server(comm, model, optimizer_of, timed, batches, **how)
    return history, trained(model.parameters())


# ---- in step -------------------------------------------------------------------------------------
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("servers, workers", [(1, 1), (1, 2), (2, 3), (3, 1), (2, 5)])
@pytest.mark.parametrize("name", MODELS)
def test_synchronous_is_one_device_on_the_joined_batch(name, servers, workers, optimizer):
    joined = data()
    if name == "odd":                                        # all workers take one branch: else it is no one batch
        joined = [(x.abs(), y) for x, y in joined]

    def batches(worker, count):
        return [(x[worker::count], y[worker::count]) for x, y in joined]
    result = spawn(served, servers + workers, name, OPTIMIZERS[optimizer], batches, servers=servers,
                   examples_of=lambda batch: batch[0].shape[0])
    want = one_device(made(name), OPTIMIZERS[optimizer], joined)
    for _, got in result.values:
        close(got, want)
    assert result.values[0][0].staleness == {0: STEPS}


def test_a_parameter_that_no_worker_used_is_left_alone():
    joined = [(-x.abs(), y) for x, y in data()]              # nobody uses `sometimes`; weight decay would move it

    def batches(worker, count):
        return [(x[worker::count], y[worker::count]) for x, y in joined]
    result = spawn(served, 4, "odd", OPTIMIZERS["momentum"], batches, servers=2,
                   examples_of=lambda batch: batch[0].shape[0])
    close(result.values[3][1], one_device(made("odd"), OPTIMIZERS["momentum"], joined))


@pytest.mark.parametrize("mode", [{"mode": "sync"}, {"mode": "async"}, {"mode": "stale", "staleness": 0},
                                  {"mode": "stale", "staleness": 2}])
@pytest.mark.parametrize("servers", [1, 2])
def test_one_worker_is_one_device_to_the_last_bit(mode, servers):
    batches = data()
    result = spawn(served, servers + 1, "odd", OPTIMIZERS["adam"], lambda worker, count: batches, servers=servers,
                   **mode)
    for _, got in result.values:
        same(got, one_device(made("odd"), OPTIMIZERS["adam"], batches))
    assert result.values[0][0].staleness == {0: STEPS}


def test_who_has_fewer_batches_is_waited_for_no_more():
    joined = data(rows=6)

    def batches(worker, count):                              # workers 0, 1, 2 have 4, 3 and 1 batches
        return [(x[2 * worker:2 * worker + 2], y[2 * worker:2 * worker + 2])
                for x, y in joined[:(4, 3, 1)[worker]]]
    result = spawn(served, 5, "mlp", sgd, batches, servers=2)
    left = [(6,), (4,), (4,), (2,)]
    want = one_device(made(), sgd, [(x[:n], y[:n]) for (x, y), (n,) in zip(joined, left)])
    for _, got in result.values:
        close(got, want)


def test_a_worker_without_any_batch_and_one_that_reads_nothing_new():
    batches = data()
    result = spawn(served, 4, "mlp", sgd, lambda worker, count: batches if worker == 1 else [])
    same(result.values[2][1], one_device(made(), sgd, batches))
    result = spawn(served, 3, "mlp", sgd, lambda worker, count: [])
    same(result.values[2][1], trained(made().parameters()))


def test_buffers_and_frozen_values_begin_as_those_of_rank_0():
    def program(comm):
        mg.manual_seed(comm.rank)
        model = nn.Sequential(Odd(), nn.BatchNorm1d(2)).double()
        role = take_role(comm, model, sgd)
        (role.serve if isinstance(role, Server) else role.done)()
        collect(role, model)
        return [t.detach().numpy() for t in model.state_dict().values()]
    first, *others = spawn(program, 3).values
    for other in others:
        same(other, first)


# ---- out of step: the log is a program of one device ---------------------------------------------
def replayed(histories, workers, aware, name="mlp"):
    """The parameters that the logs of the servers say: each update made of what its worker had read."""
    servers = len(histories)
    model = made(name)
    params = [p for p in model.parameters() if p.requires_grad]
    pieces = cut_over(params, servers)
    own = [[nn.Parameter(mg.tensor(piece.of(params[piece.number].detach().numpy()).copy())) for piece in each]
           for each in pieces]
    optimizers = [sgd(each) for each in own]
    versions = [[[p.detach().numpy().copy() for p in each]] for each in own]
    taken = dict.fromkeys(workers, 0)
    logs = [{w: [u for u in enumerate(h.updates) if u[1].worker == w] for w in workers} for h in histories]
    queue = sorted((u.time_s, s, k) for s, h in enumerate(histories) for k, u in enumerate(h.updates))
    gradients = {}
    for _, s, k in queue:
        update = histories[s].updates[k]
        w = update.worker
        turn = next(i for i, (place, _) in enumerate(logs[s][w]) if place == k)
        if (w, turn) not in gradients:                       # read all servers' rows at the versions of their logs
            for other in range(servers):
                place, theirs = logs[other][w][turn]
                for piece, rows in zip(pieces[other], versions[other][place - theirs.staleness]):
                    target = params[piece.number].detach().numpy()
                    piece.of(target)[...] = rows
            model.zero_grad()
            loss_of(model, workers[w][turn]).backward()
            gradients[w, turn] = [p.grad.numpy().copy() for p in params]
            taken[w] += 1
        optimizer = optimizers[s]
        for piece, p in zip(pieces[s], own[s]):
            p.grad = mg.tensor(piece.of(gradients[w, turn][piece.number]).copy())
        lr = 0.1 / max(1, update.staleness) if aware else 0.1
        optimizer.param_groups[0]["lr"] = lr
        optimizer.step()
        versions[s].append([p.detach().numpy().copy() for p in own[s]])
    for s in range(servers):
        for piece, rows in zip(pieces[s], versions[s][-1]):
            piece.of(params[piece.number].detach().numpy())[...] = rows
    return trained(params)


def random_run(seed):
    """Workers of random speeds with random numbers of batches, out of step."""
    rng = np.random.default_rng(seed)
    servers, count = int(rng.integers(1, 3)), int(rng.integers(2, 5))
    bound = None if seed % 3 == 0 else int(rng.integers(0, 4))
    batches = [data(seed=10 * seed + w, rows=3, steps=int(rng.integers(0 if w else 1, 7))) for w in range(count)]
    how = {"servers": servers, "aware": bool(seed % 2), "mode": "async" if bound is None else "stale",
           "staleness": bound}
    speeds = (rng.integers(1, 40, count) / 10).tolist()
    machine = uniform(servers + count)
    if seed % 4 > 1:                                         # wires that workers share
        machine = machine.with_(topology=switch(servers + count, Link("wire", 1e6, 1e-6)))
    result = spawn(served, None, "mlp", sgd, lambda worker, workers: batches[worker], speeds, cluster=machine, **how)
    return result, batches, how


@pytest.mark.parametrize("seed", range(12))
def test_out_of_step_every_update_is_what_the_log_says(seed):
    result, batches, how = random_run(seed)
    servers = how["servers"]
    histories = [history for history, _ in result.values[:servers]]
    workers = {servers + w: each for w, each in enumerate(batches)}
    for history in histories:
        assert [u.worker for u in history.updates].count(servers) == len(batches[0])
        assert sum(history.staleness.values()) == len(history.updates) == sum(map(len, batches))
        times = [u.time_s for u in history.updates]
        assert times == sorted(times)
    want = replayed(histories, workers, how["aware"])
    for _, got in result.values:
        same(got, want)


@pytest.mark.parametrize("seed", range(12))
def test_no_worker_is_further_ahead_than_its_bound(seed):
    result, batches, how = random_run(seed)
    bound = how["staleness"]
    for history, _ in result.values[:how["servers"]]:
        assert len(history.grants) == sum(map(len, batches))
        if bound is not None:
            assert all(g.slowest is None or g.clock - g.slowest <= bound for g in history.grants)
            assert max(history.staleness) <= (len(batches) - 1) * (2 * bound + 1)
    again, _, _ = random_run(seed)
    assert again.time_s == result.time_s and again.values[0][0] == result.values[0][0]


def far(result):
    return max(g.clock - g.slowest for g in result.values[0][0].grants if g.slowest is not None)


def test_the_bound_is_reached_and_a_large_one_is_none():
    def run(**how):
        batches = data(rows=2, steps=8)
        return spawn(served, 4, "mlp", sgd, lambda worker, count: batches, [1, 1, 0.1], **how)
    runs = {bound: run(mode="stale", staleness=bound) for bound in (0, 1, 3, 50)}
    free = run(mode="async")
    assert [far(r) for r in runs.values()] == [0, 1, 3, far(free)] and far(free) > 3
    assert runs[50].time_s == free.time_s and runs[50].values[0][0] == free.values[0][0]
    done = [max(r.values[1][0].losses)[0] for r in runs.values()]      # the fast are done earlier, the looser the bound
    assert done == sorted(done, reverse=True) and done[0] > 3 * done[-1]


def test_a_slow_worker_holds_up_those_in_step_and_not_the_others():
    def run(mode):
        batches = data(rows=2, steps=6)
        result = spawn(served, 4, "mlp", sgd, lambda worker, count: batches, [1, 1, 0.25], mode=mode)
        return [result.values[worker][0].losses[-1][0] for worker in (1, 2, 3)]
    sync, free = run("sync"), run("async")
    assert sync[0] == pytest.approx(5 * 4e-3 + 1e-3, rel=0.02) and sync[2] == pytest.approx(6 * 4e-3, rel=0.02)
    assert free[0] == pytest.approx(6e-3, rel=0.02) and free[2] == pytest.approx(6 * 4e-3, rel=0.02)


def test_a_late_update_is_made_with_a_smaller_step():
    batches = data(rows=2, steps=8)

    def run(aware):
        return spawn(served, 4, "mlp", sgd, lambda worker, count: batches, [1, 0.9, 0.11], mode="async", aware=aware)
    aware, plain = run(True).values[0], run(False).values[0]
    assert aware[0].updates == plain[0].updates and max(aware[0].staleness) > 1
    assert any(np.abs(a - b).max() > 1e-6 for a, b in zip(aware[1], plain[1]))


def test_bytes_of_all_parameters():
    batches = data()
    result = spawn(served, 4, "mlp", sgd, lambda worker, count: batches)
    size, header = 8 * (4 * 5 + 5 + 5 * 2 + 2), 8 * (3 + 4)
    assert [int(n) for n in result.nbytes[1:, 0]] == [STEPS * (2 * header + size) + header] * 3
    ends = 2 * 3 * size                                      # two broadcasts to three ranks, whoever passes them on
    assert result.nbytes[0, 1:].sum() + result.nbytes[1:, 1:].sum() == ends + 3 * STEPS * size


# ---- time ----------------------------------------------------------------------------------------
def rounds_s(servers, workers, rounds):
    """Seconds that so many rounds in step take, when nothing is computed."""
    def program(comm):
        model = nn.Linear(256, 240, bias=False)
        role = take_role(comm, model, sgd, servers=servers)
        if isinstance(role, Server):
            return role.serve()
        before = comm.time
        for _ in range(rounds):
            role.pull()
            model.weight.grad = mg.ones(240, 256)
            role.push()
        role.pull()
        role.done()
        return comm.time - before
    net = switch(servers + workers, Link("wire", 1e9, 1e-8))
    return max(spawn(program, cluster=Cluster((device("A100"),) * (servers + workers), net)).values[servers:])


@pytest.mark.parametrize("servers, workers", [(1, 1), (1, 2), (2, 2), (1, 4), (2, 4), (4, 4), (2, 6)])
def test_a_round_takes_as_long_as_the_wires_of_servers_and_workers_do(servers, workers):
    """A server's wire carries n pieces of S / k to the workers; who got his first pushes while the others still get
    theirs, and the last one's push follows on his own wire: (n / k + 1) S / B."""
    each_s = (rounds_s(servers, workers, 12) - rounds_s(servers, workers, 2)) / 10
    assert each_s == pytest.approx((workers / servers + 1) * 4 * 240 * 256 / 1e9, rel=0.01)


# ---- pieces --------------------------------------------------------------------------------------
@pytest.mark.parametrize("seed", range(10))
def test_each_row_has_one_server_and_servers_have_equally_many(seed):
    rng = np.random.default_rng(seed)
    servers = int(rng.integers(1, 5))
    shapes = [(int(n), 2) for n in rng.integers(0, 9, 12)] + [()] * servers + [(1,)] * servers
    params = [mg.zeros(*shape) if shape else mg.tensor(0.0) for shape in shapes]
    found = cut_over(params, servers)
    rows = [(piece.number, row) for pieces in found for piece in pieces for row in range(piece.start, piece.stop)]
    want = [(k, row) for k, shape in enumerate(shapes) for row in range(shape[0] if shape else 1)]
    assert sorted(rows) == want
    for one in range(12):                                    # of each parameter, at most one row more
        counts = [sum(p.stop - p.start for p in pieces if p.number == one) for pieces in found]
        assert max(counts) - min(counts) <= 1
    small = [sum(p.number >= 12 for p in pieces) for pieces in found]
    assert small == [2] * servers                            # those of one row go round


# ---- what is refused -----------------------------------------------------------------------------
def refused(match, program, world=3, error=RankFailed):
    with pytest.raises(error, match=match):
        spawn(program, world, timeout=60)


@pytest.mark.parametrize("how, match", [
    ({"servers": 3}, "servers=3 of 3 ranks"), ({"servers": 0}, "servers=0"), ({"mode": "late"}, "none of sync, async"),
    ({"mode": "stale"}, "bound goes with"), ({"mode": "async", "staleness": 1}, "bound goes with"),
    ({"mode": "stale", "staleness": -1}, "at least 0")])
def test_what_cannot_be_is_refused_before_anything_moves(how, match):
    refused(match, lambda comm: take_role(comm, made(), sgd, **how))


def test_more_servers_than_rows():
    refused("have no row for 1 of them", lambda comm: take_role(comm, nn.Linear(1, 1, bias=False), sgd, servers=2))


def test_different_models_are_named():
    refused("differ in shape", lambda comm: take_role(comm, nn.Linear(2, 2 + comm.rank), sgd), error=CollectiveMismatch)


def test_an_optimizer_that_needs_parameters_whole():
    def program(comm, servers):
        role = take_role(comm, nn.Linear(3, 3), lambda ps: mg.optim.LAMB(ps, lr=0.1), servers=servers)
        return (role.serve if isinstance(role, Server) else role.done)()
    refused("needs each parameter whole", lambda comm: program(comm, 2))
    assert isinstance(spawn(program, 3, 1).values[0], History)


def test_parameters_of_several_dtypes():
    def program(comm):
        mg.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 3).double(), nn.Linear(3, 2))
        parameter_server(comm, model, sgd, lambda m, b: (m[1](m[0](b[0]).float()) ** 2).mean(),
                         lambda w, n: data(), servers=2, mode="async")
        return [str(p.dtype) for p in model.parameters()], trained(model.parameters())
    (kinds, first), *others = spawn(program, 4, cluster=uniform(4)).values
    assert kinds == ["float64", "float64", "float32", "float32"]
    for _, other in others:
        same(other, first)
