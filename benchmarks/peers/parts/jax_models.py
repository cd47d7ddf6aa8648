"""The forward passes and optimisers of JAX for the workloads with a fixed graph."""

import jax
import jax.numpy as jnp
from jax import lax

from benchmarks import workloads
from benchmarks.workloads import ADAM_LR, GPT, GPT_ADAMW, MOMENTUM, SGD_LR

relu = jax.nn.relu


def cross_entropy(logits, labels):
    """Mean over all positions."""
    chosen = jnp.take_along_axis(logits, labels[..., None], -1)[..., 0]
    return (jax.nn.logsumexp(logits, -1) - chosen).mean()


def mlp(p, x):
    """Logits of the dense layers w0, w1, w2."""
    x = relu(x @ p["w0"] + p["b0"])
    x = relu(x @ p["w1"] + p["b1"])
    return x @ p["w2"] + p["b2"]


def conv(x, filters, stride=1, padding=0):
    """Convolution as PyTorch counts its axes."""
    return lax.conv_general_dilated(
        x,
        filters,
        (stride, stride),
        [(padding, padding)] * 2,
        dimension_numbers=("NCHW", "OIHW", "NCHW"),
    )


def pool(x):
    """Largest of 2x2."""
    return lax.reduce_window(x, -jnp.inf, lax.max, (1, 1, 2, 2), (1, 1, 2, 2), "VALID")


def lenet(p, x):
    """Logits of two convolutions and three dense layers."""
    x = pool(relu(conv(x, p["c1"], padding=2) + p["c1b"][:, None, None]))
    x = pool(relu(conv(x, p["c2"]) + p["c2b"][:, None, None]))
    return mlp(p, x.reshape(len(x), -1))


def normalise(x, axes):
    """Zero mean and unit variance over the axes."""
    x = x - x.mean(axes, keepdims=True)
    return x * lax.rsqrt((x * x).mean(axes, keepdims=True) + 1e-5)


def resnet(p, x):
    """Logits of a stem and three residual blocks."""

    def norm(x, gain, bias):
        return normalise(x, (0, 2, 3)) * p[gain][:, None, None] + p[bias][:, None, None]

    x = relu(norm(conv(x, p["stem"], padding=1), "stem_g", "stem_b"))
    for n, _, _, stride in workloads.RESNET_BLOCKS:
        y = relu(norm(conv(x, p[n + "c1"], stride, 1), n + "g1", n + "b1"))
        y = norm(conv(y, p[n + "c2"], padding=1), n + "g2", n + "b2")
        x = relu(y + (x if stride == 1 else conv(x, p[n + "sc"], stride)))
    return x.mean((2, 3)) @ p["w"] + p["b"]


def attention(qkv):
    """Causal attention of (batch, tokens, 3 width), heads split and merged."""
    batch, tokens, _ = qkv.shape
    q, k, v = qkv.reshape(batch, tokens, 3, GPT["heads"], -1).transpose(2, 0, 3, 1, 4)
    scores = q @ k.swapaxes(-1, -2) * q.shape[-1] ** -0.5
    scores = jnp.where(jnp.tril(jnp.ones((tokens, tokens), bool)), scores, -jnp.inf)
    return (jax.nn.softmax(scores, -1) @ v).transpose(0, 2, 1, 3).reshape(batch, tokens, -1)


def gpt(p, tokens):
    """Logits (batch, tokens, vocabulary) of pre-norm blocks with causal attention."""

    def dense(name, x):
        return x @ p[name + "_w"] + p[name + "_b"]

    def norm(name, x):
        return normalise(x, -1) * p[name + "_g"] + p[name + "_b"]

    x = p["wte"][tokens] + p["wpe"]
    for layer in range(GPT["layers"]):
        n = f"l{layer}_"
        x = x + dense(n + "o", attention(dense(n + "qkv", norm(n + "ln1", x))))
        x = x + dense(n + "pr", jax.nn.gelu(dense(n + "fc", norm(n + "ln2", x)), approximate=True))
    return norm("lnf", x) @ p["wte"].T


def zeros(p):
    """A zero for every parameter."""
    return jax.tree.map(jnp.zeros_like, p)


def adam(lr=ADAM_LR, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0):
    """Adam, decaying matrices only: its first state from p, its update of p, gradients, state."""

    def start(p):
        return zeros(p), zeros(p), jnp.float32(0)

    def update(p, gradients, state):
        m, v, t = state
        t = t + 1
        m = {k: betas[0] * m[k] + (1 - betas[0]) * g for k, g in gradients.items()}
        v = {k: betas[1] * v[k] + (1 - betas[1]) * g * g for k, g in gradients.items()}
        size, root = lr / (1 - betas[0] ** t), jnp.sqrt(1 - betas[1] ** t)
        kept = {k: w * (1 - lr * weight_decay * (w.ndim > 1)) for k, w in p.items()}
        return {k: w - size * m[k] / (jnp.sqrt(v[k]) / root + eps) for k, w in kept.items()}, (
            m,
            v,
            t,
        )

    return start, update


def sgd(momentum=MOMENTUM):
    """SGD with momentum, in the same form."""

    def update(p, gradients, velocity):
        velocity = {k: momentum * velocity[k] + g for k, g in gradients.items()}
        return {k: w - SGD_LR * velocity[k] for k, w in p.items()}, velocity

    return zeros, update


MODELS = {
    "a": (mlp, adam()),
    "b": (mlp, adam()),
    "c": (lenet, sgd()),
    "d": (resnet, sgd()),
    "e": (gpt, adam(**GPT_ADAMW)),
}
