"""The ten workloads: sizes, float32 data and initial parameters, the same for every framework.

Read this first. A peer (peers/*.py) offers `make(workload, seed) -> step`, and `step()` runs one
whole step and returns its loss as a Python float, so that nothing is left running: forward, loss,
backward and update; for `*_inf` forward only (the mean of the logits); for `h` forward and backward
only. As all peers start from the same numbers, their losses agree: run.py checks it.
"""

from collections.abc import Callable
from functools import partial

import numpy as np

Step = Callable[[], float]

DESCRIPTIONS = {
    "a": "MLP 784-256-128-10, ReLU, batch 64, Adam",
    "b": "the same MLP, batch 1024, Adam",
    "c": "LeNet-5-like CNN, 28x28, batch 64, SGD with momentum",
    "d": "small ResNet, 32x32x3, batch 32, BatchNorm, SGD with momentum",
    "e": "char-GPT, 4 layers, width 128, 4 heads, 128 tokens, batch 16, AdamW",
    "f": "LSTM 32-128, batch 16, lengths 10 to 50, Adam",
    "g": "Child-Sum Tree-LSTM, one tree of about 30 nodes, width 64, SGD",
    "h": "1000 tiny operations, forward and backward",
    "c_inf": "LeNet, forward only, batch 64",
    "e_inf": "char-GPT, forward only, batch 16",
}
ALL = tuple(DESCRIPTIONS)
DESCRIPTIONS["f_cell"] = (
    "f, its time loop written by hand"  # on demand: the bar without a fused LSTM
)

ADAM_LR, SGD_LR, MOMENTUM = 1e-3, 0.01, 0.9
GPT = {"layers": 4, "width": 128, "heads": 4, "tokens": 128, "batch": 16, "vocabulary": 65}
GPT_ADAMW = {"lr": 1e-3, "betas": (0.9, 0.99), "eps": 1e-8, "weight_decay": 0.1}  # of matrices
LSTM = {"inputs": 32, "hidden": 128, "batch": 16, "classes": 10, "longest": 50}
TREE = {"inputs": 64, "hidden": 64, "classes": 5, "most_nodes": 36, "most_children": 3}
RESNET_BLOCKS = (("r1", 16, 16, 1), ("r2", 16, 32, 2), ("r3", 32, 64, 2))  # name, channels, stride
POOL = 8  # f and g go round this many batches or trees
H_ROUNDS = 250  # of four operations each


def _dense(r: np.random.Generator, *layers: tuple[int, int]) -> dict:
    """`w0, b0, w1, …`: weights (in, out) of variance 1 / in, biases 0."""
    parameters = {}
    for n, (i, o) in enumerate(layers):
        parameters[f"w{n}"], parameters[f"b{n}"] = _matrix(r, i, o), np.zeros(o, np.float32)
    return parameters


def _matrix(r, i, o):
    return (r.standard_normal((i, o)) / np.sqrt(i)).astype(np.float32)


def _filters(r, o, i, k):
    return (r.standard_normal((o, i, k, k)) / np.sqrt(i * k * k)).astype(np.float32)


def _images(r, *shape):
    return r.standard_normal(shape).astype(np.float32), r.integers(0, 10, shape[0])


def mlp(seed: int, batch: int) -> tuple:
    """Parameters, images (batch, 784), labels."""
    r = np.random.default_rng(seed)
    return _dense(r, (784, 256), (256, 128), (128, 10)), *_images(r, batch, 784)


def lenet(seed: int, batch: int = 64) -> tuple:
    """Parameters, images (batch, 1, 28, 28), labels; convolution weights are (out, in, k, k)."""
    r = np.random.default_rng(seed)
    parameters = {
        "c1": _filters(r, 6, 1, 5),
        "c1b": np.zeros(6, np.float32),
        "c2": _filters(r, 16, 6, 5),
        "c2b": np.zeros(16, np.float32),
    }
    parameters |= _dense(r, (400, 120), (120, 84), (84, 10))
    return parameters, *_images(r, batch, 1, 28, 28)


def resnet(seed: int, batch: int = 32) -> tuple:
    """Parameters, images (batch, 3, 32, 32), labels; batch norm is in training mode, eps 1e-5."""
    r = np.random.default_rng(seed)
    parameters = {"stem": _filters(r, 16, 3, 3), **_norm("stem_g", "stem_b", 16)}
    for name, i, o, stride in RESNET_BLOCKS:
        parameters[name + "c1"], parameters[name + "c2"] = (
            _filters(r, o, i, 3),
            _filters(r, o, o, 3),
        )
        parameters |= _norm(name + "g1", name + "b1", o) | _norm(name + "g2", name + "b2", o)
        if stride != 1:
            parameters[name + "sc"] = _filters(r, o, i, 1)
    parameters["w"], parameters["b"] = _matrix(r, 64, 10), np.zeros(10, np.float32)
    return parameters, *_images(r, batch, 3, 32, 32)


def _norm(gain, bias, size):
    return {gain: np.ones(size, np.float32), bias: np.zeros(size, np.float32)}


def gpt(seed: int) -> tuple:
    """Parameters, tokens and next tokens (batch, tokens); the head is the embedding transposed."""
    r, d, v, t = np.random.default_rng(seed), GPT["width"], GPT["vocabulary"], GPT["tokens"]
    parameters = {"wte": _normal(r, v, d), "wpe": _normal(r, t, d), **_norm("lnf_g", "lnf_b", d)}
    for layer in range(GPT["layers"]):
        parameters |= {f"l{layer}_{name}": array for name, array in _gpt_block(r, d).items()}
    text = r.integers(0, v, (GPT["batch"], t + 1))
    return parameters, text[:, :-1].copy(), text[:, 1:].copy()


def _gpt_block(r, d):
    zeros, residual = partial(np.zeros, dtype=np.float32), 0.02 / np.sqrt(2 * GPT["layers"])
    return {
        **_norm("ln1_g", "ln1_b", d),
        "qkv_w": _normal(r, d, 3 * d),
        "qkv_b": zeros(3 * d),
        "o_w": _normal(r, d, d, scale=residual),
        "o_b": zeros(d),
        **_norm("ln2_g", "ln2_b", d),
        "fc_w": _normal(r, d, 4 * d),
        "fc_b": zeros(4 * d),
        "pr_w": _normal(r, 4 * d, d, scale=residual),
        "pr_b": zeros(d),
    }


def _normal(r, *shape, scale=0.02):
    return (r.standard_normal(shape) * scale).astype(np.float32)


def lstm(seed: int) -> tuple:
    """Parameters (gates i, f, g, o) and a pool of (x (time, batch, in), lengths, labels)."""
    r, i, h, b = np.random.default_rng(seed), LSTM["inputs"], LSTM["hidden"], LSTM["batch"]
    parameters = {
        "wx": _matrix(r, i, 4 * h),
        "wh": _matrix(r, h, 4 * h),
        "b": np.zeros(4 * h, np.float32),
        "w": _matrix(r, h, LSTM["classes"]),
        "wb": np.zeros(LSTM["classes"], np.float32),
    }
    pool = []
    for _ in range(POOL):
        lengths = np.sort(r.integers(10, LSTM["longest"] + 1, b))[::-1].copy()
        x = r.standard_normal((lengths[0], b, i)).astype(np.float32)
        pool.append((x, lengths, r.integers(0, LSTM["classes"], b)))
    return parameters, pool


def tree_lstm(seed: int) -> tuple:
    """Parameters (gates i, o, u) and a pool of (children of each node, x (nodes, in), label).

    Tai, Socher and Manning 2015, equations 2 to 8.
    """
    r, i, h = np.random.default_rng(seed), TREE["inputs"], TREE["hidden"]
    parameters = {
        "wiou": _matrix(r, i, 3 * h),
        "uiou": _matrix(r, h, 3 * h),
        "biou": np.zeros(3 * h, np.float32),
        "wf": _matrix(r, i, h),
        "uf": _matrix(r, h, h),
        "bf": np.zeros(h, np.float32),
        "w": _matrix(r, h, TREE["classes"]),
        "b": np.zeros(TREE["classes"], np.float32),
    }
    return parameters, [_labelled_tree(r) for _ in range(POOL)]


def _labelled_tree(r):
    children = _random_tree(r)
    x = r.standard_normal((len(children), TREE["inputs"])).astype(np.float32)
    return children, x, int(r.integers(0, TREE["classes"]))


def _random_tree(r):
    """Children of each node, children before parents and the root last.

    Counted from the root, each node hangs on one of the eight before it.
    """
    n = int(r.integers(26, TREE["most_nodes"] + 1))
    children = [[] for _ in range(n)]
    for i in range(1, n):
        parent = None
        while parent is None or len(children[n - 1 - parent]) == TREE["most_children"]:
            parent = int(r.integers(max(0, i - 8), i))
        children[n - 1 - parent].append(n - 1 - i)
    return children


def tiny(seed: int) -> tuple:
    """The two leaves of `h`, four numbers each; they do not depend on the seed."""
    return np.full(4, 0.7, np.float32), np.full(4, 0.5, np.float32)


_MAKERS: dict[str, Callable[[int], tuple]] = {
    "a": partial(mlp, batch=64),
    "b": partial(mlp, batch=1024),
    "c": lenet,
    "c_inf": lenet,
    "d": resnet,
    "e": gpt,
    "e_inf": gpt,
    "f": lstm,
    "f_cell": lstm,
    "g": tree_lstm,
    "h": tiny,
}


def data(workload: str, seed: int) -> tuple:
    """Fresh arrays of a workload, equal in every process that asks with the same seed."""
    return _MAKERS[workload](seed)


def build(builders: dict[str, Callable[[str, int], Step]], workload: str, seed: int) -> Step:
    """The step of `workload` from a peer's builders; NotImplementedError when it has none."""
    if workload not in builders:
        raise NotImplementedError(f"this peer has {', '.join(builders)}, not {workload}")
    return builders[workload](workload, seed)
