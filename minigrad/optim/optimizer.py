"""Optimizer: parameters in groups, each with its options and its state; what every optimiser shares.

An optimiser is its defaults, their check, the names of the arrays it keeps (`slots`), the numbers of one step
(`constants`) and the update of raw arrays in place (`update`), which runs on NumPy, sim and CuPy arrays alike.  After
`blocks.py`; `sgd.py` and `adam.py` come next.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from copy import deepcopy
from typing import Any

import numpy as np

from minigrad.autograd import enable_grad
from minigrad.aval import Aval
from minigrad.dtype import is_float
from minigrad.errors import GraphError, ShapeError
from minigrad.optim.blocks import Scratch, blocks
from minigrad.probes import phase
from minigrad.rows import Rows
from minigrad.tensor import Tensor, Writes, current

Group = dict[str, Any]


class Optimizer:
    """Base of all optimisers; `params`: an iterable of tensors, or of dicts with "params" and options of their own.

    (name, tensor) pairs, as `named_parameters()` gives them, may stand for tensors: the group's "param_names"."""

    def __init__(self, params: Iterable[Tensor | tuple[str, Tensor]] | Iterable[Group], defaults: Group) -> None:
        self.defaults = defaults
        self.state: dict[Tensor, dict[str, Any]] = {}
        self.param_groups: list[Group] = []
        self._scratch = Scratch()
        for group in self._groups(params):
            self.add_param_group(group)

    def _groups(self, params: Any) -> list[Group]:
        if isinstance(params, Tensor | dict):
            raise TypeError(
                f"{type(self).__name__}: params must be an iterable of tensors or of dicts, not a "
                f"{type(params).__name__}. Put it in a list"
            )
        found = list(params)
        if not found:
            raise ValueError(
                f"{type(self).__name__}: no parameters. Was the generator walked before, or does the model "
                "keep its layers in a plain list? Use model.parameters() anew, and nn.ModuleList"
            )
        return found if isinstance(found[0], dict) else [{"params": found}]

    # -- groups
    def add_param_group(self, param_group: Group) -> None:
        """Add parameters with options of their own; what is not given is taken from the defaults."""
        if not isinstance(param_group, dict) or "params" not in param_group:
            raise TypeError(f"{type(self).__name__}: a group is a dict with 'params', got {param_group!r}")
        params = param_group["params"]
        params = [params] if isinstance(params, Tensor) else list(params)
        names = [p[0] for p in params if isinstance(p, tuple) and len(p) == 2]
        if names and len(names) < len(params) or self.param_groups and bool(names) != self._named:
            raise ValueError(f"{type(self).__name__}: give names to all parameters, of all groups, or to none")
        params = [p[1] for p in params] if names else params
        group = {"params": params, **{k: v for k, v in {**self.defaults, **param_group}.items() if k != "params"}}
        if names:
            group["param_names"] = names
        self.check(group)
        taken = {id(p) for g in self.param_groups for p in g["params"]}
        for p in params:
            _check_parameter(p, type(self).__name__)
            if id(p) in taken:
                raise ValueError(
                    f"{type(self).__name__}: a parameter of shape {p.shape} appears twice; once is enough"
                )
            taken.add(id(p))
        self.param_groups.append(group)

    @property
    def _named(self) -> bool:
        return "param_names" in self.param_groups[0]

    def check(self, group: Group) -> None:
        """Refuse options outside their range."""
        self.at_least(group, *self.not_negative)
        self.at_least(group, *self.below_one, below=1.0)

    not_negative: tuple[str, ...] = ("lr", "weight_decay")  # the options that must be numbers of at least 0
    below_one: tuple[str, ...] = ()  # and those that must lie in [0, 1)

    def at_least(self, group: Group, *names: str, low: float = 0.0, below: float = np.inf) -> None:
        """ValueError unless each option is a number in [low, below)."""
        for name in names:
            for value in group[name] if isinstance(group[name], tuple | list) else (group[name],):
                if isinstance(value, Tensor) or not low <= value < below:
                    raise ValueError(
                        f"{type(self).__name__}: {name} = {group[name]!r} must be a number of at least {low:g}"
                        + (f" and below {below:g}" if below < np.inf else "")
                    )

    # -- gradients
    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop the gradients, or fill them with zeros (then momentum and decay go on acting)."""
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.grad = None if set_to_none else (p.grad.detach() if p.grad.requires_grad else p.grad).zero_()

    # -- the step
    def step(self, closure: Callable[[], Tensor] | None = None) -> Tensor | None:
        """Update every parameter that has a gradient.  `closure` computes the loss anew first; it is returned."""
        loss = None
        if closure is not None:
            with enable_grad():
                loss = closure()
        if current().observers:
            with phase(current().observers, "update", self):
                self._step_all()
        else:
            self._step_all()
        return loss

    def _step_all(self) -> None:
        for group in self.param_groups:
            known: dict = {}
            for p in group["params"]:
                if p.grad is not None:
                    self._step_one(p, p.grad, group, known)

    def _step_one(self, p: Tensor, g: Tensor | Rows, group: Group, known: dict) -> None:
        if g.shape != p.shape:
            raise ShapeError(f"{type(self).__name__}: a parameter of shape {p.shape} has a gradient of shape {g.shape}")
        if g.__class__ is Rows:
            g = self._rows(g, group)
        state = self.state.setdefault(p, {})
        names = self.slots(group)
        fresh = any(state.get(name) is None for name in names)
        if fresh:
            _start(p, state, names, self.beginning(group))
        self.count(state, group)
        if not p.o.eager:
            return
        key = fresh, *[state[name] for name in self.counted], p.o
        numbers = known.get(key)
        if numbers is None:
            lit = (lambda v: np.array(v, p.dtype)) if p.array.__class__ is np.ndarray else float
            numbers = known[key] = {k: lit(v) for k, v in self.constants(group, state, fresh).items()}
        if g.__class__ is Rows:
            self._step_rows(p, g, [state[name].array for name in names], numbers, group)
            return
        arrays = (p.array, g.array, *[state[name].array for name in names])
        for x, gx, *slots in (arrays,) if self.whole else blocks(arrays):
            self.update(x, gx, slots, numbers, group)
        Writes.note(p.array)

    # -- row-sparse gradients (`minigrad/rows.py`)
    rowwise = False  # whether a row without a gradient may be left alone, its state too: SGD, Adagrad, SparseAdam

    def _rows(self, g: Rows, group: Group) -> Rows | Tensor:
        """`g` with each row once; dense where momentum moves every row; RuntimeError where rows alone make no sense."""
        name = type(self).__name__
        if not self.rowwise or self.whole:
            raise GraphError(
                f"{name}: its step changes every row, the gradient has rows alone (embedding with sparse=True). "
                "Use SGD, Adagrad or SparseAdam, or sparse=False"
            )
        if group["weight_decay"]:
            raise GraphError(
                f"{name}: weight decay {group['weight_decay']} acts on every row, the gradient has rows alone "
                "(embedding with sparse=True). Put the table into a group with weight_decay=0, or use sparse=False"
            )
        return g.to_dense() if group.get("momentum") else g.coalesce()

    def _step_rows(self, p: Tensor, g: Rows, slots: list, numbers: dict, group: Group) -> None:
        """The step on the rows that have a gradient: the others, and their state, stay as they are."""
        index, whole = g.array_index, (p.array, *slots)
        x, *taken = (a[index] for a in whole)
        self.update(x, g.array_values, taken, numbers, group)
        for a, rows in zip(whole, (x, *taken)):
            a[index] = rows
        Writes.note(p.array)

    counted: tuple[str, ...] = ()  # the numbers kept for each parameter, such as "step"
    whole = False  # whether a step needs a parameter whole: for its norm

    def count(self, state: dict, group: Group) -> None:
        """Bring the numbers of a parameter's state to this step."""
        if "step" in self.counted:
            state["step"] = state.get("step", 0) + 1

    def slots(self, group: Group) -> tuple[str, ...]:
        """The names of the arrays kept for each parameter."""
        return ()

    def beginning(self, group: Group) -> float:
        """What they hold at first."""
        return 0.0

    def constants(self, group: Group, state: dict, fresh: bool) -> dict[str, float]:
        """The numbers of one step; `fresh` at a parameter's first."""
        raise NotImplementedError(f"{type(self).__name__} must define constants()")

    def update(self, x, g, slots: list, c: dict, group: Group) -> None:
        """Change `x` and its slots in place, given the gradient `g`, which must stay as it is."""
        raise NotImplementedError(f"{type(self).__name__} must define update()")

    def decayed(self, x, g, c: dict, group: Group):
        """The gradient with its sign (`maximize`) and weight decay: `g` itself, or scratch memory 1 or 2.

        A decoupled decay shrinks `x` instead (Loshchilov & Hutter 2019)."""
        if group.get("maximize"):
            g = np.negative(g, out=self._scratch.like(x, 1))
        if group["weight_decay"] and group.get("decoupled_weight_decay"):
            np.multiply(x, c["shrink"], out=x)
        elif group["weight_decay"]:
            decay = np.multiply(x, c["decay"], out=self._scratch.like(x, 2))
            g = np.add(g, decay, out=decay)
        return g

    # -- state
    def state_dict(self) -> dict[str, Any]:
        """{"state": {number: …}, "param_groups": […]}: parameters are numbered in the order of the groups."""
        params = [p for group in self.param_groups for p in group["params"]]
        number = {id(p): i for i, p in enumerate(params)}
        groups = [{**group, "params": [number[id(p)] for p in group["params"]]} for group in self.param_groups]
        return {"state": {number[id(p)]: dict(s) for p, s in self.state.items()}, "param_groups": groups}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over options and state, as copies on each parameter's device and in its dtype, and go on from there."""
        groups = state_dict["param_groups"]
        have, given = ([len(g["params"]) for g in gs] for gs in (self.param_groups, groups))
        if have != given:
            raise ValueError(
                f"{type(self).__name__}: the state has groups of {given} parameters, the optimiser of {have}"
            )
        params = [p for group in self.param_groups for p in group["params"]]
        numbers = [i for group in groups for i in group["params"]]
        by_number = dict(zip(numbers, params))
        state = {
            by_number[i]: {k: _placed(v, by_number[i]) for k, v in s.items()} for i, s in state_dict["state"].items()
        }
        self.param_groups = [
            {**_names(old), **deepcopy({k: v for k, v in new.items() if k != "params"}), "params": old["params"]}
            for new, old in zip(groups, self.param_groups)
        ]
        self.state = state

    def __getstate__(self) -> dict:
        return {**self.__dict__, "_scratch": Scratch()}

    def __repr__(self) -> str:
        lines = [f"{type(self).__name__} ("]
        for i, group in enumerate(self.param_groups):
            lines += [f"Parameter Group {i}", *(f"    {k}: {v}" for k, v in sorted(group.items()) if k != "params")]
        return "\n".join([*lines, ")"])


def _start(p: Tensor, state: dict, names: tuple[str, ...], value: float) -> None:
    """Arrays of one value for every slot that is not there."""
    for name in names:
        if state.get(name) is None:
            state[name] = Tensor(p.o.full(p.shape, value) if p.o.eager else Aval(p.shape, p.dtype))


def _names(group: Group) -> Group:
    """The names of a group's parameters, where it has them: a state without names leaves them."""
    return {k: group[k] for k in ("param_names",) if k in group}


def _check_parameter(p: Any, name: str) -> None:
    if not isinstance(p, Tensor):
        raise TypeError(f"{name}: a parameter must be a Tensor, got {type(p).__name__}")
    if not p.is_leaf:
        raise ValueError(
            f"{name}: a tensor of shape {p.shape} was made by an operation ({p.made_at}), so a step would not "
            "reach what it came from. Pass the leaf, or x.detach().requires_grad_()"
        )


def _placed(value: Any, p: Tensor) -> Any:
    """A copy of a state's value for parameter `p`."""
    if not isinstance(value, Tensor):
        return deepcopy(value)
    copy = value.detach().clone()
    return copy.to(device=p.o.device, dtype=p.dtype if is_float(copy.dtype) else None)
