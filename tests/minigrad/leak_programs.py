"""A small trainer that leaks nothing, and how a test says which leak it expects: by a mark in its own source."""

import inspect

import numpy as np

import minigrad as mg
from minigrad import nn
from minigrad.nn.functional import cross_entropy

rng = np.random.default_rng(0)
X = mg.tensor(rng.standard_normal((8, 4)), dtype=mg.float32)
Y = mg.tensor(rng.integers(0, 3, 8))


def trainer():
    net = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))
    return net, mg.optim.Adam(net.parameters(), lr=1e-3)


def train(net, opt, x=X, y=Y):
    loss = cross_entropy(net(x), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    return loss


def the_leak(report, kind, test):
    """The one leak of the report, of this kind, in the marked line of the test."""
    assert [leak.kind for leak in report.leaks] == [kind], str(report)
    lines, first = inspect.getsourcelines(test)
    marked = [first + k for k, text in enumerate(lines) if "# leaks here" in text]
    where = f"{inspect.getsourcefile(test)}:{marked[0]}"
    assert len(marked) == 1 and report.leaks[0].line.startswith(where), str(report)
    assert report.leaks[0].cause.way_out and kind in str(report) and f":{marked[0]}" in str(report)
    return report.leaks[0]
