"""Leaks: each of the planted ones is found, named, and its line told.

The line that a test expects carries a mark, `# leaks here`, within the test.
"""

import functools
import gc
import sys

import numpy as np
import pytest

import minigrad as mg
from minigrad import nn
from minigrad.data import DataLoader, TensorDataset
from minigrad.memory import LeakCheck, find_leaks
from minigrad.nn.functional import cross_entropy
from tests.minigrad.leak_programs import X, Y, the_leak, train, trainer


# ---- the four that everybody knows ---------------------------------------------------------------
def test_loss_history():
    net, opt = trainer()
    losses = []
    with LeakCheck() as check:
        for _ in range(12):
            loss = cross_entropy(net(X), Y)
            opt.zero_grad()
            loss.backward(retain_graph=True)
            opt.step()
            losses.append(loss)  # leaks here
            check.step()
    leak = the_leak(check.report, "history", test_loss_history)
    assert "`losses`" in leak.cause.words and "item()" in leak.cause.way_out
    assert leak.nbytes > 4 * 8 * 5                            # the graph hangs on it: at least relu's output


@pytest.mark.parametrize("how", ["append", "setdefault", "attribute"])
def test_history_in_other_boxes(how):
    net, opt = trainer()
    kept, net.kept = {}, []
    n = iter(range(99))

    def step():
        loss = train(net, opt)
        if how == "append":
            kept.setdefault("losses", []).append(loss)
        elif how == "setdefault":
            kept.setdefault(next(n), loss)
        else:
            net.kept.append(loss)

    leaks = find_leaks(step).leaks
    assert [leak.kind for leak in leaks] == ["history"]
    want = "net.kept.append(loss)" if how == "attribute" else "kept.setdefault"
    assert want in leaks[0].line, leaks[0]


def test_closure():
    net, opt = trainer()
    callbacks = []

    def step():
        loss = train(net, opt)

        def report():  # leaks here
            return loss.item()

        callbacks.append(report)

    leak = the_leak(find_leaks(step), "closure", test_closure)
    assert "report closes over `loss`" in leak.cause.words


def test_default_argument():
    net, opt = trainer()
    callbacks = []

    def step():
        loss = train(net, opt)
        callbacks.append(lambda loss=loss: loss)  # leaks here

    the_leak(find_leaks(step), "closure", test_default_argument)


@pytest.mark.parametrize("place", ["closure", "object"])
def test_hook_that_keeps_activations(place):
    net, opt = trainer()
    kept = []

    class Recorder:
        def __init__(self):
            self.seen = []

        def __call__(self, module, args, out):
            self.seen.append(out)

    recorder = Recorder()
    net[0].register_forward_hook((lambda m, i, o: kept.append(o)) if place == "closure" else recorder)
    leaks = find_leaks(lambda: train(net, opt)).leaks
    assert [leak.kind for leak in leaks] == ["hook"]
    assert ("kept.append(o)" if place == "closure" else "self.seen.append(out)") in leaks[0].line


def test_hook_registered_again_at_each_step():
    net, opt = trainer()

    def look(module, args, out):
        pass

    def step():
        net[0].register_forward_hook(look)  # leaks here
        train(net, opt)

    leak = the_leak(find_leaks(step), "hook", test_hook_registered_again_at_each_step)
    assert "again at each step" in leak.cause.words and "handle.remove()" in leak.cause.way_out

    def clean():
        with net[0].register_forward_hook(look):
            train(net, opt)

    assert not find_leaks(clean).leaks


class Remembers(nn.Module):
    """Holds its output, whose graph holds the module by a hook."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 3)

    def forward(self, x):
        self.out = self.linear(x)
        self.out.register_hook(lambda g: self.note(g))  # leaks here
        return self.out

    def note(self, g):
        pass


def test_cycle_through_a_module():
    leak = the_leak(find_leaks(lambda: cross_entropy(Remembers()(X), Y).backward()), "cycle", Remembers)
    assert "module Remembers" in leak.cause.words and "hook" in leak.cause.words and ".out" in leak.cause.chain
    assert leak.nbytes > 0


def test_a_cycle_is_told_from_what_is_held_and_is_freed():
    made = []
    collected = gc.collect, gc.isenabled()

    def step():
        m = Remembers()
        m(X)
        made.append(np.zeros(3))

    report = find_leaks(step)
    assert sorted(leak.kind for leak in report.leaks) == ["cycle", "history"]
    assert not [x for x in gc.get_objects() if type(x) is Remembers] and not gc.garbage
    assert collected == (gc.collect, gc.isenabled()) and not gc.get_debug()


# ---- more kinds --------------------------------------------------------------------------------
def test_gradient_with_a_history():
    net, _ = trainer()

    def step():
        cross_entropy(net(X), Y).backward(create_graph=True)  # leaks here

    the_leak(find_leaks(step, 12), "gradient", test_gradient_with_a_history)


def test_kept_exception():
    net, _ = trainer()
    errors = []

    def step():
        hidden = net(X)
        try:
            hidden @ hidden
        except ValueError as error:
            errors.append(error)  # leaks here

    leak = the_leak(find_leaks(step), "exception", test_kept_exception)
    assert "step()" in leak.cause.words and "variable `hidden`" in leak.cause.chain


def test_exception_in_a_cycle():
    net, _ = trainer()

    def step():
        hidden = net(X)
        try:
            hidden @ hidden
        except ValueError as error:  # leaks here
            kept = error
        return kept is None

    leak = the_leak(find_leaks(step), "cycle", test_exception_in_a_cycle)
    assert "variable of step() keeps" in leak.cause.words


def test_cache_keyed_by_tensors():
    net, _ = trainer()

    @functools.lru_cache(None)  # leaks here
    def score(t):
        return t.sum()

    the_leak(find_leaks(lambda: score(net(X))), "cache", test_cache_keyed_by_tensors)


def test_optimizer_that_keeps_replaced_parameters():
    net, opt = trainer()

    def step():
        net[2] = nn.Linear(5, 3)
        opt.add_param_group({"params": list(net[2].parameters())})  # leaks here
        train(net, opt)

    the_leak(find_leaks(step), "optimizer", test_optimizer_that_keeps_replaced_parameters)


def test_running_sum_and_a_state_that_is_carried_on():
    net, opt = trainer()
    total = mg.zeros(())
    with LeakCheck() as check:
        for _ in range(8):
            total = total + train(net, opt)  # leaks here
            check.step()
    the_leak(check.report, "running", test_running_sum_and_a_state_that_is_carried_on)
    cell, h = nn.RNNCell(4, 5), mg.zeros(8, 5)
    with LeakCheck() as check:
        for _ in range(8):
            h = cell(X, h)
            check.step()
    assert [leak.kind for leak in check.report.leaks] == ["running"] and "`h`" in str(check.report)


def test_what_a_notebook_showed():
    net, _ = trainer()
    main = sys.modules["__main__"]
    main.Out = {}
    n = iter(range(99))
    try:

        def step():
            main.Out[next(n)] = cross_entropy(net(X), Y)  # leaks here

        leak = the_leak(find_leaks(step), "notebook", test_what_a_notebook_showed)
        assert "`Out`" in leak.cause.words
    finally:
        del main.Out


def test_loops_over_a_loader_that_do_not_end():
    loader, loops = DataLoader(TensorDataset(X, Y), batch_size=4), []

    def step():
        loop = iter(loader)
        next(loop)
        loops.append(loop)  # leaks here

    the_leak(find_leaks(step), "loader", test_loops_over_a_loader_that_do_not_end)


def test_arrays_and_detached_tensors():
    net, _ = trainer()
    arrays, tensors = [], []

    def keep_arrays():
        arrays.append({"out": net(X).detach().numpy()})

    def keep_tensors():
        tensors.append(net(X).detach())

    for step, name in ((keep_arrays, "arrays"), (keep_tensors, "tensors")):
        report = find_leaks(step)
        assert [leak.kind for leak in report.leaks] == ["history"] and f"{name}.append(" in report.leaks[0].line
        assert report.leaks[0].nbytes == 8 * 3 * 4 and report.leaks[0].count == 1


# ---- lines and holders that are easily confused ---------------------------------------------------
def test_the_line_of_a_hook_is_its_own_where_others_register_too():
    net, opt = trainer()
    net[2].register_forward_hook(lambda m, i, o: None)

    class Look:
        def see(self, module, args, out):
            pass

        def __call__(self, module, args, out):
            pass

    look = Look()
    hooks = {"lambda": lambda: net[0].register_forward_hook(lambda m, i, o: None),
             "method": lambda: net[0].register_forward_hook(look.see),
             "object": lambda: net[0].register_forward_hook(Look())}
    for name, register in hooks.items():
        (leak,) = find_leaks(register, 6).leaks
        assert leak.kind == "hook" and f'"{name}": lambda' in leak.line, leak


def test_a_holder_from_before_the_check_is_not_blamed():
    w, new = mg.ones(3, requires_grad=True), {}

    def made():
        return w * 2

    old = [made() for _ in range(50)]
    (leak,) = find_leaks(lambda: new.setdefault(len(new), made()), 8).leaks
    assert len(old) == 50 and "`new`" in leak.cause.words and "new.setdefault(" in leak.line, leak


class Shared:
    seen: list = []

    def add(self, x):
        Shared.seen.append(x)


def test_history_in_a_variable_of_a_class():
    w, shared = mg.ones(3, requires_grad=True), Shared()
    try:
        (leak,) = find_leaks(lambda: shared.add(w * 2), 8).leaks
    finally:
        Shared.seen.clear()
    assert leak.kind == "history" and "Shared.seen.append(x)" in leak.line, leak


def test_history_in_a_list_within_a_dict():
    w, log = mg.ones(3, requires_grad=True), {"loss": [], "accuracy": []}
    (leak,) = find_leaks(lambda: log["loss"].append((w * 2).sum()), 8).leaks
    assert leak.kind == "history" and 'log["loss"].append(' in leak.line, leak


def test_history_of_batches_that_differ_in_size():
    w, kept, sizes = mg.ones(9, requires_grad=True), [], iter([3, 1, 8, 2, 5, 9, 4, 7, 6, 2, 8, 1])
    (leak,) = find_leaks(lambda: kept.append(w[:next(sizes)] * 2), 12).leaks
    assert leak.kind == "history" and "kept.append(" in leak.line and 0 < leak.nbytes, leak
    sizes = iter([3, 1, 8, 2, 5, 9, 4, 7, 6, 2, 8, 1])
    assert not find_leaks(lambda: (w[:next(sizes)] * 2).sum().backward(), 12).leaks


def test_a_total_in_a_box_is_no_history():
    w, total = mg.ones(3, requires_grad=True), [0]

    def step():
        total[0] = total[0] + (w * 2).sum()  # leaks here

    the_leak(find_leaks(step, 8), "running", test_a_total_in_a_box_is_no_history)


def test_an_array_of_one_element_may_hold_a_large_one():
    kept = []
    (leak,) = find_leaks(lambda: kept.append(np.ones(1000)[:1]), 8).leaks
    assert leak.nbytes == 8000
    assert not find_leaks(lambda: kept.append(np.ones(1)), 8).leaks
