"""From a chain of references to a cause: which of the known leaks it is, in which line, and the way out.

Reads the chains of `why.py`; `leaks.py` says what grows and asks here why.
"""
from __future__ import annotations

import gc
import linecache
import re
import sys
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import _lru_cache_wrapper
from types import CodeType, FrameType, FunctionType, GeneratorType, MethodType, TracebackType
from typing import Any

from minigrad.memory.live import is_a, of_kinds
from minigrad.memory.why import Chain, Held, chains, variables
from minigrad.nn.module import Module
from minigrad.optim.optimizer import Optimizer
from minigrad.sites import cells
from minigrad.sweep import Hooked
from minigrad.tensor import Node, Tensor, View

BOXES = (list, dict, set, deque, tuple)
FILLS = (r"(\s*\[[^\]]*\])*\s*"
         r"(\.(append|appendleft|add|extend|insert|update|setdefault)\s*\(|\[[^\]]*\]\s*=[^=]|\+=|\|=)")
NOTEBOOK = re.compile(r"Out|_oh|_|__|___|_\d+")


@dataclass(frozen=True)
class Cause:
    """`line`: "file:line: its text" of what keeps the memory, or as near to it as can be told."""

    kind: str
    words: str
    line: str
    way_out: str
    chain: str = ""


class Context:
    """What is the same for all that is asked about: the variables, and the hooks that are registered."""

    def __init__(self) -> None:
        self.variables = variables()
        self.hooks = {id(f): f for x in of_kinds(gc.get_objects(), Module, Tensor, Hooked) for f in hooks_of(x)}


def cause_of(thing: Any, context: Context) -> Cause | None:
    """Why a tensor or node is alive; None where it is kept by a cache with a bound, which fills and then stops."""
    found = chains(thing, most=1, limit_s=5, known=context.variables)[0]
    causes = [_of_chain(chain, thing, context.hooks) for chain in found]
    if causes and any(c is None for c in causes):
        return None
    known = sorted((c for c in causes if c), key=lambda c: RANK.index(c.kind))
    return known[0] if known else Cause(
        "unknown", "kept by something that Python's collector does not show", made(thing),
        "look for C extensions and threads that keep references")


def _of_chain(chain: Chain, thing: Any, hooks: dict[int, Any]) -> Cause | None:
    """The first of the rules that says something; None for a cache with a bound."""
    steps = chain.steps
    things = [h.thing for h in steps]
    for x in things:
        if is_a(x, _lru_cache_wrapper) and x.cache_parameters()["maxsize"] is not None:
            return None
        if is_a(x, deque) and x.maxlen is not None:
            return None
    for rule in RULES:
        found = _hook(chain, steps, things, hooks) if rule is _hook else rule(chain, steps, things)
        if found is not None:
            kind, words, line, way_out = found
            return Cause(kind, words, line or made(thing), way_out, str(chain))
    return None


# ---- the rules: (kind, words, line, way out), or None --------------------------------------------
def _exception(chain: Chain, steps: list[Held], things: list) -> tuple | None:
    frame = next((x for x in things if is_a(x, FrameType)), None)
    if frame is None or not any(is_a(x, TracebackType | BaseException) for x in things):
        return None
    code = frame.f_code
    return ("exception", f"a kept exception ({chain.root}) holds its traceback, that holds the frame of "
            f"{code.co_name}(), and that all its variables", line_text_at(code.co_filename, frame.f_lineno),
            "keep str(error), or drop it: error.with_traceback(None)")


def _cache(chain: Chain, steps: list[Held], things: list) -> tuple | None:
    cache = next((x for x in things if is_a(x, _lru_cache_wrapper)), None)
    if cache is None:
        return None
    return ("cache", f"the cache of {title(cache.__wrapped__)}() has no bound, and its keys or results hold tensors: "
            "a tensor equals only itself, so each call adds one", defined_at(cache.__wrapped__),
            "do not cache by tensors, or give it a maxsize")


def _hook(chain: Chain, steps: list[Held], things: list, hooks: dict[int, Any]) -> tuple | None:
    function = next((x for x in things if id(x) in hooks), None)
    if function is None:
        boxes = [x for x in things if is_a(x, BOXES)]
        function = next((f for f in hooks.values() if any(_reaches(f, box) for box in boxes)), None)
    if function is None:
        return None
    return ("hook", f"the hook {title(function)} keeps what it is shown{_in_box(chain, steps)}",
            filled_at(chain, steps) or defined_at(function),
            "keep numbers (x.detach().mean().item()), or clear the box at each step; handle.remove() ends the hook")


def _notebook(chain: Chain, steps: list[Held], things: list) -> tuple | None:
    if chain.root.code is not None or not NOTEBOOK.fullmatch(chain.root.name) or chain.root.owner != "__main__":
        return None
    return ("notebook", f"the notebook keeps what cells showed: `{chain.root.name}`", "",
            "end such a cell with `;`, show loss.item(), or run %reset -f out")


def _loader(chain: Chain, steps: list[Held], things: list) -> tuple | None:
    loop = next((x for x in things if is_a(x, GeneratorType) and "DataLoader" in x.__qualname__), None)
    if loop is None:
        return None
    return ("loader", f"loops over a DataLoader that have not ended hold their batches{_in_box(chain, steps)}",
            filled_at(chain, steps), "end the loop, or close it: iterator.close(); do not keep iterators")


def _optimizer(chain: Chain, steps: list[Held], things: list) -> tuple | None:
    optimizer = next((x for x in things if is_a(x, Optimizer)), None)
    if optimizer is None:
        return None
    step = next(h for h in steps if h.thing is optimizer)
    return ("optimizer", f"{type(optimizer).__name__}{step.name} keeps parameters that were replaced, with their state",
             _filled(r"\.add_param_group\s*\(", chain) or filled_at(chain, steps),
            "make a new optimizer when the parameters change, or take the old ones out of param_groups and state")


def _gradient(chain: Chain, steps: list[Held], things: list) -> tuple | None:
    if not any(h.name == ".grad" and is_a(h.thing, Tensor) and is_a(h.thing.grad.node, Node) for h in steps):
        return None
    return ("gradient", "a .grad has a history: backward(create_graph=True) adds to it, and the graphs of all steps "
            "hang on it", _filled(r"create_graph\s*=\s*True", chain),
            "set .grad to None before each step (zero_grad()), or take autograd.grad(…, create_graph=True)")


def _closure(chain: Chain, steps: list[Held], things: list) -> tuple | None:
    step = next((h for h in steps if is_a(h.thing, FunctionType) and h.name), None)
    if step is None:
        return None
    how = f"{step.name}, a tensor" if "closes over" in step.name else " has a tensor as default argument"
    return ("closure", f"the function {title(step.thing)}{how}{_in_box(chain, steps)}", defined_at(step.thing),
            "let it keep the number, not the tensor: value = loss.item() before, and use `value` in it")


def _history(chain: Chain, steps: list[Held], things: list) -> tuple | None:
    if not any(is_a(x, BOXES) for x in _above_the_graph(things)):
        return None
    if is_a(things[-1], Node) and any(is_a(x, Tensor) for x in things):
        return None                                          # the graph grows, not the box
    graph = any(is_a(x, Node) or (is_a(x, Tensor) and is_a(x.node, Node)) for x in things)
    what = "tensors with the graph behind them" if graph else "tensors or arrays"
    return ("history", f"{what} are collected{_in_box(chain, steps)}", filled_at(chain, steps),
            "append loss.item() or loss.detach(), not the tensor" if graph
            else "keep numbers, clear it at each step, or bound it: collections.deque(maxlen=…)")


def _running(chain: Chain, steps: list[Held], things: list) -> tuple | None:
    holder = next((x for x in things if is_a(x, Tensor)), None)
    if not any(is_a(x, Node) for x in things) or holder is None:
        return None
    return ("running", f"{_name(chain, steps)} is computed from its own last value, so its graph grows",
            made(holder), "add numbers: total += loss.item(); carry a state on with h = h.detach()")


def _anything(chain: Chain, steps: list[Held], things: list) -> tuple | None:
    return "kept", f"kept by {_name(chain, steps)}", filled_at(chain, steps), "delete it when the step ends"


RULES: tuple[Callable[..., tuple | None], ...] = (
    _exception, _cache, _hook, _notebook, _loader, _gradient, _optimizer, _closure, _history, _running, _anything)
RANK = ("exception", "cache", "hook", "notebook", "loader", "gradient", "optimizer", "closure", "history", "running",
        "kept", "unknown")


# ---- where -------------------------------------------------------------------------------------
def made(thing: Any) -> str:
    """The line that made a tensor, a node, or what a view shows; empty where none is known."""
    node = thing.node if is_a(thing, Tensor) else thing
    if is_a(thing, View) and not is_a(node, Node):
        return made(thing.base)
    return f"{node.made_at}: {node.line}" if is_a(node, Node) else ""


def filled_at(chain: Chain, steps: list[Held]) -> str:
    """The line of the program that adds to the box: sought by the box's name in the source that knows it."""
    for above, h in zip([None, *steps], steps):
        if is_a(h.thing, BOXES):
            name = chain.root.name if above is None else above.name.strip().lstrip(".")
            named = re.fullmatch(r"closes over `(\w+)`", name)
            name = named[1] if named else name
            if name.isidentifier():
                owner = None if above is None else above.thing
                before = r"\." if above is not None and above.name.startswith(".") else r"(?<![\w.])"
                again = rf"|\s*=(?!=)[^=]*(?<![\w.'\"]){re.escape(name)}\s*\+"          # name = name + […]
                return _filled(rf"{before}{re.escape(name)}({FILLS}{again})", chain, owner)
    return ""


def _filled(pattern: str, chain: Chain, owner: Any = None) -> str:
    """The first line that matches: in the methods of the owner, in the function that has the variable, then in the
    files that may know it."""
    codes = [f.__code__ for f in vars(_class(owner)).values() if is_a(f, FunctionType)]
    codes += [chain.root.code] if chain.root.code is not None else []
    found = next((line for code in codes if (line := line_in(code, pattern))), "")
    return found or next((line for file in _files(chain, owner) if (line := _match(file, pattern))), "")


def _match(file: str, pattern: str, first: int = 1, last: int | None = None) -> str:
    """The first of the lines of a file, its comments apart, in which the pattern is found."""
    for n, text in enumerate(linecache.getlines(file)[first - 1:last], first):
        if re.search(pattern, text.split("#")[0]):
            return line_text_at(file, n)
    return ""


def line_in(code: CodeType, pattern: str) -> str:
    return _match(code.co_filename, pattern, code.co_firstlineno, _last_line(code))


def _files(chain: Chain, owner: Any) -> list[str]:
    titles = [_class(owner).__module__] if owner is not None else []
    titles += [chain.root.owner] if chain.root.code is None else []
    files = [getattr(sys.modules.get(t), "__file__", None) for t in titles]
    files += [chain.root.code.co_filename] if chain.root.code is not None else []
    return [f for f in files if f] + [*cells()]


def _class(owner: Any) -> type:
    return owner if is_a(owner, type) else type(owner)


def _last_line(code: CodeType) -> int:
    own = max((n for _, _, n in code.co_lines() if n), default=code.co_firstlineno)
    return max([own, *(_last_line(c) for c in code.co_consts if isinstance(c, CodeType))])


def line_text_at(file: str, line: int) -> str:
    cell = cells().get(file)
    where = f"{file}:{line}" if cell is None else f"cell [{cell}]:{line}"
    text = linecache.getline(file, line).strip()
    return f"{where}: {text}" if text else where


def defined_at(function: Any) -> str:
    code = getattr(_plain(function), "__code__", None)
    return "" if code is None else line_text_at(code.co_filename, code.co_firstlineno)


# ---- names -------------------------------------------------------------------------------------
def _name(chain: Chain, steps: list[Held]) -> str:
    """`total` or `Model.state`: the last name before the graph."""
    named = (f"`{type(h.thing).__name__}{h.name}`" for h in steps if h.name.startswith(".") and is_a(h.thing, Module))
    return next(named, str(chain.root))


def _in_box(chain: Chain, steps: list[Held]) -> str:
    box = next((h.thing for h in steps if is_a(h.thing, BOXES) and len(h.thing) > 1), None)
    return "" if box is None else f", in a {type(box).__name__} of {len(box)}: {_name(chain, steps)}"


def title(function: Any) -> str:
    return f"{getattr(_plain(function), '__qualname__', type(function).__name__).split('<locals>.')[-1]}"


def _plain(function: Any) -> Any:
    """The Python function in a bound method or a partial."""
    while is_a(function, MethodType) or hasattr(function, "func"):
        function = function.__func__ if is_a(function, MethodType) else function.func
    return function


def _above_the_graph(things: Iterable) -> list:
    """What stands above the first tensor or node."""
    found = []
    for x in things:
        if is_a(x, Tensor | Node):
            break
        found.append(x)
    return found


def cause_of_hook(hook: Any) -> Cause:
    """One that is registered at each step: the line that registers it, if its name is found there, else its own."""
    plain, name = _plain(hook), title(hook)
    code = getattr(plain, "__code__", None) or getattr(plain.__call__, "__code__", None)
    line = "" if code is None else _registered_at(code, name.rpartition(".")[2]) or (
        line_text_at(code.co_filename, code.co_firstlineno))
    return Cause("hook", f"the hook {name} is registered again at each step, and none is removed", line,
                 "register it once before the loop, or remove it: handle.remove(), or `with module.register_…(hook):`")


def _registered_at(code: CodeType, name: str) -> str:
    """Of a function without a name in its own lines; of others where it is named, of local ones after they are made."""
    register = r"\bregister_\w*hook\w*\s*\("
    if not name.isidentifier():
        return line_in(code, register)
    pattern = rf"{register}.*\b{re.escape(name)}\b"
    first = code.co_firstlineno if "<locals>" in code.co_qualname else 1
    return _match(code.co_filename, pattern, first) or _match(code.co_filename, pattern)


# ---- hooks -------------------------------------------------------------------------------------
def hooks_of(x: Any) -> list:
    """The hooks of a module, a leaf, or a node's plan."""
    if is_a(x, Module):
        entries = [entry for place in x._hooks.values() for entry in place.values()]
        return [entry[0] if isinstance(entry, tuple) else entry for entry in entries]
    if is_a(x, Tensor) and hasattr(x, "array"):
        return [*(x.hooks or {}).values()]
    return [*x.hooks.values()] if type(x) is Hooked else []


def _reaches(function: Any, box: Any) -> bool:
    """Whether a hook knows this box: by its closure, by a global name, or through its own object."""
    owner = getattr(function, "__self__", None)
    if owner is not None and any(v is box for v in getattr(owner, "__dict__", {}).values()):
        return True
    plain = _plain(function)
    if not is_a(plain, FunctionType):
        return any(v is box for v in getattr(function, "__dict__", {}).values())
    cells_ = [c.cell_contents for c in plain.__closure__ or () if c != type(c)()]
    inside = [v for c in cells_ for v in getattr(c, "__dict__", {}).values()]
    names = [plain.__globals__.get(n) for n in plain.__code__.co_names]
    return any(v is box for v in (*cells_, *inside, *names))


__all__ = ["BOXES", "Cause", "Context", "cause_of", "cause_of_hook", "defined_at", "hooks_of", "line_in",
           "line_text_at", "made", "title"]
