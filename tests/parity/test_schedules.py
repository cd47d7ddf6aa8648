"""Optional: every schedule beside PyTorch's own over sixty steps, chained, resumed and disturbed.  Skipped where torch
is not installed."""

import copy
import warnings

import pytest

import minigrad as mg

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.filterwarnings("ignore")  # PyTorch warns of the order of steps and of step(epoch)


def later(name, *args, **options):
    """A schedule made with `package.optim.lr_scheduler`."""
    return lambda package, o: getattr(package.optim.lr_scheduler, name)(o, *args, **options)


def sequence(*parts, milestones):
    return lambda package, o: package.optim.lr_scheduler.SequentialLR(
        o, [part(package, o) for part in parts], milestones=milestones
    )


def chain(*parts):
    return lambda package, o: package.optim.lr_scheduler.ChainedScheduler([part(package, o) for part in parts])


TWO = [lambda t: 0.9**t, lambda t: 1 / (1 + t)]
PLAIN = {
    "Lambda": later("LambdaLR", lambda t: 1 / (1 + t)),
    "Lambda of each group": later("LambdaLR", TWO),
    "Multiplicative": later("MultiplicativeLR", lambda t: 0.95 + 0.01 * (t % 3)),
    "Step": later("StepLR", 3, 0.5),
    "Step default": later("StepLR", 7),
    "MultiStep": later("MultiStepLR", [2, 5, 5, 40], 0.1),
    "Constant": later("ConstantLR"),
    "Constant long": later("ConstantLR", 0.2, 17),
    "Linear": later("LinearLR"),
    "Linear down": later("LinearLR", 1.0, 0.1, 30),
    "Linear partly": later("LinearLR", start_factor=0.2, end_factor=0.7, total_iters=13),
    "Exponential": later("ExponentialLR", 0.9),
    "Polynomial": later("PolynomialLR"),
    "Polynomial cubic": later("PolynomialLR", 40, 3.0),
    "Cosine": later("CosineAnnealingLR", 6),
    "Cosine to": later("CosineAnnealingLR", 25, 0.01),
    "Cosine of one": later("CosineAnnealingLR", 1),
    "Restarts": later("CosineAnnealingWarmRestarts", 7),
    "Restarts longer": later("CosineAnnealingWarmRestarts", 3, 2, 0.01),
    "OneCycle": later("OneCycleLR", 1.0, 60),
    "OneCycle linear": later("OneCycleLR", [1.0, 0.5], epochs=12, steps_per_epoch=5, anneal_strategy="linear"),
    "OneCycle three": later("OneCycleLR", 1.0, 60, three_phase=True, pct_start=0.4, div_factor=7, final_div_factor=30),
    "OneCycle no momentum": later("OneCycleLR", 1.0, 80, cycle_momentum=False),
    "Cyclic": later("CyclicLR", 0.01, 0.1, 7),
    "Cyclic 2": later("CyclicLR", 0.01, [0.1, 0.3], 5, 9, mode="triangular2", base_momentum=0.5),
    "Cyclic exp": later("CyclicLR", 0.01, 0.1, 6, mode="exp_range", gamma=0.97),
    "Cyclic own": later("CyclicLR", 0.01, 0.1, 6, scale_fn=lambda x: 1 / x, scale_mode="cycle"),
    "Cyclic own steps": later("CyclicLR", 0.01, 0.1, 6, scale_fn=lambda x: 0.9**x, scale_mode="iterations"),
    "Sequence": sequence(later("LinearLR", 0.1, 1.0, 10), later("CosineAnnealingLR", 50), milestones=[10]),
    "Sequence of three": sequence(
        later("ConstantLR", 0.1, 5), later("ExponentialLR", 0.9), later("StepLR", 4), milestones=[8, 20]
    ),
    "Sequence of restarts": sequence(
        later("ExponentialLR", 0.9), later("CosineAnnealingWarmRestarts", 5, 2), milestones=[9]
    ),
    "Sequence restarts first": sequence(
        later("CosineAnnealingWarmRestarts", 5, 2), later("LambdaLR", lambda t: 0.8**t), milestones=[9]
    ),
    "Sequence of milestones": sequence(
        later("MultiStepLR", [3, 6]), later("PolynomialLR", 20, 2.0), later("MultiplicativeLR", lambda t: 0.9),
        milestones=[9, 40],
    ),
    "Sequence from a chain": sequence(
        chain(later("ExponentialLR", 0.9), later("StepLR", 4)), later("StepLR", 5), milestones=[12]
    ),
    "Chain": chain(later("ExponentialLR", 0.97), later("ConstantLR", 0.1, 5)),
    "Chain of all": chain(
        later("LinearLR"), later("StepLR", 10), later("CosineAnnealingLR", 30), later("MultiStepLR", [4, 9])
    ),
}  # fmt: skip


class Run:
    """An optimiser with two groups and its schedule, in one of the packages."""

    def __init__(self, package, make, adam=False):
        self.package, self.make = package, make
        groups = [{"params": [package.zeros(1, requires_grad=True)], "lr": lr} for lr in (1.0, 0.3)]
        kind = package.optim.AdamW if adam else package.optim.SGD
        self.optimiser = kind(groups, **({} if adam else {"momentum": 0.7}))
        self.schedule = make(package, self.optimiser)

    def seen(self):
        groups = self.optimiser.param_groups
        assert [group["lr"] for group in groups] == self.schedule.get_last_lr()
        return [[g["lr"], g.get("momentum", g.get("betas"))] for g in groups]

    def step(self, *args):
        self.optimiser.step()
        self.schedule.step(*args)


def same(ours, theirs):
    for a, b in zip(ours, theirs, strict=True):
        assert a[0] == pytest.approx(b[0], rel=1e-12, abs=1e-15)
        assert a[1] == pytest.approx(b[1], rel=1e-12)


@pytest.mark.parametrize("adam", [False, True], ids=["momentum", "betas"])
@pytest.mark.parametrize("name", PLAIN)
def test_sixty_steps(name, adam):
    ours, theirs = (Run(p, PLAIN[name], adam) for p in (mg, torch))
    for _ in range(60):
        same(ours.seen(), theirs.seen())
        assert ours.schedule.last_epoch == theirs.schedule.last_epoch if hasattr(theirs.schedule, "last_epoch") else 1
        for run in (ours, theirs):
            run.step()
    if not name.startswith("OneCycle"):  # it ends after sixty
        same(ours.seen(), theirs.seen())


@pytest.mark.parametrize("name", PLAIN)
def test_a_rate_changed_by_hand_in_between(name):
    ours, theirs = (Run(p, PLAIN[name]) for p in (mg, torch))
    for step in range(40):
        if step in (4, 17):
            for run in (ours, theirs):
                run.optimiser.param_groups[0]["lr"] *= 3
                run.schedule._last_lr = [g["lr"] for g in run.optimiser.param_groups]
        same(ours.seen(), theirs.seen())
        for run in (ours, theirs):
            run.step()


@pytest.mark.parametrize("after", [0, 1, 6, 13])
@pytest.mark.parametrize("name", PLAIN)
def test_resumed_from_the_state(name, after):
    """Both go on from their own state in fresh objects, and stay equal."""
    runs = [Run(p, PLAIN[name]) for p in (mg, torch)]
    for step in range(30):
        if step == after:
            for i, run in enumerate(runs):
                state = copy.deepcopy(run.optimiser.state_dict()), copy.deepcopy(run.schedule.state_dict())
                runs[i] = Run(run.package, run.make)
                runs[i].optimiser.load_state_dict(state[0])
                runs[i].schedule.load_state_dict(state[1])
        same(*(run.seen() for run in runs))
        for run in runs:
            run.step()


@pytest.mark.parametrize("name", [n for n in PLAIN if "Seq" not in n and "Chain" not in n])
def test_resumed_by_last_epoch(name):
    ours, theirs = (Run(p, PLAIN[name]) for p in (mg, torch))
    for run in (ours, theirs):
        for _ in range(7):
            run.step()
        groups = run.optimiser.param_groups
        saved = run.optimiser.state_dict()
        maker = getattr(run.package.optim.lr_scheduler, type(run.schedule).__name__)
        run.optimiser = type(run.optimiser)([{"params": list(g["params"])} for g in groups], lr=5.0, momentum=0.7)
        run.optimiser.load_state_dict(saved)
        cells = dict(zip(PLAIN[name].__code__.co_freevars, (c.cell_contents for c in PLAIN[name].__closure__)))
        run.schedule = maker(run.optimiser, *cells["args"], **cells["options"], last_epoch=run.schedule.last_epoch)
    for _ in range(30):
        same(ours.seen(), theirs.seen())
        for run in (ours, theirs):
            run.step()


JUMPS = [0, 3, 3, 12, 1, 29, 30, 7]


@pytest.mark.parametrize("name", [n for n in PLAIN if n.split()[0] not in ("Sequence", "Chain", "OneCycle", "Cyclic")])
def test_jumps_to_an_epoch(name):
    ours, theirs = (Run(p, PLAIN[name]) for p in (mg, torch))
    for epoch in JUMPS:
        for run in (ours, theirs):
            run.step(epoch)
        same(ours.seen(), theirs.seen())


@pytest.mark.parametrize("options", [(7,), (3, 2, 0.01), (4, 3)])
def test_restarts_at_fractions_of_an_epoch(options):
    ours, theirs = (Run(p, later("CosineAnnealingWarmRestarts", *options)) for p in (mg, torch))
    for batch in range(120):
        for run in (ours, theirs):
            run.step(batch / 4) if batch % 30 != 29 else run.step()
        same(ours.seen(), theirs.seen())
        assert ours.schedule.last_epoch == theirs.schedule.last_epoch


PLATEAUS = [
    {},
    dict(patience=1),
    dict(mode="max", patience=2, factor=0.5),
    dict(threshold=0.1, patience=1),
    dict(threshold=0.05, threshold_mode="abs", patience=1, cooldown=3),
    dict(mode="max", threshold_mode="abs", patience=0, min_lr=[0.05, 0.001]),
    dict(patience=0, min_lr=0.2, factor=0.5),
    dict(patience=0, eps=0.01, factor=0.6),
]


@pytest.mark.parametrize("after", [None, 20])
@pytest.mark.parametrize("options", PLATEAUS, ids=str)
def test_plateau(options, after):
    def measure(t):
        return 1 / (1 + t % 23) + 0.3 * ((t * 7919) % 13) / 13 - (0.5 if t > 40 else 0)

    runs = [Run(p, later("ReduceLROnPlateau", **options)) for p in (mg, torch)]
    for step in range(60):
        if step == after:
            for i, run in enumerate(runs):
                states = run.optimiser.state_dict(), run.schedule.state_dict()
                runs[i] = Run(run.package, run.make)
                runs[i].optimiser.load_state_dict(states[0])
                runs[i].schedule.load_state_dict(states[1])
        for run in runs:
            run.step(run.package.tensor(measure(step)) if step % 5 == 0 else measure(step))
        same(*(run.seen() for run in runs))
        assert runs[0].schedule.num_bad_epochs == runs[1].schedule.num_bad_epochs
        assert runs[0].schedule.in_cooldown == runs[1].schedule.in_cooldown


WRONG = {
    "Constant": (later("ConstantLR", 1.5), ValueError),
    "Linear": (later("LinearLR", 0.0), ValueError),
    "Linear end": (later("LinearLR", 0.5, 2.0), ValueError),
    "Multiplicative": (later("MultiplicativeLR", 0.5), TypeError),
    "Lambda": (later("LambdaLR", TWO + TWO), ValueError),
    "Restarts": (later("CosineAnnealingWarmRestarts", 0), ValueError),
    "Restarts mult": (later("CosineAnnealingWarmRestarts", 5, 0), ValueError),
    "Plateau": (later("ReduceLROnPlateau", "up"), ValueError),
    "Plateau factor": (later("ReduceLROnPlateau", factor=1.0), ValueError),
    "Plateau threshold": (later("ReduceLROnPlateau", threshold_mode="x"), ValueError),
    "OneCycle": (later("OneCycleLR", 1.0), ValueError),
    "OneCycle steps": (later("OneCycleLR", 1.0, -3), ValueError),
    "OneCycle share": (later("OneCycleLR", 1.0, 10, pct_start=2.0), ValueError),
    "OneCycle way": (later("OneCycleLR", 1.0, 10, anneal_strategy="x"), ValueError),
    "Cyclic": (later("CyclicLR", 0.1, 1.0, mode="x"), ValueError),
    "Cyclic groups": (later("CyclicLR", [0.1], 1.0), ValueError),
    "Sequence": (sequence(later("StepLR", 3), milestones=[1, 2]), ValueError),
    "Sequence of a plateau": (sequence(later("ReduceLROnPlateau"), milestones=[]), ValueError),
    "resumed without initial_lr": (later("StepLR", 3, last_epoch=4), KeyError),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_pytorch_refuses_is_refused(name):
    make, error = WRONG[name]
    for package in (mg, torch):
        with warnings.catch_warnings(), pytest.raises(error):
            Run(package, make)


def test_a_cycle_that_is_over_is_refused():
    for package in (mg, torch):
        run = Run(package, later("OneCycleLR", 1.0, 3))
        for _ in range(3):
            run.step()
        with pytest.raises(ValueError, match="3"):
            run.step()
