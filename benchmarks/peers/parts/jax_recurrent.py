"""The changing graphs f and g as JAX wants them: padded to one shape, scanned, compiled once.

Used by jax_jit.py.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from benchmarks.peers.parts.jax_models import adam, cross_entropy, sgd
from benchmarks.workloads import LSTM, TREE

sigmoid, tanh = jax.nn.sigmoid, jnp.tanh


def lstm_loss(p, x, lengths, labels):
    """A scan over the longest sequence; one that has ended keeps its state."""

    def cell(state, now):
        (h, c), (t, x_now) = state, now
        i, f, g, o = jnp.split(x_now + h @ p["wh"], 4, 1)
        new_c = sigmoid(f) * c + sigmoid(i) * tanh(g)
        going = (t < lengths)[:, None]
        return (jnp.where(going, sigmoid(o) * tanh(new_c), h), jnp.where(going, new_c, c)), None

    zero = jnp.zeros((len(lengths), LSTM["hidden"]))
    (h, _), _ = lax.scan(cell, (zero, zero), (jnp.arange(len(x)), x @ p["wx"] + p["b"]))
    return cross_entropy(h @ p["w"] + p["wb"], labels)


def padded_sequences(item):
    """The batch with zeros up to the longest sequence of all."""
    x, lengths, labels = item
    return np.pad(x, ((0, LSTM["longest"] - len(x)), (0, 0), (0, 0))), lengths, labels


def tree_loss(p, x, below, root, label):
    """A scan over the nodes; `below` holds the children, filled up with a node of zeros."""
    nodes, width = TREE["most_nodes"], TREE["hidden"]

    def visit(state, now):
        (h, c), (node, children, iou, x_f) = state, now
        i, o, u = jnp.split(iou + h[children].sum(0) @ p["uiou"], 3)
        f = sigmoid(x_f + h[children] @ p["uf"])
        new_c = sigmoid(i) * tanh(u) + (f * c[children]).sum(0)
        return (h.at[node].set(sigmoid(o) * tanh(new_c)), c.at[node].set(new_c)), None

    zero = jnp.zeros((nodes + 1, width))
    each = (jnp.arange(nodes), below, x @ p["wiou"] + p["biou"], x @ p["wf"] + p["bf"])
    (h, _), _ = lax.scan(visit, (zero, zero), each)
    return cross_entropy((h[root] @ p["w"] + p["b"])[None], label[None])


def padded_tree(item):
    """The tree as arrays of one size; padding nodes have no children and are not read."""
    children, x, label = item
    nodes = TREE["most_nodes"]
    below = np.full((nodes, TREE["most_children"]), nodes)
    for node, its in enumerate(children):
        below[node, : len(its)] = its
    return (
        np.pad(x, ((0, nodes - len(x)), (0, 0))),
        below,
        np.int32(len(children) - 1),
        np.int32(label),
    )


MODELS = {
    "f": (lstm_loss, adam(), padded_sequences),
    "g": (tree_loss, sgd(momentum=0.0), padded_tree),
}
