"""The forward passes and optimisers of PyTorch for the workloads with a fixed graph."""

import os

import numpy as np
import torch
import torch.nn.functional as F

from benchmarks import workloads

TUNED = os.environ.get("TUNED") == "1"


def parameters_of(arrays: dict[str, np.ndarray]) -> dict[str, torch.Tensor]:
    """Leaves that start from copies of the arrays."""
    return {name: torch.tensor(array, requires_grad=True) for name, array in arrays.items()}


def mlp(p, x):
    """Logits of the dense layers w0, w1, w2."""
    x = F.relu(torch.addmm(p["b0"], x, p["w0"]))
    x = F.relu(torch.addmm(p["b1"], x, p["w1"]))
    return torch.addmm(p["b2"], x, p["w2"])


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
    return torch.addmm(p["b"], x.mean((2, 3)), p["w"])


def dense(p, name, x):
    """`x @ w + b`, or the fused form when tuned."""
    w, b = p[name + "_w"], p[name + "_b"]
    return F.linear(x, w.t(), b) if TUNED else x @ w + b


def gpt(p, tokens):
    """Logits (batch, tokens, vocabulary) of pre-norm blocks with causal attention."""
    width, heads = workloads.GPT["width"], workloads.GPT["heads"]

    def norm(name, x):
        return F.layer_norm(x, (width,), p[name + "_g"], p[name + "_b"])

    x = p["wte"][tokens] + p["wpe"]
    for layer in range(workloads.GPT["layers"]):
        n = f"l{layer}_"
        qkv = dense(p, n + "qkv", norm(n + "ln1", x))
        q, k, v = qkv.view(*tokens.shape, 3, heads, width // heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(x.shape)
        x = x + dense(p, n + "o", y)
        y = F.gelu(dense(p, n + "fc", norm(n + "ln2", x)), approximate="tanh")
        x = x + dense(p, n + "pr", y)
    return norm("lnf", x) @ p["wte"].t()


def adam(p):
    """Adam over all parameters."""
    return torch.optim.Adam(p.values(), workloads.ADAM_LR, fused=TUNED or None)


def momentum(p):
    """SGD with momentum."""
    return torch.optim.SGD(p.values(), workloads.SGD_LR, workloads.MOMENTUM, fused=TUNED or None)


def adamw(p):
    """AdamW that decays matrices only."""
    groups = [
        {"params": [v for v in p.values() if v.ndim > 1]},
        {"params": [v for v in p.values() if v.ndim < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, fused=TUNED or None, **workloads.GPT_ADAMW)
