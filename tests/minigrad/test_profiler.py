"""A profile adds up exactly, counts what the graph has, holds through errors and threads, and changes no number."""
import contextvars
import json
import sys
import threading
import weakref

import numpy as np
import pytest

import minigrad as mg
import minigrad.nn.functional as F
from minigrad.tensor import Node, current
from minigrad.viz import profile as view

GROUPS = ("by_op", "by_module", "by_line")


def trained(steps=2, profile=None):
    """An MLP on a loader; its parameters afterwards."""
    mg.manual_seed(0)
    model = mg.nn.Sequential(mg.nn.Linear(3, 4), mg.nn.ReLU(), mg.nn.Sequential(mg.nn.Linear(4, 1)))
    data = mg.utils.data.TensorDataset(mg.randn(2 * steps, 3), mg.randn(2 * steps, 1))
    optimizer = mg.optim.Adam(model.parameters())
    for x, y in mg.utils.data.DataLoader(data, batch_size=2):
        optimizer.zero_grad()
        loss = ((model(x) - y) ** 2).mean()
        loss.backward()
        optimizer.step()
        if profile is not None:
            profile.step()
    return [p.detach().numpy().copy() for p in model.parameters()]


def rows(p, name, phase=None):
    return [row for row in p.by_op() if row.name == name and phase in (None, row.phase)]


def calls(p, name, phase=None):
    return sum(row.calls for row in rows(p, name, phase))


# ---- sums ----------------------------------------------------------------------------------------
def assert_adds_up(p):
    for by in GROUPS:
        assert sum(row.self_ns for row in getattr(p, by)()) == p.wall_ns, by
        assert all(0 <= row.self_ns <= row.total_ns for row in getattr(p, by)())
    assert sum(p.by_phase().values()) == p.wall_ns
    assert 0 <= p.outside_ns <= p.wall_ns and p.share_in_ops == 1 - p.outside_ns / p.wall_ns
    p.trace.check()


def test_self_times_are_the_wall_time_exactly():
    with mg.profile() as p:
        trained()
    assert_adds_up(p)
    assert set(p.by_phase()) == {"forward", "backward", "update", "load"}
    outside = rows(p, "outside ops")[0]
    assert outside.total_ns == p.wall_ns and outside.calls == 1
    assert p.outside_ns == outside.self_ns + rows(p, "walk of backward")[0].self_ns


def test_the_trace_tells_the_same():
    with mg.profile() as p:
        trained()
    for row in p.by_op():
        events = [e for e in p.trace if e.name == row.name and (e.args["phase"] == row.phase or e.kind == "outside")]
        assert len(events) == row.calls
        assert sum(e.duration_s for e in events) == pytest.approx(row.total_s, abs=1e-9)
        assert sum(e.flops or 0 for e in events) == (row.flops or 0)
    linear = next(e for e in p.trace if e.name == "Linear")
    assert linear.args["module"] == "Sequential.0" and "in trained" in linear.args["line"]


def test_a_module_has_the_time_of_those_inside():
    with mg.profile() as p:
        trained()
    by = {(row.name, row.phase): row for row in p.by_module()}
    for phase in ("forward", "backward"):
        inside = [r.self_ns for (name, ph), r in by.items() if ph == phase and name.startswith("Sequential")]
        assert by["Sequential", phase].total_ns == sum(inside)
        assert by["Sequential", phase].calls == 0 and by["Sequential.2.0", phase].calls == 2


# ---- counts --------------------------------------------------------------------------------------
def graph_of(y):
    found, todo = {}, [y.node]
    while todo:
        n = todo.pop()
        if isinstance(n, Node) and n not in found:
            found[n] = type(n.op).__name__
            todo += n.edges
    return sorted(found.values())


def test_calls_are_the_nodes_of_the_graph():
    x, w = mg.randn(4, 3, requires_grad=True), mg.randn(3, 3, requires_grad=True)
    with mg.profile() as p:
        y = (F.softmax(x @ w, -1) * x.exp() + x.exp()).sum()
        names = graph_of(y)
        y.backward()
    for name in set(names):
        assert calls(p, name, "forward") == calls(p, f"{name} (backward)") == names.count(name)
    assert calls(p, "AccumulateGrad (backward)") == 2
    assert sum(row.calls for row in p.by_op()) == 2 * len(names) + 2 + 2


def test_a_profiled_run_is_bit_equal_and_restores_the_mode():
    before, plain = current(), trained()
    with mg.profile():
        watched = trained()
    assert all(np.array_equal(a, b) for a, b in zip(plain, watched)) and current() == before


# ---- allocations ---------------------------------------------------------------------------------
def test_without_numba_all_else_is_there(monkeypatch):
    monkeypatch.setitem(sys.modules, "minigrad.memory.native", None)
    with mg.profile() as p:
        trained()
    assert_adds_up(p)
    assert "not counted" in p.not_counted and all(row.allocations is None for row in p.by_op())
    assert p.not_counted in str(p)
    with mg.profile(allocations=False) as p:
        trained()
    assert p.not_counted == "not asked for" and p.by_op()[0].allocated_bytes is None


# ---- what nests ----------------------------------------------------------------------------------
def test_checkpointing_shows_its_second_run_within_backward():
    x = mg.randn(3, requires_grad=True)
    with mg.profile() as p:
        mg.utils.checkpoint.checkpoint(lambda x: x.exp().sin(), x).sum().backward()
    for name in ("Exp", "Sin"):
        assert calls(p, name, "forward") == calls(p, name, "backward") == calls(p, f"{name} (backward)") == 1
    assert_adds_up(p)


@pytest.mark.parametrize("how", ["backward", "grad", "create_graph"])
def test_every_walk_is_phase_backward(how):
    x = mg.randn(3, requires_grad=True)
    with mg.profile() as p:
        y = (x.exp() * x).sum()
        if how == "grad":
            mg.autograd.grad(y, x)
        else:
            y.backward(create_graph=how == "create_graph")
    assert calls(p, "Exp (backward)", "backward") == 1
    assert (calls(p, "Mul", "backward") > 0) == (how == "create_graph")
    assert_adds_up(p)
    if x.grad is not None:
        x.grad = None                                         # the recorded backward refers to x


class Twice(mg.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, g):
        return g * 2


def test_a_function_of_the_users_own():
    x = mg.randn(1000, requires_grad=True)
    with mg.profile() as p:
        Twice.apply(x).sum().backward()
    assert calls(p, "Mul", "forward") == calls(p, "Mul", "backward") == calls(p, "Twice (backward)") == 1
    twice, mul = rows(p, "Twice (backward)")[0], rows(p, "Mul", "backward")[0]
    assert twice.total_ns == twice.self_ns + mul.self_ns and twice.flops is None
    assert mul.allocated_bytes == 4000 and twice.allocated_bytes < 4000
    assert_adds_up(p)


def test_total_of_what_is_inside_itself_counts_once():
    class Deep(mg.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 1

        @staticmethod
        def backward(ctx, g):
            if not getattr(Deep, "inner", False):
                Deep.inner = True
                z = mg.ones(3, requires_grad=True)
                with mg.enable_grad():
                    y = Deep.apply(z).sum()
                y.backward()
            return g

    x = mg.randn(3, requires_grad=True)
    with mg.profile() as p:
        Deep.apply(x).sum().backward()
    (row,) = rows(p, "Deep (backward)")
    assert row.calls == 2 and row.total_ns <= p.wall_ns
    outer = max((e for e in p.trace if e.name == "Deep (backward)"), key=lambda e: e.duration_s)
    assert row.total_s == pytest.approx(outer.duration_s, abs=1e-9)
    assert_adds_up(p)


# ---- what fails ----------------------------------------------------------------------------------
def test_an_error_midway_leaves_what_was_measured():
    before = current()
    with pytest.raises(mg.errors.ShapeError) as caught, mg.profile() as p:
        mg.ones(2) + mg.ones(2)
        mg.ones(2) + mg.ones(3)
    del caught
    assert current() == before and calls(p, "Add") == 2 and p.trace[-1].kind == "outside"
    assert [e.args.get("failed", False) for e in p.trace if e.name == "Add"] == [False, True]
    assert_adds_up(p)


def test_what_raised_is_not_around_what_comes_after():
    with mg.profile() as p:
        for _ in range(3):
            with pytest.raises(mg.errors.ShapeError):
                mg.ones(2) + mg.ones(3)
        mg.ones(2).exp()
    outside, exp = rows(p, "outside ops")[0], rows(p, "Exp")[0]
    adds = rows(p, "Add")[0]
    assert adds.calls == 3 and adds.self_ns == adds.total_ns
    assert outside.self_ns + exp.self_ns + adds.self_ns == p.wall_ns


def test_a_gradient_that_raised_is_not_around_what_comes_after():
    class Bad(mg.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 1

        @staticmethod
        def backward(ctx, g):
            raise ZeroDivisionError

    x = mg.ones(2, requires_grad=True)
    with mg.profile() as p:
        with pytest.raises(ZeroDivisionError):
            mg.autograd.grad(Bad.apply(x).sum(), x)
        mg.ones(2).exp()
        with pytest.raises(ZeroDivisionError):
            Bad.apply(x).sum().backward()
        mg.ones(2).exp()
    assert calls(p, "Exp", "forward") == 2 and calls(p, "Bad (backward)") == 2
    assert_adds_up(p)


def test_wrong_moments_are_told():
    p = mg.profile(allocations=False)
    for early in (lambda: p.by_op(), lambda: p.wall_s, lambda: p.trace, p.step):
        with pytest.raises(RuntimeError, match="profile"):
            early()
    assert "not measured" in repr(p)
    with p:
        with pytest.raises(RuntimeError, match="still running"):
            p.by_op()
        with pytest.raises(RuntimeError, match="within another"):
            mg.profile().__enter__()
        mg.ones(2) + 1
    assert calls(p, "Add") == 1
    with pytest.raises(RuntimeError, match="begun already"):
        p.__enter__()
    with pytest.raises(RuntimeError, match="no steps"):
        p.step_percentile_s(50)
    with pytest.raises(ValueError, match="sort"):
        p.by_op("speed")
    with pytest.raises(ValueError, match="no stream"):
        p.by_op(stream="other")
    with mg.profile(allocations=False) as other:
        pass
    assert other.by_op()[0].name == "outside ops" and other.share_in_ops == 0


# ---- threads -------------------------------------------------------------------------------------
def test_other_threads_have_streams_of_their_own():
    x, go, done = mg.randn(50), threading.Event(), threading.Event()

    def work():
        go.wait(10)
        for _ in range(20):
            (x * 2).exp()
        done.set()

    with mg.profile() as p:
        threads = [threading.Thread(target=contextvars.copy_context().run, args=(work,), name="side") for _ in "ab"]
        for t in threads:
            t.start()
        go.set()
        for _ in range(20):
            x + 1
        for t in threads:
            t.join(10)
    assert p.streams == ["main", "side", "side (2)"]
    assert calls(p, "Add") == 20 and calls(p, "Exp") == 0
    for stream in p.streams[1:]:
        assert {row.name: row.calls for row in p.by_op(stream=stream)} == {"Mul": 20, "Exp": 20}
    assert_adds_up(p)
    assert "side (2)" in str(p)


def test_a_thread_that_goes_on_after_the_end_disturbs_nothing():
    x, stop, began = mg.randn(50), threading.Event(), threading.Event()

    def work():
        while not stop.is_set():
            x.exp()
            began.set()

    with mg.profile() as p:
        thread = threading.Thread(target=contextvars.copy_context().run, args=(work,))
        thread.start()
        assert began.wait(10)
    first = [sum(row.calls for row in p.by_op(stream=s)) for s in p.streams]
    stop.set()
    thread.join(10)
    assert [sum(row.calls for row in p.by_op(stream=s)) for s in p.streams] == first
    assert_adds_up(p)


def test_an_error_in_another_thread():
    def work():
        for _ in range(3):
            with pytest.raises(mg.errors.ShapeError):
                mg.ones(2) + mg.ones(3)

    with mg.profile() as p:
        thread = threading.Thread(target=contextvars.copy_context().run, args=(work,), name="side")
        thread.start()
        thread.join(10)
    assert [(row.name, row.calls) for row in p.by_op(stream="side")] == [("Add", 2)]   # the third was still open
    assert_adds_up(p)


def test_workers_of_a_loader():
    mg.manual_seed(0)
    data = mg.utils.data.TensorDataset(mg.randn(8, 3))
    loader = mg.utils.data.DataLoader(data, batch_size=2, num_workers=2)
    with mg.profile() as p:
        for (x,) in loader:
            x.exp()
    assert calls(p, "DataLoader (load)", "load") == 5 and calls(p, "Exp") == 4
    assert_adds_up(p)


# ---- devices, memory, steps ----------------------------------------------------------------------
def test_nothing_is_kept_alive():
    with mg.profile() as p:
        x = mg.randn(10, requires_grad=True)
        y = x.exp()
        seen = [weakref.ref(y), weakref.ref(y.array)]
        z = y.sum()
        z.backward()
        del y, z
        assert [r() for r in seen] == [None, None]
    assert calls(p, "Exp") == 1


def test_steps():
    with mg.profile() as p:
        trained(steps=4, profile=p)
    assert len(p.steps_s) == 4 and p.steps_s.sum() <= p.wall_s and (p.steps_s > 0).all()
    assert p.steps_s.min() <= p.step_percentile_s(50) <= p.step_percentile_s(99) <= p.steps_s.max()
    assert [e.name for e in p.trace.where(stream="steps")] == [f"step {k}" for k in range(4)]
    assert "4 steps" in str(p)


def test_rows_are_sorted():
    with mg.profile() as p:
        trained()
    for by in GROUPS:
        for key in ("self_ns", "total_ns", "calls", "flops", "allocated_bytes", "flops_per_s", "bandwidth_Bps"):
            values = [getattr(row, key) or 0 for row in getattr(p, by)(key)]
            assert values == sorted(values, reverse=True)
    assert [r.name for r in p.by_op("name")] == sorted(r.name for r in p.by_op())


# ---- shown ---------------------------------------------------------------------------------------
def test_data_text_and_html():
    with mg.profile() as p:
        trained()
    json.dumps(p.to_data())
    json.dumps(view.data(p))
    text = str(p)
    assert "by op" in text and "by module" in text and "loss.backward()" in text and "Linear (backward)" in text
    short = view.data(p, rows=2)
    assert [len(t["rows"]) for t in short["tables"].values()] == [3, 3, 3]
    for table in short["tables"].values():
        assert table["rows"][-1][0].endswith(" more") and sum(table["shares"]) == pytest.approx(1)
        assert {len(row) for row in table["rows"]} == {len(table["heads"])}
    html = p._repr_html_()
    assert html.count("<table>") == html.count("</table>") == 3 and "<script" not in html
    with pytest.raises(ValueError, match="one row"):
        view.text(p, rows=0)


def test_a_notebook_shows_a_profile_that_still_runs_in_words():
    with mg.profile() as p:
        assert p._repr_html_() is None
    assert "<table" in p._repr_html_()
