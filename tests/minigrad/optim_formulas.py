"""Optimisers as their papers write them, in NumPy: x after one step per gradient.  For `test_optim.py`."""

import numpy as np

import minigrad as mg
from minigrad import optim

KINDS = {
    "sgd": (optim.SGD, dict(lr=0.1)),
    "momentum": (optim.SGD, dict(lr=0.1, momentum=0.9, dampening=0.3, weight_decay=0.1)),
    "nesterov": (optim.SGD, dict(lr=0.1, momentum=0.9, nesterov=True, maximize=True)),
    "adam": (optim.Adam, dict(lr=0.1, betas=(0.8, 0.9), eps=1e-3, weight_decay=0.1)),
    "amsgrad": (optim.Adam, dict(lr=0.1, amsgrad=True, maximize=True)),
    "adamw": (optim.AdamW, dict(lr=0.1, weight_decay=0.1)),
    "adam decoupled": (optim.Adam, dict(lr=0.1, weight_decay=0.2, decoupled_weight_decay=True)),
    "rmsprop": (optim.RMSprop, dict(lr=0.1, alpha=0.9, momentum=0.5, weight_decay=0.1)),
    "centered": (optim.RMSprop, dict(lr=0.1, centered=True, eps=0.1)),
    "adagrad": (optim.Adagrad, dict(lr=0.1, lr_decay=0.2, initial_accumulator_value=0.3)),
    "adadelta": (optim.Adadelta, dict(lr=0.5, rho=0.8, eps=1e-2, weight_decay=0.1)),
    "adamax": (optim.Adamax, dict(lr=0.1, betas=(0.8, 0.9), eps=1e-2, weight_decay=0.1)),
    "nadam": (optim.NAdam, dict(lr=0.1, betas=(0.8, 0.9), eps=1e-2, weight_decay=0.1, momentum_decay=0.1)),
    "nadam decoupled": (optim.NAdam, dict(lr=0.1, weight_decay=0.3, decoupled_weight_decay=True, maximize=True)),
    "radam": (optim.RAdam, dict(lr=0.1, betas=(0.8, 0.6), eps=1e-2, weight_decay=0.1)),
    "radam known": (optim.RAdam, dict(lr=0.1, betas=(0.8, 0.99), eps=1e-2, maximize=True)),
    "asgd": (optim.ASGD, dict(lr=0.1, lambd=0.1, t0=2, weight_decay=0.1)),
    "rprop": (optim.Rprop, dict(lr=0.1, etas=(0.4, 1.3), step_sizes=(0.05, 0.15), maximize=True)),
    "lion": (optim.Lion, dict(lr=0.1, weight_decay=0.2)),
    "lars": (optim.LARS, dict(lr=0.5, momentum=0.8, weight_decay=0.1, trust_coefficient=0.1)),
    "lamb": (optim.LAMB, dict(lr=0.1, betas=(0.8, 0.9), eps=1e-2, weight_decay=0.1)),
}


def reference(kind, x, gradients):
    """x after one step per gradient, in float64."""
    cls, given = KINDS[kind]
    o = dict(cls([mg.zeros(1, requires_grad=True)], **given).param_groups[0])
    o.pop("params")
    s = dict.fromkeys(("m", "v", "top", "prev"), np.zeros_like(x))
    for t, g in enumerate(gradients, 1):
        g = -g if o["maximize"] else g
        if o.get("decoupled_weight_decay"):
            x = x * (1 - o["lr"] * o["weight_decay"])
        elif cls not in (optim.LARS, optim.LAMB):
            g = g + o["weight_decay"] * x
        x = FORMULAS[cls](x, g, t, s, o)
    return x


def sgd(x, g, t, s, o):
    s["m"] = g if t == 1 else o["momentum"] * s["m"] + (1 - o["dampening"]) * g
    return x - o["lr"] * (g + o["momentum"] * s["m"] if o["nesterov"] else s["m"] if o["momentum"] else g)


def averages(g, s, o):
    b1, b2 = o["betas"]
    s["m"], s["v"] = b1 * s["m"] + (1 - b1) * g, b2 * s["v"] + (1 - b2) * g * g
    return s["m"], s["v"]


def corrected(g, t, s, o):
    m, v = averages(g, s, o)
    return m / (1 - o["betas"][0] ** t), v / (1 - o["betas"][1] ** t)


def adam(x, g, t, s, o):
    m, v = corrected(g, t, s, o)
    s["top"] = np.maximum(s["top"], s["v"])
    if o["amsgrad"]:
        v = s["top"] / (1 - o["betas"][1] ** t)
    return x - o["lr"] * m / (np.sqrt(v) + o["eps"])


def rmsprop(x, g, t, s, o):
    a = o["alpha"]
    s["v"], s["top"] = a * s["v"] + (1 - a) * g * g, a * s["top"] + (1 - a) * g
    second = s["v"] - s["top"] ** 2 if o["centered"] else s["v"]
    s["m"] = o["momentum"] * s["m"] + g / (np.sqrt(second) + o["eps"])
    return x - o["lr"] * s["m"]


def adagrad(x, g, t, s, o):
    s["v"] = s["v"] + g * g + (o["initial_accumulator_value"] if t == 1 else 0)
    return x - o["lr"] / (1 + (t - 1) * o["lr_decay"]) * g / (np.sqrt(s["v"]) + o["eps"])


def adadelta(x, g, t, s, o):
    s["v"] = o["rho"] * s["v"] + (1 - o["rho"]) * g * g
    d = np.sqrt(s["m"] + o["eps"]) / np.sqrt(s["v"] + o["eps"]) * g
    s["m"] = o["rho"] * s["m"] + (1 - o["rho"]) * d * d
    return x - o["lr"] * d


def adamax(x, g, t, s, o):
    b1, b2 = o["betas"]
    s["m"] = b1 * s["m"] + (1 - b1) * g
    s["v"] = np.maximum(b2 * s["v"], np.abs(g) + o["eps"])
    return x - o["lr"] / (1 - b1**t) * s["m"] / s["v"]


def nadam(x, g, t, s, o):
    m, v = averages(g, s, o)
    mu = [o["betas"][0] * (1 - 0.5 * 0.96 ** (k * o["momentum_decay"])) for k in range(1, t + 2)]
    ahead = mu[t] * m / (1 - np.prod(mu)) + (1 - mu[t - 1]) * g / (1 - np.prod(mu[:-1]))
    return x - o["lr"] * ahead / (np.sqrt(v / (1 - o["betas"][1] ** t)) + o["eps"])


def radam(x, g, t, s, o):
    b2 = o["betas"][1]
    m, v = averages(g, s, o)
    m, far = m / (1 - o["betas"][0] ** t), 2 / (1 - b2) - 1
    rho = far - 2 * t * b2**t / (1 - b2**t)
    if rho <= 5:
        return x - o["lr"] * m
    r = np.sqrt((rho - 4) * (rho - 2) * far / ((far - 4) * (far - 2) * rho))
    return x - o["lr"] * m * r * np.sqrt(1 - b2**t) / (np.sqrt(v) + o["eps"])


def asgd(x, g, t, s, o):
    eta = o["lr"] / (1 + o["lambd"] * o["lr"] * (t - 1)) ** o["alpha"]
    return x * (1 - o["lambd"] * eta) - eta * g


def rprop(x, g, t, s, o):
    size = s.setdefault("size", np.full_like(x, o["lr"]))
    turn = np.sign(g * s["prev"])
    s["size"] = np.clip(size * np.select([turn > 0, turn < 0], [o["etas"][1], o["etas"][0]], 1.0), *o["step_sizes"])
    s["prev"] = np.where(turn < 0, 0, g)
    return x - np.sign(s["prev"]) * s["size"]


def lion(x, g, t, s, o):
    b1, b2 = o["betas"]
    step = np.sign(b1 * s["m"] + (1 - b1) * g)
    s["m"] = b2 * s["m"] + (1 - b2) * g
    return x - o["lr"] * step


def length(x):
    return np.sqrt((x * x).sum())


def lars(x, g, t, s, o):
    n = length(x)
    trust = o["trust_coefficient"] * n / (length(g) + o["weight_decay"] * n + o["eps"]) if n * length(g) > 0 else 1.0
    s["m"] = o["momentum"] * s["m"] + trust * (g + o["weight_decay"] * x)
    return x - o["lr"] * s["m"]


def lamb(x, g, t, s, o):
    m, v = corrected(g, t, s, o)
    r = m / (np.sqrt(v) + o["eps"]) + o["weight_decay"] * x
    return x - o["lr"] * (length(x) / length(r) if length(x) * length(r) > 0 else 1.0) * r


FORMULAS = {
    optim.SGD: sgd, optim.Adam: adam, optim.AdamW: adam, optim.RMSprop: rmsprop, optim.Adagrad: adagrad,
    optim.Adadelta: adadelta, optim.Adamax: adamax, optim.NAdam: nadam, optim.RAdam: radam, optim.ASGD: asgd,
    optim.Rprop: rprop, optim.Lion: lion, optim.LARS: lars, optim.LAMB: lamb,
}  # fmt: skip
