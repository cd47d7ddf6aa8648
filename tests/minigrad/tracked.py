"""What the tests of the memory tracker share: the account against itself, and nets whose bytes are known."""
from minigrad import nn
from minigrad.memory.handler import functions_now


def handler_now():
    return [getattr(functions_now(), name) for name, _ in functions_now()._fields_]


def check(t):
    """The account against itself: the timeline is what was told, at every event."""
    events, by_category = t.timeline()
    totals = [sum(each) for each in zip(*by_category.values())]
    assert all(n >= 0 for each in by_category.values() for n in each)
    assert totals[-1] == t.live == sum(t.by_category().values()) == t.now().nbytes
    assert {c: each[-1] for c, each in by_category.items()} == t.by_category() == t.now().by_category
    peak = t.at_peak()
    assert peak.nbytes == t.peak == sum(peak.by_line.values()) == sum(peak.by_module.values())
    if events[0] <= t.peak_event:
        assert max(totals) == t.peak == totals[t.peak_event - events[0]]
        assert {c: each[t.peak_event - events[0]] for c, each in by_category.items()} == peak.by_category


def grown(t, since):
    """By category, since a `by_category()`: the process holds arrays of other tests too."""
    return {c: n - since[c] for c, n in t.by_category().items()}


def mlp(wide=8):
    return nn.Sequential(nn.Linear(4, wide), nn.ReLU(), nn.Linear(wide, 3))


def nbytes(model):
    return sum(p.array.nbytes for p in model.parameters())
