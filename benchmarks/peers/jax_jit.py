"""JAX: loss, gradients and update as one compiled function, which gives its old parameters away."""

from itertools import cycle, repeat

import jax
import jax.numpy as jnp

from benchmarks import workloads
from benchmarks.peers.parts import jax_recurrent
from benchmarks.peers.parts.jax_models import MODELS, cross_entropy, relu
from benchmarks.workloads import Step


def stepper(loss_of, p, optimiser, batches) -> Step:
    """One compiled optimiser step on the next of the batches."""
    start, update = optimiser

    def one(p, state, *batch):
        loss, gradients = jax.value_and_grad(loss_of)(p, *batch)
        return *update(p, gradients, state), loss

    one = jax.jit(one, donate_argnums=(0, 1))
    state = start(p)

    def step():
        nonlocal p, state
        p, state, loss = one(p, state, *next(batches))
        jax.block_until_ready(p)
        return float(loss)

    return step


def train(workload: str, seed: int) -> Step:
    """A fixed batch."""
    p, x, labels = jax.tree.map(jnp.array, workloads.data(workload, seed))
    model, optimiser = MODELS[workload]

    def loss_of(p, x, labels):
        return cross_entropy(model(p, x), labels)

    return stepper(loss_of, p, optimiser, repeat((x, labels)))


def train_on_pool(workload: str, seed: int) -> Step:
    """Another shape every step, padded on the way in: inside the time, as its user has to do it."""
    arrays, pool = workloads.data(workload, seed)
    loss_of, optimiser, padded = jax_recurrent.MODELS[workload]
    return stepper(loss_of, jax.tree.map(jnp.array, arrays), optimiser, map(padded, cycle(pool)))


def infer(workload: str, seed: int) -> Step:
    """The forward pass alone."""
    p, x, _ = jax.tree.map(jnp.array, workloads.data(workload, seed))
    model, _ = MODELS[workload.removesuffix("_inf")]
    mean = jax.jit(lambda p, x: model(p, x).mean())
    return lambda: float(mean(p, x))


def tiny(workload: str, seed: int) -> Step:
    """Multiply, add, relu, subtract, over and over, compiled as one."""

    def loss_of(a, x):
        b = x
        for _ in range(workloads.H_ROUNDS):
            c = a * b + x
            b = relu(c)
            a = c - b
        return (a + b).sum()

    both = jax.jit(jax.value_and_grad(loss_of, (0, 1)))
    leaves = [jnp.array(array) for array in workloads.data(workload, seed)]
    return lambda: float(jax.block_until_ready(both(*leaves))[0])


BUILDERS = (
    dict.fromkeys("abcde", train)
    | dict.fromkeys("fg", train_on_pool)
    | dict.fromkeys(("c_inf", "e_inf"), infer)
    | {"h": tiny}
)


def make(workload: str, seed: int) -> Step:
    """The step of a workload."""
    return workloads.build(BUILDERS, workload, seed)
