"""What is no leak is not told as one, however long the loop; and the leak check as a tool of tests."""

import functools
import gc
import weakref
from collections import deque

import pytest
from minigrad.utils.checkpoint import checkpoint

import minigrad as mg
from minigrad import nn
from minigrad.data import DataLoader, TensorDataset
from minigrad.memory import LeakCheck, assert_no_leak, find_leaks
from minigrad.nn.functional import mse_loss
from tests.minigrad.leak_programs import X, Y, the_leak, train, trainer


# ---- what is none ----------------------------------------------------------------------------------
def test_logs_windows_and_caches_that_fill():
    net, opt = trainer()
    numbers, scalars, window = [], [], deque(maxlen=50)

    @functools.lru_cache(64)
    def score(t):
        return t.sum()

    def step():
        loss = train(net, opt)
        numbers.append(loss.item())
        scalars.append(loss.detach())
        window.append(net(X))
        score(net(X))

    report = find_leaks(step)
    assert not report.leaks, str(report)
    assert report.filling and "a cache that fills" in str(report)


def test_a_buffer_that_comes_and_goes():
    net, opt = trainer()
    kept, lengths = [], iter([1, 2, 3, 4, 5, 6, 5, 5, 5, 1, 5, 2, 5, 4, 5, 3, 5, 5, 5, 6])

    def step():
        kept.append(train(net, opt))
        del kept[:-next(lengths)]

    report = find_leaks(step, 20)
    assert not report.leaks, str(report)


def mlp():
    net, opt = trainer()
    return lambda: train(net, opt)


def conv():
    head = nn.Flatten(), nn.Dropout(0.5), nn.Linear(32, 3)
    net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU(), *head)
    opt = mg.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    images = mg.randn(8, 1, 6, 6)
    return lambda: train(net, opt, images)


def recurrent():
    net, head = nn.LSTM(4, 5), nn.Linear(5, 3)
    opt = mg.optim.AdamW([*net.parameters(), *head.parameters()])
    lengths = iter(list(range(1, 5)) * 20)

    def step():
        seq = mg.randn(next(lengths), 8, 4)                  # another graph at each step
        train(lambda x: head(net(x)[0][-1]), opt, seq)

    return step


def checkpointed():
    net, opt = trainer()
    return lambda: train(lambda x: checkpoint(net, x, use_reentrant=False), opt, X.clone().requires_grad_())


def second_derivatives():
    net, opt = trainer()

    def step():
        x = X.clone().requires_grad_()
        y = net(x).square().sum()
        (g,) = mg.autograd.grad(y, [x], create_graph=True)
        opt.zero_grad()
        (y + g.square().sum()).backward()
        opt.step()

    return step


def loaders():
    net, opt = trainer()
    data = DataLoader(TensorDataset(X, Y), batch_size=4, num_workers=2, shuffle=True, multiprocessing_context="thread")

    def step():
        for x, y in data:
            train(net, opt, x, y)

    return step


def attention():
    layer = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)
    opt = mg.optim.Adam(layer.parameters())
    x = mg.randn(2, 3, 4)

    def step():
        opt.zero_grad()
        layer(x).square().mean().backward()
        opt.step()

    return step


@pytest.mark.parametrize("make", [mlp, conv, recurrent, checkpointed, second_derivatives, loaders, attention])
def test_clean_steps(make):
    mg.manual_seed(0)
    report = assert_no_leak(make(), 12)
    assert not report.leaks and not report.filling, str(report)


def test_ten_thousand_clean_steps():
    """With Adam's state, a schedule, a rate and a slope that change at each step (the engine's bounded caches fill),
    saved states, a log, and values kept for a while."""
    w = nn.Parameter(mg.ones(3))
    opt = mg.optim.Adam([w], lr=0.1)
    schedule = mg.optim.lr_scheduler.CosineAnnealingLR(opt, 10_000)
    log, saved, recent, x = [], {}, deque(maxlen=100), mg.ones(3)
    with assert_no_leak() as check:
        for i in range(10_000):
            loss = nn.functional.leaky_relu(w - x * (1 / (i + 1)), 1 / (i + 2)).square().sum()
            opt.zero_grad()
            loss.backward()
            opt.step()
            schedule.step()
            log.append(loss.item())
            recent.append(loss)
            if i % 500 == 0:
                saved["last"] = {"opt": opt.state_dict(), "w": w.detach().clone()}
            check.step()
    assert check.report.steps == 10_000 == len(log) and "no leaks in 10000 steps" in str(check.report)


def test_a_leak_that_is_rare_is_found_in_a_long_loop():
    w, kept = nn.Parameter(mg.ones(3)), []
    with LeakCheck() as check:
        for i in range(3000):
            loss = mse_loss(w, X[0, :3])
            if i % 100 == 0:
                kept.append(loss)  # leaks here
            check.step()
    leak = the_leak(check.report, "history", test_a_leak_that_is_rare_is_found_in_a_long_loop)
    assert leak.count == pytest.approx(0.01, rel=0.3)


# ---- as a tool of tests ------------------------------------------------------------------------------
def test_assert_no_leak_says_what_and_where():
    net, opt = trainer()
    kept = []
    with pytest.raises(AssertionError, match=r"kept\.append\(train\(net, opt\)\)"):
        assert_no_leak(lambda: kept.append(train(net, opt)))
    kept.clear()
    with pytest.raises(AssertionError, match="history"):
        with assert_no_leak() as check:
            for _ in range(8):
                kept.append(train(net, opt))
                check.step()


def test_too_few_steps_are_refused():
    with pytest.raises(ValueError, match="3 steps are too few"):
        find_leaks(lambda: None, 3)
    with pytest.raises(AssertionError, match="2 steps are too few"):
        with assert_no_leak() as check:
            check.step(), check.step()
    with LeakCheck() as check:
        pass
    assert "too few" in str(check.report)
    with pytest.raises(RuntimeError, match="one loop"):
        check.step()
        check.__enter__()


@pytest.mark.parametrize("enabled", [True, False])
@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_an_error_leaves_the_collector_as_it_was(enabled, error):
    was = gc.isenabled()
    (gc.enable if enabled else gc.disable)()
    try:
        with pytest.raises(error):
            with LeakCheck() as check:
                for _ in range(3):
                    check.step()
                raise error
        assert gc.isenabled() == enabled and not gc.get_debug() and not gc.get_freeze_count() and not gc.garbage
        assert not check.report.leaks
    finally:
        (gc.enable if was else gc.disable)()


def test_checks_nest():
    net, opt = trainer()
    kept = []
    with LeakCheck() as outer:
        for _ in range(8):
            find_leaks(lambda: train(net, opt), 5)
            kept.append(train(net, opt))
            outer.step()
    assert [leak.kind for leak in outer.report.leaks] == ["history"] and not gc.get_freeze_count()


def test_looking_keeps_nothing_alive():
    """Before Python 3.13 a frame remembers the variables that it was asked for."""
    h = mg.ones(3, requires_grad=True).exp()
    gc.disable()
    try:
        told = mg.memory.why_alive(h, limit_s=20)
        ref = weakref.ref(h)
        del h
        freed = ref() is None
    finally:
        gc.enable()
    assert freed and "variable `h`" in told


def test_what_the_program_froze_is_asked_too():
    losses, net = [], nn.Linear(3, 3)
    gc.freeze()
    try:
        report = mg.memory.find_leaks(lambda: losses.append(net(mg.ones(2, 3)).sum()), steps=8)
    finally:
        gc.unfreeze()
    (leak,) = report.leaks
    assert leak.kind == "history" and "losses" in str(leak)
