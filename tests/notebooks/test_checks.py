"""The checks of the notebooks: right answers pass, plausible wrong ones do not, nothing is told."""

import itertools
import math

import checks
import lesson
import numpy as np
import pytest
from pictures import graph, memory

import minigrad as mg
from minigrad.nn.models import DigitsCNN
from minigrad.tour import saved_bytes
from tests.notebooks.check_laws import (  # noqa: F401
    test_a_right_answer_passes,
    test_a_wrong_answer_is_told_what_is_off_in_one_line,
    test_an_open_answer_stops_nothing,
    test_every_check_has_right_and_wrong_answers,
)


def power(x, n):
    if n == 1:
        return x
    half = power(x, n // 2)
    return half * half * x if n % 2 else half * half


def broadcast(a, b):
    wide = max(len(a), len(b))
    a, b = (1,) * (wide - len(a)) + tuple(a), (1,) * (wide - len(b)) + tuple(b)
    return tuple(n if m == 1 else m for n, m in zip(a, b))


class Value:
    counter = itertools.count()

    def __init__(self, value, parents=(), rule=None, op="leaf"):
        self.value, self.parents, self.rule, self.op = value, parents, rule, op
        self.number, self.grad = next(Value.counter), 0.0

    def __add__(self, other):
        other = other if isinstance(other, Value) else Value(other)
        return Value(self.value + other.value, (self, other), lambda g: (g, g), "add")

    def __mul__(self, other):
        other = other if isinstance(other, Value) else Value(other)
        rule = lambda g: (g * other.value, g * self.value)
        return Value(self.value * other.value, (self, other), rule, "mul")

    def __sub__(self, other):
        return self + other * -1

    def tanh(self):
        y = math.tanh(self.value)
        return Value(y, (self,), lambda g: (g * (1 - y * y),), "tanh")


def all_before(y):
    found, todo = {y: None}, [y]
    for v in todo:
        new = [p for p in dict.fromkeys(v.parents) if p not in found]
        found.update(dict.fromkeys(new))
        todo += new
    return todo


def backward(y, g=1.0, order=lambda v: -v.number):
    grads = {y: g}
    for v in sorted(all_before(y), key=order):
        v.grad += grads.get(v, 0.0)
        shares = v.rule(grads.get(v, 0.0)) if v.parents else ()
        for parent, share in zip(v.parents, shares):
            grads[parent] = grads.get(parent, 0.0) + share


def breadth_first(y, g=1.0):
    place = {v: k for k, v in enumerate(all_before(y))}
    backward(y, g, order=place.__getitem__)


def recursive(y, g=1.0):
    y.grad += g
    for parent, share in zip(y.parents, y.rule(y.grad) if y.parents else ()):
        recursive(parent, share)


def divide(da, db):
    return lambda a, b: Value(
        a.value / b.value, (a, b), lambda g: (da(g, a, b), db(g, a, b)), "div"
    )


RIGHT_DIVIDE = divide(lambda g, a, b: g / b.value, lambda g, a, b: -g * a.value / b.value**2)


def swapped(a, b):
    y = RIGHT_DIVIDE(a, b)
    return Value(y.value, (b, a), y.rule, "div")


def fresh(a, b):
    return RIGHT_DIVIDE(Value(a.value), Value(b.value))


NET, BATCH = DigitsCNN(16).to("meta"), mg.zeros(64, 1, 8, 8, device="meta")
LABELS = mg.zeros(64, dtype=mg.int64, device="meta")
KEPT = saved_bytes(mg.nn.functional.cross_entropy(NET(BATCH), LABELS))
KEEPS = {"a + b": False, "a * b": True, "a.sum()": False, "a.sigmoid()": True, "a * 3": False, "a / b": True}
KEEPS["a.reshape(10, 100)"] = False
ORDERS = {"y u v h a b": True, "y u h v a b": False, "y v u h b a": True, "y u h a b v": False}
ORDERS["a b h u v y"] = False


def overwriting(y, g=1.0):
    """Gradients are set where they should be added."""
    before = {v: v.grad for v in all_before(y)}
    backward(y, g)
    for v, old in before.items():
        v.grad -= old


def paths(y, g=1.0):
    y.grad += g
    for parent, share in zip(y.parents, y.rule(g) if y.parents else ()):
        paths(parent, share)


RIGHT = {
    checks.check_conv: [(lambda i, o, k: i * o * k * k + o,)],
    checks.check_cross_entropy: [(0.69,), (math.log(2),)],
    checks.check_bytes: [(4 * KEPT,), (4 * KEPT // 1000 * 1000,)],
    checks.check_offset: [(lambda i, s, start: start + sum(a * b for a, b in zip(i, s)),)],
    checks.check_broadcast: [(broadcast,), (lambda a, b: list(broadcast(a, b)),)],
    checks.check_power: [(power,)],
    checks.check_keeps: [(KEEPS,)],
    checks.check_order: [(ORDERS,)],
    checks.check_engine: [(Value, backward)],
    checks.check_divide: [
        (divide(lambda g, a, b: g / b.value, lambda g, a, b: -g * a.value / b.value**2),)
    ],
    checks.check_matmul_vjp: [(lambda g, a, b: (g @ b.T, a.T @ g),)],
    checks.check_softmax_vjp: [(lambda g, y: y * (g - (g * y).sum(-1, keepdim=True)),)],
}
WRONG = {
    checks.check_conv: [(lambda i, o, k: o * k * k,), (lambda i, o, k: i * o * k * k,)],
    checks.check_cross_entropy: [(0.5,), (-0.69,)],
    checks.check_bytes: [(KEPT,), (2 * KEPT,)],
    checks.check_offset: [
        (lambda i, s, start: sum(a * b for a, b in zip(i, s)),),
        (lambda i, s, start: start + sum(i),),
        (lambda i, s, start: start + sum(a * abs(b) for a, b in zip(i, s)),),
    ],
    checks.check_broadcast: [
        (lambda a, b: tuple(map(max, zip(a, b))),),
        (lambda a, b: np.maximum(a[-1:], b[-1:]),),
        (lambda a, b: tuple(reversed(broadcast(a, b))),),
        (lambda a, b: tuple(map(max, itertools.zip_longest(a[::-1], b[::-1], fillvalue=1)))[::-1],),
    ],
    checks.check_power: [
        (lambda x, n: x**n,),
        (lambda x, n: math.prod([x] * (n - 1), start=x),),
        (lambda x, n: power(x.detach(), n),),
    ],
    checks.check_keeps: [({**KEEPS, "a + b": True},), ({k: not v for k, v in KEEPS.items()},), ({"a + b": False},)],
    checks.check_order: [({**ORDERS, "y u h v a b": True},), (dict.fromkeys(ORDERS, True),),
        ({},),
        (dict.fromkeys(ORDERS, "no"),)],
    checks.check_engine: [
        (Value, recursive),
        (Value, breadth_first),
        (Value, overwriting),
        (Value, paths),
        (Value, lambda y, g: backward(y)),
        (Value, lambda y, g: backward(y, g, order=lambda v: v.number)),
    ],
    checks.check_divide: [
        (divide(lambda g, a, b: g / b.value, lambda g, a, b: g * a.value / b.value**2),),
        (divide(lambda g, a, b: 1 / b.value, lambda g, a, b: -a.value / b.value**2),),
        (lambda a, b: a.value / b.value,),
        (swapped,),
        (fresh,),
    ],
    checks.check_matmul_vjp: [
        (lambda g, a, b: (g @ b, a @ g),),
        (lambda g, a, b: (a.T @ g, g @ b.T),),
        (lambda g, a, b: (mg.ones(*g.shape) @ b.T, a.T @ g),),
        (lambda g, a, b: g @ b.T,),
    ],
    checks.check_softmax_vjp: [
        (lambda g, y: g * y * (1 - y),),
        (lambda g, y: y * (g - (g * y).sum()),),
        (lambda g, y: y * (g - (g * y).sum(-1)),),
    ],
}


CHANGES_IN_PLACE = {checks.check_engine}


def unfinished(*inputs): ...


def test_code_that_stops_is_told_so(said):
    text = said(checks.check_power, lambda x, n: 1 / 0)
    assert text == "not yet: your code stopped with ZeroDivisionError: division by zero\n"


@pytest.mark.parametrize(
    "guess, truth, verdict",
    [
        (None, 3, "no guess yet"),
        (3, 3, "you said 3: yes"),
        (5, 3, "you said 5: not quite, off by 2"),
        ([3, 4], (3, 4), "you said [3, 4]: yes"),
        ("float32", mg.float32, "you said float32: yes"),
        (mg.float64, mg.float32, "you said float64: not quite"),
        (True, False, "you said True: not quite"),
        (1, True, "you said 1: not quite"),
        (2.3, 2.302585, "you said 2.3: yes"),
        ("three", 3, "you said three: not quite"),
        ((None, None), (1, 2), "no guess yet"),
    ],
)
def test_a_guess_is_shown_beside_the_truth(guess, truth, verdict, capsys):
    lesson.compare("what", guess, truth)
    line = capsys.readouterr().out
    assert line.startswith("what ") and line.rstrip().endswith(verdict)


def test_breaks_prints_the_error_and_says_when_there_was_none(capsys):
    with lesson.breaks():
        mg.ones(2) + mg.ones(3)
    with lesson.breaks():
        pass
    first, *_, last = capsys.readouterr().out.splitlines()
    assert first.startswith("ShapeError: add") and last == "nothing broke"


def test_the_picture_of_memory_finds_every_element():
    x = mg.arange(12).reshape(3, 4) * 1
    for t in (x, x.T, x[1:, ::2], x[2], x[1, 1], mg.arange(3).reshape(3, 1).expand(3, 4)):
        picture = memory(t)
        assert [float(picture.values[c]) for c in picture.cells.values()] == t.flatten().tolist()
        assert picture.svg.startswith("<svg") and repr(picture)
    with pytest.raises(ValueError, match="at most two axes"):
        memory(mg.zeros(2, 2, 2))


def test_the_picture_of_the_readers_engine_says_values_and_gradients():
    a = Value(2.0)
    y = a * a + a
    backward(y)
    text = graph(y, {"a": a, "y": y}, {a: a.grad}).text
    assert "a " in text and "= 2" in text and "grad 5" in text
