"""The tour without a browser: it runs, its page needs nothing, and trouble is one clear line."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

import minigrad as mg
from minigrad import tour
from minigrad.nn.functional import cross_entropy
from minigrad.nn.models import DigitsCNN

ROOT = Path(__file__).resolve().parents[2]


def run(*arguments: str, **variables: str) -> subprocess.CompletedProcess:
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OPENBLAS_NUM_THREADS": "1", **variables}
    command = [sys.executable, "-m", "minigrad.tour", "--epochs", "1", *arguments]
    return subprocess.run(command, capture_output=True, env=env, timeout=120)


def test_the_page_is_one_file_that_needs_no_network(tmp_path):
    done = run("--out", str(tmp_path), PYTHONUTF8="1")
    assert (done.returncode, done.stderr) == (0, b"")
    (report,) = tmp_path.iterdir()
    assert report.name == tour.REPORT and str(report) in done.stdout.decode()
    page = report.read_text(encoding="utf-8")
    assert page.count("<svg") >= 3 and page.endswith("</html>\n")
    for forbidden in ("http", "src=", "href=", "url(", "<script", "<link", "@import"):
        assert forbidden not in page, forbidden


def test_an_ascii_terminal_is_enough(tmp_path):
    done = run("--out", str(tmp_path), PYTHONIOENCODING="ascii", PYTHONUTF8="0", LC_ALL="C")
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"<- " in done.stdout and done.stdout.isascii()


@pytest.fixture
def short(monkeypatch):
    monkeypatch.setattr(tour, "tour", lambda epochs: iter([("a title", "a text")]))


def test_a_folder_that_cannot_be_written_is_said_before_any_work(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(tour, "tour", lambda epochs: pytest.fail("work was done"))
    (tmp_path / "file").write_text("", encoding="utf-8")
    for folder in ("missing", "file"):
        assert tour.main(["--out", str(tmp_path / folder)]) == 1
        line = capsys.readouterr().out
        assert "cannot write" in line and folder in line and "--out DIR" in line
        assert line.count("\n") == 1


def test_a_full_disk_leaves_the_old_report_and_no_rubbish(tmp_path, capsys, short, monkeypatch):
    old = tmp_path / tour.REPORT
    old.write_text("the old one", encoding="utf-8")

    def full(stations):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(tour, "page", full)
    assert tour.main(["--out", str(tmp_path)]) == 1
    assert "No space left" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == [old] and old.read_text(encoding="utf-8") == "the old one"


def test_an_interruption_is_one_line_and_leaves_no_rubbish(tmp_path, capsys, monkeypatch):
    def interrupted(epochs):
        yield "a title", "a text"
        raise KeyboardInterrupt

    monkeypatch.setattr(tour, "tour", interrupted)
    assert tour.main(["--out", str(tmp_path)]) == 130
    assert "interrupted; no report was written" in capsys.readouterr().out
    assert not list(tmp_path.iterdir())


def test_epochs_below_one_are_refused(capsys):
    with pytest.raises(SystemExit):
        tour.main(["--epochs", "0"])
    assert "--epochs must be at least 1, got 0" in capsys.readouterr().err


def test_what_the_graph_keeps_is_the_same_on_every_device_and_nothing_after_backward():
    images, labels = mg.rand(8, 1, 8, 8), mg.zeros(8, dtype=mg.int64)
    kept = set()
    for where in ("cpu", "sim:0", "meta"):
        net = DigitsCNN(4).to(where)
        loss = cross_entropy(net(images.to(where)), labels.to(where))
        kept.add(tour.saved_bytes(loss))
        loss.backward()
        assert tour.saved_bytes(loss) == 0
    assert len(kept) == 1 and kept.pop() > images.nbytes


def test_shared_memory_counts_once_and_parameters_do_not():
    x = mg.ones(100, requires_grad=True)
    h = x.exp()
    assert tour.saved_bytes(h) == h.nbytes
    assert tour.saved_bytes((h * h).sum()) == h.nbytes
    assert tour.saved_bytes((x * x).sum()) == 0


def test_pictures_say_what_they_show():
    picture = tour.gallery(mg.rand(3, 1, 8, 8), ["one", "<two>", "three"])
    assert repr(picture) == "3 images: one; <two>; three" and "&lt;two&gt;" in picture.svg
    drawn = tour.curve([4.0, 2.0, 1.0], window=2)
    assert repr(drawn) == "loss: 3 at first, 1.5 after 3 steps" and "polyline" in drawn.svg
