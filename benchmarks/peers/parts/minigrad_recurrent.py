"""The graphs of minigrad that change from step to step: f (nn.LSTM, or by hand) and g.

As torch_recurrent.py has them.
"""

from itertools import cycle

import numpy as np

import minigrad as mg
import minigrad.nn.functional as F
from benchmarks import workloads
from benchmarks.peers.parts.minigrad_models import adam, parameters_of
from benchmarks.workloads import LSTM, TREE, Step

HIDDEN = LSTM["hidden"]


def stepper(loss_of, optimiser, pool) -> Step:
    """One optimiser step on the next item of the pool."""
    items = cycle(pool)

    def step():
        optimiser.zero_grad()
        loss = loss_of(*next(items))
        loss.backward()
        optimiser.step()
        return loss.item()

    return step


def library_lstm(arrays) -> mg.nn.LSTM:
    """nn.LSTM with the workload's parameters; of its two biases the second stays zero."""
    net = mg.nn.LSTM(LSTM["inputs"], HIDDEN)
    w_x, w_h, b = (mg.tensor(np.ascontiguousarray(arrays[name].T)) for name in ("wx", "wh", "b"))
    names = ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")
    net.load_state_dict(dict(zip(names, (w_x, w_h, b, mg.zeros_like(b)))))
    net.bias_hh_l0.requires_grad_(False)
    return net


def packed_lstm(workload: str, seed: int) -> Step:
    """The library's LSTM on packed sequences."""
    arrays, pool = workloads.data(workload, seed)
    net, p = library_lstm(arrays), parameters_of({name: arrays[name] for name in ("w", "wb")})

    def loss_of(x, lengths, labels):
        _, (h, _) = net(mg.nn.utils.rnn.pack_padded_sequence(x, lengths))
        return F.cross_entropy(h[0] @ p["w"] + p["wb"], labels)

    trained = p | {name: v for name, v in net.named_parameters() if v.requires_grad}
    return stepper(loss_of, adam(trained), [tuple(map(mg.tensor, item)) for item in pool])


def lstm_by_hand(workload: str, seed: int) -> Step:
    """A turn of a Python loop per time step; sequences that have ended leave the batch."""
    arrays, pool = workloads.data(workload, seed)
    p = parameters_of(arrays)

    def loss_of(x, lengths, labels):
        h = c = mg.zeros(len(lengths), HIDDEN)
        ended = []
        for t in range(lengths[0]):
            going = int((lengths > t).sum())
            if going < len(h):
                ended.insert(0, h[going:])
                h, c = h[:going], c[:going]
            h, c = lstm_cell(p, x[t, :going], h, c)
        return F.cross_entropy(mg.cat([h, *ended]) @ p["w"] + p["wb"], labels)

    pool = [(mg.tensor(x), lengths, mg.tensor(labels)) for x, lengths, labels in pool]
    return stepper(loss_of, adam(p), pool)


def lstm_cell(p, x, h, c):
    """The next h and c."""
    i, f, g, o = (x @ p["wx"] + p["b"] + h @ p["wh"]).chunk(4, 1)
    c = mg.sigmoid(f) * c + mg.sigmoid(i) * mg.tanh(g)
    return mg.sigmoid(o) * mg.tanh(c), c


def tree(workload: str, seed: int) -> Step:
    """Another tree, hence another graph, every step."""
    arrays, pool = workloads.data(workload, seed)
    p = parameters_of(arrays)

    def loss_of(children, x, label):
        x_iou, x_f = x @ p["wiou"] + p["biou"], x @ p["wf"] + p["bf"]
        h, c = [], []
        for node, below in enumerate(children):
            new_h, new_c = tree_node(
                p, x_iou[node], x_f[node], [h[k] for k in below], [c[k] for k in below]
            )
            h.append(new_h)
            c.append(new_c)
        return F.cross_entropy((h[-1] @ p["w"] + p["b"])[None], label)

    pool = [(children, mg.tensor(x), mg.tensor([label])) for children, x, label in pool]
    return stepper(loss_of, mg.optim.SGD(p.values(), workloads.SGD_LR), pool)


def tree_node(p, iou, x_f, h_below, c_below):
    """h and c of a node from its own input and those of its children."""
    width = TREE["hidden"]
    if h_below:
        h = mg.stack(h_below)
        iou = iou + h.sum(0) @ p["uiou"]
    i, o, u = iou[:width], iou[width : 2 * width], iou[2 * width :]
    c = mg.sigmoid(i) * mg.tanh(u)
    if h_below:
        c = c + (mg.sigmoid(x_f + h @ p["uf"]) * mg.stack(c_below)).sum(0)
    return mg.sigmoid(o) * mg.tanh(c), c


BUILDERS = {"f": packed_lstm, "f_cell": lstm_by_hand, "g": tree}
