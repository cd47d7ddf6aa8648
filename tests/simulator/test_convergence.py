"""Runs beside each other: a curve is the losses of the parameters that there were, and looking takes no time."""
from __future__ import annotations

import json
import xml.etree.ElementTree as ET

import numpy as np
import pytest

import minigrad as mg
from minigrad import nn
from simulator.cluster import uniform
from simulator.device import device
from simulator.spawn import spawn
from simulator.strategies import DDP, Comparison, LocalSGD, Recorder, parameter_server
from simulator.strategies.convergence import Curve, states
from simulator.strategies.history import History, Snapshot
from simulator.viz import convergence as view

STEPS, WORKERS = 5, 3
DEVICE = device("A100").with_(peak_flops={"float64": 9.7e12})


def made():
    mg.manual_seed(6)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).double()


def whole():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((6 * WORKERS, 3))
    return mg.tensor(x), mg.tensor(np.tanh(x @ np.ones((3, 1))))


def loss_of(model, batch):
    return ((model(batch[0]) - batch[1]) ** 2).mean()


def batches(worker, workers):
    x, y = whole()
    return [(x[worker::workers], y[worker::workers])] * STEPS


def sgd(params):
    return mg.optim.SGD(params, lr=0.2)


def server(comm, **how):
    return parameter_server(comm, made(), sgd, loss_of, batches, **how)


def recorded(comm, wrap, every=1):
    model = made()
    record = Recorder(comm, model, every)
    forward, optimizer = wrap(comm, model, sgd(model.parameters()))
    for batch in batches(comm.rank, comm.world_size):
        optimizer.zero_grad()
        loss = loss_of(forward, batch)
        loss.backward()
        optimizer.step()
        record.note(loss)
    return record.history, "more"


def all_reduce(comm, every=1):
    return recorded(comm, lambda comm, model, optimizer: (DDP(model, comm), optimizer), every)


def local(comm):
    return recorded(comm, lambda comm, model, optimizer: (model, LocalSGD(comm, model, optimizer, 2)))


def one_device():
    """The loss before each step and after the last, on the joined batch."""
    model, losses = made(), []
    optimizer = sgd(model.parameters())
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = loss_of(model, whole())
        losses.append(loss.item())
        loss.backward()
        optimizer.step()
    return [*losses, loss_of(model, whole()).item()]


def timed(program, world, **how):
    return spawn(program, cluster=uniform(world, DEVICE), timed=True, **how)


def runs():
    return {"all-reduce": timed(all_reduce, WORKERS), "sync": timed(server, 1 + WORKERS),
            "sync, 2 servers": timed(server, 2 + WORKERS, servers=2),
            "async": timed(server, 1 + WORKERS, mode="async"),
            "stale": timed(server, 2 + WORKERS, servers=2, mode="stale", staleness=1),
            "LocalSGD": timed(local, WORKERS)}


def page(**how):
    return Comparison(runs(), made(), lambda model: loss_of(model, whole()), **how)


def test_runs_in_step_are_the_losses_of_one_device():
    told = page()
    for name in ("all-reduce", "sync"):
        assert told[name].losses == pytest.approx(one_device(), rel=1e-12)
        assert told[name].batches == tuple(range(0, WORKERS * STEPS + 1, WORKERS))
        assert told[name].updates == tuple(range(STEPS + 1))
    two = told["sync, 2 servers"]                            # also while one of the servers was ahead
    assert two.losses[0] == pytest.approx(one_device()[0]) and two.losses[-1] == pytest.approx(one_device()[-1])
    assert two.updates[-1] == STEPS and set(two.updates) == set(range(STEPS + 1))


def test_each_gradient_counts_once():
    told = page()
    for curve in told.curves:
        assert curve.batches[0] == 0 and curve.batches[-1] == WORKERS * STEPS
        assert list(curve.times_s) == sorted(curve.times_s) and curve.times_s[-1] <= curve.time_s
        assert list(curve.batches) == sorted(curve.batches) and np.isfinite(curve.losses).all()
    assert sum(told["async"].staleness.values()) == WORKERS * STEPS
    assert sum(told["stale"].staleness.values()) == 2 * WORKERS * STEPS
    assert told["all-reduce"].staleness == {} and told["all-reduce"].mean_staleness is None
    assert told["sync"].mean_staleness == 0


def test_looking_takes_no_time_on_the_clock():
    def plain(comm):
        return all_reduce(comm, every=10**9)
    dense, rare = timed(all_reduce, WORKERS), timed(plain, WORKERS)
    assert dense.time_s == rare.time_s > 0
    before = rare.time_s
    curve = Comparison({"a": rare}, made(), lambda model: loss_of(model, whole()))["a"]
    assert rare.time_s == before and len(curve.losses) == 1 and len(rare.values[1][0].losses) == STEPS


def test_states_are_the_last_of_every_server():
    def snaps(rank, times):
        return History(rank, snapshots=[Snapshot(t, k, 2 * k, {(0, rank): np.array([rank, k])})
                                        for k, t in enumerate(times)])
    found = [(t, {at: rows.tolist() for at, rows in values.items()}, made)
             for t, values, made in states([snaps(1, [0.0, 2.0, 3.0]), snaps(0, [0.5, 2.0, 2.5]), History(2)])]
    assert found == [
        (0.5, {(0, 0): [0, 0], (0, 1): [1, 0]}, (0, 0)), (2.0, {(0, 0): [0, 1], (0, 1): [1, 1]}, (1, 2)),
        (2.5, {(0, 0): [0, 2], (0, 1): [1, 1]}, (1, 2)), (3.0, {(0, 0): [0, 2], (0, 1): [1, 2]}, (2, 4))]


def curve(name, times, losses, staleness=None):
    n = len(times)
    return Curve(name, tuple(times), tuple(range(n)), tuple(range(n)), tuple(losses), times[-1], 10, staleness or {})


def of_curves(*curves, target=0.1):
    made_of = object.__new__(Comparison)
    made_of.curves, made_of.target = list(curves), target
    return made_of


def test_when_the_target_is_reached():
    told = view.data(of_curves(curve("a", [0, 1, 2, 3], [1, 0.1, 0.2, 0.05]), curve("b", [0, 5], [1, 0.5])))
    assert [(run["reached_s"], run["reached_batches"]) for run in told["runs"]] == [(1, 1), (None, None)]
    assert page(target=2.0).target == 2.0
    told = page()
    assert told.target == max(min(c.losses) for c in told.curves)
    assert all(c.first(told.target) is not None for c in told.curves)


def test_the_page_as_data_text_and_picture():
    told = page()
    assert json.loads(json.dumps(view.data(told)))["runs"][3]["name"] == "async"
    text = str(told)
    for name in runs():
        assert text.count(f"\n{name} ") == 2                 # a row of the table and a line of blocks
    assert max(map(len, text.split("\n"))) <= 130
    root = ET.fromstring(told._repr_html_())
    lines = [e for e in root.iter("{http://www.w3.org/2000/svg}circle")]
    assert len(lines) == 2 * len(told.curves)                # one end of each run in each panel


@pytest.mark.parametrize("losses", [[1.0, float("nan")], [0.0, 0.0], [float("inf"), 1e300], [5e-324, 1.0], [1.0, 1.0],
                                    [1.0], [-1.0, 2.0]])
def test_losses_that_no_axis_can_show(losses):
    told = of_curves(curve("odd & <named>", list(range(len(losses))), losses), curve("plain", [0, 1], [1, 0.5]))
    ET.fromstring(view.html(told))
    assert "odd & <named>" in view.text(told)


def test_a_long_run_is_thinned_and_keeps_its_ends_and_peaks():
    losses = np.exp(-np.arange(5000) / 1000)
    losses[2500] = 7.0
    told = of_curves(curve("long", np.arange(5000.0).tolist(), losses.tolist()))
    picture = view.html(told)
    assert len(picture) < 40_000
    ET.fromstring(picture)
    assert f"V{view.TOP}.0" in picture                          # the peak, at the top of the axis


def test_what_is_refused():
    with pytest.raises(ValueError, match="no results"):
        Comparison({}, made(), lambda model: 0.0)
    with pytest.raises(ValueError, match="'a' returned no history"):
        Comparison({"a": spawn(lambda comm: comm.rank, 2)}, made(), lambda model: 0.0)
    result = spawn(all_reduce, 2, cluster=uniform(2))
    with pytest.raises(ValueError, match="that of the model"):
        Comparison({"a": result}, nn.Linear(3, 1).double(), lambda model: 0.0)
