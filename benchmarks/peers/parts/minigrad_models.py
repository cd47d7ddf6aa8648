"""The forward passes and optimisers of minigrad for the workloads with a fixed graph, as torch_models.py has them."""

import numpy as np

import minigrad as mg
import minigrad.nn.functional as F
from benchmarks import workloads


def parameters_of(arrays: dict[str, np.ndarray]) -> dict[str, mg.Tensor]:
    """Leaves that start from copies of the arrays."""
    return {name: mg.tensor(array, requires_grad=True) for name, array in arrays.items()}


def mlp(p, x):
    """Logits of the dense layers w0, w1, w2."""
    x = F.relu(x @ p["w0"] + p["b0"])
    x = F.relu(x @ p["w1"] + p["b1"])
    return x @ p["w2"] + p["b2"]


def lenet(p, x):
    """Logits of two convolutions and three dense layers."""
    x = F.max_pool2d(F.relu(F.conv2d(x, p["c1"], p["c1b"], padding=2)), 2)
    x = F.max_pool2d(F.relu(F.conv2d(x, p["c2"], p["c2b"])), 2)
    return mlp(p, x.flatten(1))


def resnet(p, x):
    """Logits of a stem and three residual blocks."""

    def norm(x, gain, bias):
        return F.batch_norm(x, None, None, p[gain], p[bias], training=True)

    x = F.relu(norm(F.conv2d(x, p["stem"], padding=1), "stem_g", "stem_b"))
    for n, _, _, stride in workloads.RESNET_BLOCKS:
        y = F.relu(norm(F.conv2d(x, p[n + "c1"], stride=stride, padding=1), n + "g1", n + "b1"))
        y = norm(F.conv2d(y, p[n + "c2"], padding=1), n + "g2", n + "b2")
        x = F.relu(y + (x if stride == 1 else F.conv2d(x, p[n + "sc"], stride=stride)))
    return x.mean((2, 3)) @ p["w"] + p["b"]


def gpt(p, tokens):
    """Logits (batch, tokens, vocabulary) of pre-norm blocks with causal attention."""
    width, heads = workloads.GPT["width"], workloads.GPT["heads"]

    def norm(name, x):
        return F.layer_norm(x, (width,), p[name + "_g"], p[name + "_b"])

    def dense(name, x):
        return x @ p[name + "_w"] + p[name + "_b"]

    x = p["wte"][tokens] + p["wpe"]
    for layer in range(workloads.GPT["layers"]):
        n = f"l{layer}_"
        qkv = dense(n + "qkv", norm(n + "ln1", x))
        q, k, v = qkv.view(*tokens.shape, 3, heads, width // heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(x.shape)
        x = x + dense(n + "o", y)
        y = F.gelu(dense(n + "fc", norm(n + "ln2", x)), approximate="tanh")
        x = x + dense(n + "pr", y)
    return norm("lnf", x) @ p["wte"].t()


def adam(p):
    """Adam over all parameters."""
    return mg.optim.Adam(p.values(), workloads.ADAM_LR)


def momentum(p):
    """SGD with momentum."""
    return mg.optim.SGD(p.values(), workloads.SGD_LR, workloads.MOMENTUM)


def adamw(p):
    """AdamW that decays matrices only."""
    groups = [
        {"params": [v for v in p.values() if v.ndim > 1]},
        {"params": [v for v in p.values() if v.ndim < 2], "weight_decay": 0.0},
    ]
    return mg.optim.AdamW(groups, **workloads.GPT_ADAMW)
