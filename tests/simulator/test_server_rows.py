"""Rows of tables, pulled and pushed alone: the same as one device, in no more bytes than these rows have, and never
from values that are old."""
from __future__ import annotations

import numpy as np
import pytest

import minigrad as mg
from minigrad import nn
from simulator.errors import RankFailed
from simulator.spawn import spawn
from simulator.strategies import Server, parameter_server, take_role

EPS = np.finfo(np.float64).eps
STEPS = 4


def sgd(ps):
    return mg.optim.SGD(ps, lr=0.1)


def trained(params):
    return [p.detach().numpy().copy() for p in params]


def same(got, want):
    for a, b in zip(got, want, strict=True):
        np.testing.assert_array_equal(a, b)


def close(got, want):
    for a, b in zip(got, want, strict=True):
        assert a.dtype == b.dtype and np.abs(a - b).max() <= 64 * EPS * max(np.abs(b).max(), 1.0)


def refused(match, program):
    with pytest.raises(RankFailed, match=match):
        spawn(program, 3, timeout=60)


VOCABULARY, WIDTH = 13, 3


class Bag(nn.Module):
    def __init__(self):
        self.table, self.out = nn.Embedding(VOCABULARY, WIDTH, sparse=True), nn.Linear(WIDTH, 1)

    def forward(self, numbers):
        return self.out(self.table(numbers).mean(1)).exp()


def bag():
    mg.manual_seed(5)
    return Bag().double()


def bag_loss(model, numbers):
    return 2 * model(numbers).mean()


def word_batches(worker, count, steps=STEPS):
    rng = np.random.default_rng(worker)
    return [mg.tensor(rng.integers(0, VOCABULARY, (4, 2))) for _ in range(steps)]


def bag_server(comm, optimizer_of=sgd, rows=True, **how):
    model = bag()
    seen = []

    def rows_of(numbers):
        seen.append(np.unique(numbers.numpy()))
        return {"table.weight": numbers}
    parameter_server(comm, model, optimizer_of, bag_loss, word_batches, rows_of=rows_of if rows else None, **how)
    return trained(model.parameters()), seen


@pytest.mark.parametrize("rows", [True, False])
@pytest.mark.parametrize("servers, workers", [(1, 1), (1, 3), (2, 2), (5, 3)])
def test_rows_pulled_and_pushed_are_one_device(servers, workers, rows):
    model = bag()
    optimizer = sgd(model.parameters())
    for step in range(STEPS):
        optimizer.zero_grad()
        bag_loss(model, mg.cat([word_batches(w, workers)[step] for w in range(workers)])).backward()
        optimizer.step()
    for got, _ in spawn(bag_server, servers + workers, rows=rows, servers=servers).values:
        close(got, trained(model.parameters()))


def test_bytes_of_rows_are_those_of_the_rows():
    result = spawn(bag_server, 2)
    header, dense = 8 * (3 + 3), 8 * (WIDTH + 1)             # kind, clock, examples and a count a parameter; the rest
    seen = [len(rows) for rows in result.values[1][1]]
    setup = 8 * (VOCABULARY * WIDTH + WIDTH + 1)             # begin and end: all of it, from the server
    pulled = [8 * n * WIDTH + dense for n in seen]
    assert result.nbytes[0, 1] == 2 * setup + sum(pulled)
    assert result.nbytes[1, 0] == sum(2 * header + 2 * 8 * n + p for n, p in zip(seen, pulled)) + header


def test_tables_have_state_by_rows_and_moments_too():
    for optimizer_of in (lambda ps: mg.optim.Adagrad(ps, lr=0.1),):
        model = bag()
        optimizer = optimizer_of(model.parameters())
        for numbers in word_batches(0, 1):
            optimizer.zero_grad()
            bag_loss(model, numbers).backward()
            optimizer.step()
        for got, _ in spawn(bag_server, 3, optimizer_of, servers=2, mode="async").values:
            same(got, trained(model.parameters()))


def worker_does(action):
    def program(comm):
        model = bag()
        role = take_role(comm, model, sgd)
        return role.serve() if isinstance(role, Server) else action(role, model)
    return program


def test_a_push_needs_a_pull_and_rows_that_were_pulled():
    refused("has not pulled", worker_does(lambda role, model: role.push()))

    def old_rows(role, model):
        role.pull({"table.weight": [1, 2]})
        bag_loss(model, mg.tensor([[1, 7]])).backward()
        role.push()
    refused(r"rows \[7\] … that were not pulled", worker_does(old_rows))

    def dense(role, model):
        role.pull({"table.weight": [1, 2]})
        model.table.weight.sum().backward()
        role.push()
    refused("is dense", worker_does(dense))
    refused("no trained table of", worker_does(lambda role, model: role.pull({"out.weight": [0]})))
    refused("rows 0 … 12, asked for 3 … 13", worker_does(lambda role, model: role.pull({"table.weight": [13, 3]})))


def test_devices_of_their_own():
    def program(comm):
        model = bag().to(comm.device)
        parameter_server(comm, model, sgd, bag_loss, lambda w, n: [b.to(comm.device) for b in word_batches(w, n)],
                         rows_of=lambda numbers: {"table.weight": numbers}, servers=2)
        return trained(model.cpu().parameters())
    for got, (want, _) in zip(spawn(program, 4, device="sim").values, spawn(bag_server, 4, servers=2).values):
        same(got, want)
