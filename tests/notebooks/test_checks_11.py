"""The checks of notebook 11: right answers pass, plausible wrong ones do not; its pictures say what they show."""

import json
import re
from pathlib import Path

import checks_11 as checks
import pytest
from pictures_11 import picture

import minigrad as mg
import simulator as sim
from simulator.collectives import make_plan
from simulator.plateaus import compared
from tests.notebooks.check_laws import (  # noqa: F401
    test_a_right_answer_passes,
    test_a_wrong_answer_is_told_what_is_off_in_one_line,
    test_an_open_answer_stops_nothing,
    test_every_check_has_right_and_wrong_answers,
)

NOTEBOOKS = Path(checks.__file__).parent


# ---- all_gather and its mutants -----------------------------------------------------------------
def gather(first=1, rounds=-1, to=1, put=0, fresh=False, whole=False):
    """Right by default; each argument plants one mistake."""

    def run(comm, pieces):
        n, r = comm.world_size, comm.rank
        pieces = [mg.zeros(4)] * n if fresh else pieces
        for step in range(n + rounds):
            comm.isend(mg.cat(pieces) if whole else pieces[(r + first - step) % n], (r + to) % n)
            came = comm.recv((r - to) % n)
            pieces[(r + put - step) % n] = came[:4] if whole else came
        return pieces

    return run


def by_library(comm, pieces):
    """Gathers in the order of ranks, which is not that of pieces."""
    return comm.all_gather(pieces[(comm.rank + 1) % comm.world_size])


def through_rank_0(comm, pieces):
    n = comm.world_size
    found = comm.gather(pieces[(comm.rank + 1) % n], 0)
    return [comm.broadcast(found[k - 1] if comm.rank == 0 else None) for k in range(n)]


def sums(comm, pieces):
    n, r = comm.world_size, comm.rank
    for step in range(n - 1):
        comm.isend(pieces[(r + 1 - step) % n], (r + 1) % n)
        pieces[(r - step) % n] += comm.recv((r - 1) % n)
    return pieces


def twice(comm, pieces):
    """Everything right, and everything sent a second time."""
    for _ in range(2):
        pieces = gather()(comm, pieces)
    return pieces


def deaf(comm, pieces):
    """Receives before anybody has sent."""
    n, r = comm.world_size, comm.rank
    for step in range(n - 1):
        pieces[(r - step) % n] = comm.recv((r - 1) % n)
        comm.isend(pieces[(r + 1 - step) % n], (r + 1) % n)
    return pieces


def ring(n, nbytes, alpha, rate):
    return 2 * (n - 1) * alpha + 2 * (n - 1) / n * nbytes / rate


RIGHT = {
    checks.check_message_time: [lambda s, a, b: a + s / b],
    checks.check_ring_time: [ring],
    checks.check_all_gather: [gather()],
    checks.check_ring: [[0, 4, 5, 1, 2, 3], [3, 2, 1, 5, 4, 0], [4, 5, 1, 3, 2, 0]],
    checks.check_crossing: [lambda n, s, b: 2 * (n - 1) / n * s / 8 / b],
    checks.check_saving: [lambda n, keep: 1 / (n * keep)],
}
WRONG = {
    checks.check_message_time: [
        lambda s, a, b: s / b,
        lambda s, a, b: a * s / b,
        lambda s, a, b: a + s * b,
        lambda s, a, b: a + 8 * s / b,
        lambda s, a, b: max(a, s / b),
        lambda s, a, b: "much",
    ],
    checks.check_ring_time: [
        lambda n, s, a, b: (n - 1) * a + 2 * (n - 1) / n * s / b,
        lambda n, s, a, b: 2 * (n - 1) * a + 2 * s / b,
        lambda n, s, a, b: 2 * (n - 1) * (a + s / b),
        lambda n, s, a, b: 2 * n * a + 2 * (n - 1) / n * s / b,
        lambda n, s, a, b: 2 * a + 2 * (n - 1) / n * s / b,
        lambda n, s, a, b: 2 * (n - 1) * a + (n - 1) / n * s / b,
        lambda n, s, a, b: 2 * (n - 1) * a + 2 * (n - 1) / n * s / b if n > 1 else a,
    ],
    checks.check_all_gather: [
        gather(first=0),
        gather(rounds=-2),
        gather(rounds=0),
        gather(to=-1),
        gather(put=1),
        gather(fresh=True),
        gather(whole=True),
        by_library,
        through_rank_0,
        sums,
        twice,
        deaf,
        lambda comm, pieces: pieces,
        lambda comm, pieces: pieces[0],
    ],
    checks.check_ring: [
        [0, 1, 2, 3, 4, 5],
        [0, 1, 5, 4],
        [0, 4, 5, 1, 2, 2],
        [0, 4, 5, 1, 3, 6],
        [4, 5, 0, 1, 2, 3],
        "0, 4, 5",
        5,
    ],
    checks.check_crossing: [
        lambda n, s, b: 2 * (n - 1) / n * s / b,
        lambda n, s, b: (n - 1) / n * s / 8 / b,
        lambda n, s, b: 2 * s / 8 / b,
        lambda n, s, b: 2 * (8 * n - 1) / (8 * n) * s / 8 / b,
        lambda n, s, b: 2 * (n - 1) / n * s / n / b,
    ],
    checks.check_saving: [
        lambda n, keep: 1 / keep,
        lambda n, keep: 1 / (2 * keep),
        lambda n, keep: 2 / (n * keep),
        lambda n, keep: 1 / ((n - 1) * keep),
        lambda n, keep: n * keep,
        lambda n, keep: "a hundred",
    ],
}


def test_the_measured_speeds_on_the_page_are_those_of_the_table():
    page = json.loads((NOTEBOOKS / "11_collectives.ipynb").read_text(encoding="utf-8"))
    prose = "".join("".join(cell["source"]) for cell in page["cells"] if cell["cell_type"] == "markdown")
    said = prose.split("Measured on a real DGX-1:")[1].split(".\n")[0]
    assert re.findall(r"\d+\.\d", said) == [f"{row.measured_Bps / 1e9:.1f}" for row in compared()]
    assert max(abs(row.error) for row in compared()) < 0.03


@pytest.mark.parametrize("thing", [sim.cluster("DGX-1"), make_plan("all_reduce", "ring", 4)], ids=["machine", "plan"])
def test_a_picture_has_words_and_one_svg(thing):
    shown = picture(thing)
    told = shown._repr_mimebundle_()
    assert told["text/plain"] == repr(shown) != ""
    assert told["image/svg+xml"].count("<svg") == 1 and told["image/svg+xml"].endswith("</svg>")


def test_runs_have_pictures_too():
    result = sim.spawn(lambda comm: comm.all_reduce(mg.ones(4)), 2)
    for thing in (result.timeline(), result.ledger(), result.matrix()):
        assert repr(picture(thing)) and "<svg" in picture(thing).svg
