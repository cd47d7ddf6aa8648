"""The checks of notebook 07: right answers pass, plausible wrong ones do not; its pictures say what they show."""

import checks_07 as checks
import pytest
from minigrad.utils.checkpoint import checkpoint
from pictures_07 import bars, timeline

import minigrad as mg
from minigrad import memory, nn
from tests.notebooks.check_laws import (  # noqa: F401
    test_a_right_answer_passes,
    test_a_wrong_answer_is_told_what_is_off_in_one_line,
    test_an_open_answer_stops_nothing,
    test_every_check_has_right_and_wrong_answers,
)


# ---- segments and their mutants -----------------------------------------------------------------
def segments(again=True, short=0, step=0, last=True, order=1, late=False):
    """Right by default; each argument plants one mistake."""

    def run(layers, x, size):
        parts = [layers[k : k + size] for k in range(0, len(layers) - short, size + step)]
        for part in parts[::order]:
            if part is parts[-1] and not last:
                part = part[:-1]
            function = nn.Sequential(*part)
            x = checkpoint(function, x) if again else function(x)
        return x

    return run


def late_binding(layers, x, size):
    """The function runs again when the loop has moved on."""
    for k in range(0, len(layers), size):
        part = layers[k : k + size]
        x = checkpoint(lambda h: nn.Sequential(*part)(h), x)  # noqa: B023 – the mistake
    return x


def each_alone(layers, x, size):
    for layer in layers:
        x = checkpoint(layer, x)
    return x


def all_in_one(layers, x, size):
    return checkpoint(nn.Sequential(*layers), x)


def in_detached_parts(layers, x, size):
    """Holds little, and has no gradient beyond the last border."""
    for k in range(0, len(layers), size):
        x = checkpoint(nn.Sequential(*layers[k : k + size]), x.detach())
    return x


def whole_parts_only(layers, x, size):
    for k in range(len(layers) // size):
        x = checkpoint(nn.Sequential(*layers[k * size : (k + 1) * size]), x)
    return x


def keeps_the_last(layers, x, size):
    """As the library: the last segment need not be computed again."""
    for k in range(0, len(layers), size):
        part = nn.Sequential(*layers[k : k + size])
        x = checkpoint(part, x) if k + size < len(layers) else part(x)
    return x


# ---- holes --------------------------------------------------------------------------------------
def best_fit(holes, nbytes):
    return min(((size, start) for start, size in holes if size >= nbytes), default=(0, -1))[1]


def first_fit(holes, nbytes):
    return min((start for start, size in holes if size >= nbytes), default=-1)


def worst_fit(holes, nbytes):
    return max(((size, start) for start, size in holes if size >= nbytes), default=(0, -1))[1]


def strictly_larger(holes, nbytes):
    return min(((size, start) for start, size in holes if size > nbytes), default=(0, -1))[1]


def in_order(holes, nbytes):
    return next((start for start, size in holes if size >= nbytes), -1)


def sorts_the_list(holes, nbytes):
    holes.sort(key=lambda hole: hole[1])
    return next((start for start, size in holes if size >= nbytes), -1)


def takes_any(holes, nbytes):
    return min(((size, start) for start, size in holes), default=(0, -1))[1]


KEPT = {"exp": "output", "sin": "input", "tanh": "output", "square": "input", "plus 1": "neither",
        "times 3": "neither", "sqrt": "output"}  # fmt: skip

RIGHT = {
    checks.check_ledger: [lambda p, a, b: 4 * (4 * p + a * b), lambda p, a, b: 16.0 * p + 4.0 * a * b],
    checks.check_kept: [KEPT],
    checks.check_segments: [segments(), keeps_the_last],
    checks.check_best_fit: [best_fit],
    checks.check_leaks: [dict(checks.LEAKS)],
}
WRONG = {
    checks.check_ledger: [
        lambda p, a, b: 4 * p + a * b,  # numbers, not bytes
        lambda p, a, b: 4 * (3 * p + a * b),  # one moment only
        lambda p, a, b: 4 * (2 * p + a * b),  # without Adam
        lambda p, a, b: 4 * (4 * p + a),  # one example
        lambda p, a, b: 4 * (4 * p + a) * b,  # parameters for each example
        lambda p, a, b: 8 * (4 * p + a * b),  # float64
        lambda p, a, b: "much",
    ],
    checks.check_kept: [
        {**KEPT, "square": "output"},
        {**KEPT, "tanh": "input"},
        {**KEPT, "times 3": "input"},
        {**KEPT, "sqrt": "input"},
        {**KEPT, "plus 1": "nothing"},
        {},
    ],
    checks.check_segments: [
        segments(again=False),
        segments(short=1),
        segments(last=False),
        segments(order=-1),
        each_alone,
        all_in_one,
        late_binding,
        in_detached_parts,
        whole_parts_only,
        lambda layers, x, size: checkpoint(lambda h: h, x),
    ],
    checks.check_best_fit: [first_fit, worst_fit, strictly_larger, in_order, sorts_the_list, takes_any],
    checks.check_leaks: [
        {**checks.LEAKS, "b": False},
        {**checks.LEAKS, "d": True},
        {**checks.LEAKS, "f": True},
        dict.fromkeys(checks.LEAKS, True),
        dict.fromkeys(checks.LEAKS, "yes"),
    ],
}


def test_the_answers_are_not_in_the_messages(said):
    assert "input" not in said(checks.check_kept, {**KEPT, "square": "output"}).split("wrong")[1]
    assert "72,000" not in said(checks.check_ledger, lambda p, a, b: 1)


@pytest.mark.parametrize("name", checks.LEAKS)
def test_what_the_notebook_calls_a_leak_is_one(name):
    """The table of check 5, run."""
    mg.manual_seed(0)
    net, x = nn.Sequential(nn.Linear(8, 8), nn.Tanh()), mg.randn(16, 8)
    log, state = [], {"total": 0, "best": None}

    def step():
        loss = net(x).square().sum()
        loss.backward()
        if name == "a":
            log.append(loss.item())
        elif name == "b":
            log.append(loss)
        elif name == "c":
            state["total"] = state["total"] + loss
        elif name == "d":
            log.append(loss.detach())
        elif name == "e":
            net.register_forward_hook(lambda m, i, y: log.append(y))
        elif state["best"] is None or loss.item() < state["best"].item():
            state["best"] = loss

    assert bool(memory.find_leaks(step, 6).leaks) is checks.LEAKS[name]


def test_a_bar_is_as_long_as_its_parts_and_says_them():
    picture = bars({"one": {"gradient": 1.0, "activation": 3.0}, "two": {"activation": 2.0}})
    first, second = repr(picture).splitlines()
    assert first.split(maxsplit=1) == ["one", "4 MB: gradient 1, activation 3"]
    assert second.split(maxsplit=1) == ["two", "2 MB: activation 2"]
    assert picture.svg.count("v24h-") == 3 and "h315.0v24" in picture.svg and "h210.0v24" in picture.svg


def test_a_timeline_is_a_picture_and_the_same_in_letters():
    x = mg.ones(100_000, requires_grad=True)
    with memory.track() as t:
        x.exp().sum().backward()
    bundle = timeline(t)._repr_mimebundle_()
    assert "peak" in bundle["text/plain"] and "A" in bundle["text/plain"] and "<svg" in bundle["image/svg+xml"]
