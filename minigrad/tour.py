"""The tour without a browser, `python -m minigrad.tour`: a net learns to read real digits.

Prints everything as text and writes one HTML page that needs no network. Notebook 00 shows the
same and takes its pictures from here. Last file of the story.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

import numpy as np
from tqdm import tqdm

import minigrad as mg
from minigrad.algebra import algebra_of
from minigrad.data import DataLoader, TensorDataset, digits, stratified_folds
from minigrad.nn.functional import cross_entropy
from minigrad.nn.models import DigitsCNN
from minigrad.sim import sim_device
from minigrad.viz import draw

FONT, INK, QUIET = "Helvetica, Arial, 'DejaVu Sans', sans-serif", "#1f2d3a", "#4f6272"
PLAIN = str.maketrans({"←": "<-", "…": "...", "±": "+-", "×": "x", "–": "-"})
REPORT = "tour.html"


# ---- pictures -------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Drawing:
    """An SVG picture and the words that say the same."""

    text: str
    width: int
    height: int
    body: str

    @property
    def svg(self) -> str:
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" '
            f'width="{self.width}" style="max-width:100%;height:auto" role="img" '
            f'aria-label="{escape(self.text)}" font-family="{FONT}">\n{self.body}\n</svg>'
        )

    def __repr__(self) -> str:
        return self.text

    def _repr_mimebundle_(self, include=None, exclude=None) -> dict[str, str]:
        return {"text/plain": self.text, "image/svg+xml": self.svg}


def _word(x: float, y: float, text: str, anchor: str = "middle") -> str:
    place = f'x="{x:.4g}" y="{y:.4g}" font-size="12" text-anchor="{anchor}" fill="{INK}"'
    return f"<text {place}>{escape(text)}</text>"


def gallery(images: mg.Tensor, captions: Sequence[str], columns: int = 10) -> Drawing:
    """Images (N, 1, 8, 8) in [0, 1] with a word under each."""
    body, side = [], 64
    for k, (image, caption) in enumerate(zip(images.cpu().numpy()[:, 0], captions)):
        x, y = 8 + k % columns * (side + 14), 8 + k // columns * (side + 28)
        shade, ink = np.rint(image * 16).astype(int), ""
        for level in range(1, 17):  # one path for all squares of a grey
            squares = "".join(f"M{c} {r}h1v1h-1z" for r, c in zip(*np.nonzero(shade == level)))
            ink += f'<path d="{squares}" fill="rgb({255 - 14 * level},{255 - 13 * level},255)"/>'
        frame = f'<rect width="{side}" height="{side}" fill="none" stroke="#c8d2da"/>'
        body.append(
            f'<g transform="translate({x} {y})"><g transform="scale({side / 8:g})">{ink}</g>'
            f"{frame}{_word(side / 2, side + 15, caption)}</g>"
        )
    wide, high = min(len(body), columns), -(-len(body) // columns)
    text = f"{len(body)} images: {'; '.join(captions)}"
    return Drawing(text, 8 + wide * (side + 14), 8 + high * (side + 28), "\n".join(body))


def curve(values: Sequence[float], what: str = "loss", window: int = 10) -> Drawing:
    """Values over steps, each the mean of up to `window` of them."""
    window = min(window, len(values))
    smooth = np.convolve(values, np.full(window, 1 / window), "valid")
    left, right, low, high = 48, 624, 190, 16
    x = np.linspace(left, right, len(smooth))
    y = low - smooth / max(smooth.max(), 1e-12) * (low - high)
    points = " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(x, y))
    body = [
        f'<path d="M{left} {high}V{low}H{right}" fill="none" stroke="#93a4b0"/>',
        f'<polyline points="{points}" fill="none" stroke="#3f73b5" stroke-width="2"/>',
        _word(left - 6, high + 4, f"{smooth.max():.2g}", "end") + _word(left - 6, low, "0", "end"),
        _word(left, low + 18, "step 1", "start") + _word(right, low + 18, f"{len(values)}", "end"),
        _word(right, high + 4, f"{what}, mean of {window} steps", "end"),
    ]
    text = f"{what}: {smooth[0]:.2g} at first, {smooth[-1]:.2g} after {len(values)} steps"
    return Drawing(text, 640, 216, "\n".join(body))


# ---- learning and measuring -----------------------------------------------------------------------
def split() -> tuple[mg.Tensor, mg.Tensor, mg.Tensor, mg.Tensor]:
    """(training images, training labels, test images, test labels): a fifth is for testing."""
    images, labels = digits()
    train, test = stratified_folds(labels, 5, seed=0)[0]
    return images[train], labels[train], images[test], labels[test]


def train(net: mg.nn.Module, x: mg.Tensor, y: mg.Tensor, epochs: int) -> list[float]:
    """Adam on batches of 64; the loss of each step. A bar where there is a terminal."""
    batches = DataLoader(TensorDataset(x, y), batch_size=64, shuffle=True)
    optimizer, losses = mg.optim.Adam(net.parameters(), lr=3e-3), []
    with tqdm(total=epochs * len(batches), desc="training", disable=None, leave=False) as bar:
        for _ in range(epochs):
            for images, labels in batches:
                optimizer.zero_grad()
                loss = cross_entropy(net(images), labels)
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
                bar.update()
    return losses


def mistakes(net: mg.nn.Module, x: mg.Tensor, y: mg.Tensor) -> tuple[float, Drawing | None]:
    """(share of right answers, up to 20 of the wrong ones; None where there are none)."""
    net.eval()
    with mg.no_grad():
        guess = net(x).argmax(1)
    wrong = np.flatnonzero((guess != y).numpy())
    words = [f"{y[k].item()}, said {guess[k].item()}" for k in wrong[:20]]
    return 1 - len(wrong) / len(y), gallery(x[wrong[:20]], words) if len(wrong) else None


def saved_bytes(loss: mg.Tensor) -> int:
    """Bytes that the graph keeps for backward, parameters apart; shared memory counts once."""
    todo, parameters, found = {loss.node: None}, set(), {}
    for n in (order := list(todo)):
        for e in n.edges:
            if isinstance(e, mg.Tensor):
                parameters.add(_owner(e.array))
            elif e not in todo:
                todo[e] = order.append(e)
        for value in n.saved:
            arrays = value if isinstance(value, tuple) else (value,)
            found |= {_owner(a): a.nbytes for a in arrays if hasattr(a, "nbytes")}
    return sum(nbytes for owner, nbytes in found.items() if owner not in parameters)


def _owner(array: object) -> int:
    o = algebra_of(array)
    return id(o.storage(array) if o.eager else array)


def step_on(where: str, x: mg.Tensor, y: mg.Tensor) -> str:
    """One forward and backward pass of a new net on a device, in a line."""
    net = DigitsCNN().to(where)
    loss = cross_entropy(net(x.to(where)), y.to(where))
    kept = saved_bytes(loss)
    loss.backward()
    return f"{loss.device}: the graph kept {kept:,} bytes"


# ---- the tour -------------------------------------------------------------------------------------
def tour(epochs: int) -> Iterator[tuple[str, object]]:
    """(title, text or picture) of each station."""
    mg.manual_seed(0)
    x, y, x_test, y_test = split()
    net, batch = DigitsCNN(), (x[:64], y[:64])
    size = sum(p.nbytes for p in net.parameters())
    yield "Handwritten digits", gallery(x[:20], [str(d) for d in y[:20].tolist()])
    yield "A net", f"{net}\n{size // 4:,} parameters, {size:,} bytes"
    loss = cross_entropy(net(batch[0]), batch[1])
    yield "Its graph, as one step recorded it", draw(loss, fold=True, params=net)
    yield "It learns", curve(train(net, x, y, epochs))
    right, wrong = mistakes(net, x_test, y_test)
    yield "It reads digits it never saw", f"{100 * right:.1f} % of {len(y_test)} are right"
    if wrong:
        yield "Where it is wrong", wrong
    yield "What a step of 64 images keeps in memory", step_on("cpu", *batch)
    sim_device(0).reset_peak()
    line = step_on("sim:0", *batch)
    yield "The same on a simulated device", f"{line}, and the peak was {sim_device(0).peak:,} bytes"
    yield "The same without any numbers", step_on("meta", *batch)


def page(stations: Sequence[tuple[str, object]]) -> str:
    """The report, pictures inside."""
    style = f"body{{max-width:75rem;margin:2rem auto;font-family:{FONT}}}pre{{overflow:auto}}"
    body = [
        f"<h2>{escape(title)}</h2>\n{getattr(thing, 'svg', '')}<pre>{escape(str(thing))}</pre>\n"
        for title, thing in stations
    ]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f"<title>minigrad: the tour</title><style>{style}</style></head>\n"
        f"<body><h1>minigrad: the tour</h1>\n{''.join(body)}</body></html>\n"
    )


def say(text: str) -> None:
    """Print, on any terminal."""
    coding = sys.stdout.encoding or "ascii"
    if text.encode(coding, "replace").decode(coding) != text:
        text = text.translate(PLAIN).encode("ascii", "replace").decode()
    print(text, flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="minigrad.tour", description=__doc__.split("\n")[0])
    parser.add_argument("--out", default=".", metavar="DIR", help=f"where {REPORT} is written")
    parser.add_argument("--epochs", type=int, default=8, metavar="N", help="rounds of training")
    chosen = parser.parse_args(arguments)
    if chosen.epochs < 1:
        parser.error(f"--epochs must be at least 1, got {chosen.epochs}")
    target, draft, stations = Path(chosen.out, REPORT), None, []
    try:
        handle, draft = tempfile.mkstemp(dir=chosen.out, prefix=".tour-")  # before any work is done
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            for title, thing in tour(chosen.epochs):
                say(f"\n== {title}\n{thing}")
                stations.append((title, thing))
            file.write(page(stations))
        os.chmod(draft, 0o644)
        os.replace(draft, target)
        draft = None
    except KeyboardInterrupt:
        say("\ntour: interrupted; no report was written. A shorter one: --epochs 1")
        return 130
    except OSError as e:
        say(f"tour: cannot write {target}: {e.strerror or e}. Choose another folder: --out DIR")
        return 1
    finally:
        if draft:
            Path(draft).unlink(missing_ok=True)
    say(f"\nThe report: {target.resolve()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
