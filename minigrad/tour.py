"""The tour without a browser, `python -m minigrad.tour`: a net learns to read real digits.

Prints everything as text and writes one HTML page that needs no network.  Notebook 00 shows the
same and takes its pictures from here.  Last file of the story.
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

FONT, INK = "Helvetica, Arial, 'DejaVu Sans', sans-serif", "#1f2d3a"
SIDE, REPORT = 64, "tour.html"
PLAIN = str.maketrans({"←": "<-", "…": "...", "±": "+-", "×": "x", "–": "-"})


# ---- pictures -----------------------------------------------------------------------------------
@dataclass(frozen=True)
class Drawing:
    """An SVG picture and the words that say the same."""

    text: str
    width: int
    height: int
    body: str

    @property
    def svg(self) -> str:
        size = f'viewBox="0 0 {self.width} {self.height}" width="{self.width}" style="max-width:100%;height:auto"'
        return (f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="{FONT}" role="img" '
                f'aria-label="{escape(self.text)}">\n{self.body}\n</svg>')

    def __repr__(self) -> str:
        return self.text

    def _repr_mimebundle_(self, include=None, exclude=None) -> dict[str, str]:
        return {"text/plain": self.text, "image/svg+xml": self.svg}


def _word(x: float, y: float, text: str, anchor: str = "middle") -> str:
    return f'<text x="{x:.4g}" y="{y:.4g}" font-size="12" text-anchor="{anchor}" fill="{INK}">{escape(text)}</text>'


def gallery(images: mg.Tensor, captions: Sequence[str], columns: int = 10) -> Drawing:
    """Images (N, 1, 8, 8) in [0, 1] with a word under each."""
    body = []
    for k, (image, caption) in enumerate(zip(images.cpu().numpy()[:, 0], captions)):
        x, y = 8 + k % columns * (SIDE + 14), 8 + k // columns * (SIDE + 28)
        ink = "".join(
            f'<path d="M{c} {r}h1v1h-1z" fill-opacity="{v:.2g}"/>' for (r, c), v in np.ndenumerate(image) if v
        )
        body.append(f'<g transform="translate({x} {y})"><g transform="scale({SIDE / 8:g})" fill="{INK}">{ink}</g>'
                    f'<rect width="{SIDE}" height="{SIDE}" fill="none" stroke="#c8d2da"/>'
                    f"{_word(SIDE / 2, SIDE + 15, caption)}</g>")
    width, height = 8 + min(len(body), columns) * (SIDE + 14), 8 + -(-len(body) // columns) * (SIDE + 28)
    return Drawing(f"{len(body)} images: {'; '.join(captions)}", width, height, "\n".join(body))


def curve(values: Sequence[float], what: str = "loss", window: int = 10) -> Drawing:
    """Values over steps, each the mean of up to `window` of them."""
    window = min(window, len(values))
    smooth = np.convolve(values, np.full(window, 1 / window), "valid")
    left, right, low, high = 48, 624, 190, 16
    x, y = np.linspace(left, right, len(smooth)), low - smooth / max(smooth.max(), 1e-12) * (low - high)
    points = " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(x, y))
    body = [f'<path d="M{left} {high}V{low}H{right}" fill="none" stroke="#93a4b0"/>',
            f'<polyline points="{points}" fill="none" stroke="#3f73b5" stroke-width="2"/>',
            _word(left - 6, high + 4, f"{smooth.max():.2g}", "end"), _word(left - 6, low, "0", "end"),
            _word(left, low + 18, "step 1"), _word(right, low + 18, f"{len(values)}", "end"),
            _word(right, high + 4, f"{what}, mean of {window} steps", "end")]
    text = f"{what}: {smooth[0]:.2g} at first, {smooth[-1]:.2g} after {len(values)} steps"
    return Drawing(text, 640, 216, "\n".join(body))


# ---- learning and measuring ---------------------------------------------------------------------
def train(net: mg.nn.Module, x: mg.Tensor, y: mg.Tensor, epochs: int) -> list[float]:
    """Adam on batches of 64; the loss of each step."""
    batches = DataLoader(TensorDataset(x, y), batch_size=64, shuffle=True)
    optimizer, losses = mg.optim.Adam(net.parameters(), lr=3e-3), []
    with tqdm(total=epochs * len(batches), desc="training", disable=None, leave=False) as bar:   # only on a terminal
        for images, labels in (batch for _ in range(epochs) for batch in batches):
            optimizer.zero_grad()
            loss = cross_entropy(net(images), labels)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            bar.update()
    return losses


def wrong(net: mg.nn.Module, x: mg.Tensor, y: mg.Tensor) -> tuple[np.ndarray, list[str]]:
    """(rows of the images that the net reads wrongly, "8, said 6" for each)."""
    net.eval()
    with mg.no_grad():
        guess = net(x).argmax(1)
    rows = np.flatnonzero((guess != y).numpy())
    return rows, [f"{y[k].item()}, said {guess[k].item()}" for k in rows]


def saved_bytes(loss: mg.Tensor) -> int:
    """Bytes that the graph keeps for backward, parameters apart; shared memory counts once."""
    owner = lambda array: id(algebra_of(array).storage(array) if algebra_of(array).eager else array)
    parameters, nodes, found = set(), {loss.node: None}, dict[tuple[int, str], int]()
    for n in (todo := list(nodes)):
        parameters |= {owner(e.array) for e in n.edges or () if isinstance(e, mg.Tensor)}
        todo += [e for e in n.edges or () if isinstance(e, mg.Node) and e not in nodes]
        nodes.update(dict.fromkeys(n.edges or ()))
        for name, value in zip(n.plan.names, n.saved or ()):
            more = name if name in getattr(n.op, "extra", ()) else ""    # on meta, extra outputs may share an Aval
            arrays = value if isinstance(value, tuple) else (value,)
            found |= {(owner(a), more): a.nbytes for a in arrays if hasattr(a, "nbytes")}
    return sum(nbytes for (memory, _), nbytes in found.items() if memory not in parameters)


def step_on(where: str, x: mg.Tensor, y: mg.Tensor) -> str:
    """One forward and backward pass of a new net on a device, in a line."""
    net = DigitsCNN(16).to(where)
    loss = cross_entropy(net(x.to(where)), y.to(where))
    kept = saved_bytes(loss)
    loss.backward()
    return f"{loss.device}: the graph kept {kept:,} bytes"


# ---- the tour -----------------------------------------------------------------------------------
def tour(epochs: int) -> Iterator[tuple[str, object]]:
    """(title, text or picture) of each station."""
    mg.manual_seed(0)
    x, y = digits()
    first, last = stratified_folds(y, 5)[0]                  # four fifths to learn from
    net, images, labels = DigitsCNN(16), x[first[:64]], y[first[:64]]
    size = sum(p.nbytes for p in net.parameters())
    yield "Handwritten digits", gallery(x[:20], list(map(str, y[:20].tolist())))
    yield "A net", f"{net}\n{size // 4:,} parameters, {size:,} bytes"
    loss = cross_entropy(net(images), labels)
    yield "Its graph, as one step recorded it", draw(loss, fold=True)
    yield "It learns", curve(train(net, x[first], y[first], epochs))
    rows, words = wrong(net, x[last], y[last])
    right = 100 * (1 - len(rows) / len(last))
    yield "It reads digits it never saw", f"{right:.1f} % of {len(last)} are right"
    if words:
        yield "Where it is wrong", gallery(x[last[rows[:20]]], words[:20])
    yield "What a step of 64 images keeps in memory", step_on("cpu", images, labels)
    sim_device(0).reset_peak()
    line = step_on("sim:0", images, labels)
    yield "The same on a simulated device", f"{line}; the peak was {sim_device(0).peak:,} bytes"
    yield "The same without any numbers", step_on("meta", images, labels)


def page(stations: Sequence[tuple[str, object]]) -> str:
    """The report, pictures inside."""
    style = f"body{{max-width:75rem;margin:2rem auto;font-family:{FONT}}}pre{{overflow:auto}}"
    head = f'<meta charset="utf-8"><title>minigrad: the tour</title><style>{style}</style>'
    inline = lambda thing: getattr(thing, "svg", "").replace(' xmlns="http://www.w3.org/2000/svg"', "")
    parts = [f"<h2>{escape(title)}</h2>\n{inline(thing)}<pre>{escape(str(thing))}</pre>\n" for title, thing in stations]
    return (f'<!doctype html>\n<html lang="en"><head>{head}</head>\n'
            f"<body><h1>minigrad: the tour</h1>\n{''.join(parts)}</body></html>\n")


def say(text: str) -> None:
    """Print, on any terminal."""
    coding = sys.stdout.encoding or "ascii"
    if text.encode(coding, "replace").decode(coding) != text:
        text = text.translate(PLAIN).encode("ascii", "replace").decode()
    print(text, flush=True)


def write(folder: str, epochs: int) -> Path:
    """Print the tour and write its report, whole or not at all."""
    handle, draft = tempfile.mkstemp(dir=folder, prefix=".tour-")       # before any work is done
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            stations = []
            for title, thing in tour(epochs):
                say(f"\n== {title}\n{thing}")
                stations.append((title, thing))
            file.write(page(stations))
        os.chmod(draft, 0o644)
        os.replace(draft, Path(folder, REPORT))
    except BaseException:
        Path(draft).unlink(missing_ok=True)
        raise
    return Path(folder, REPORT).resolve()


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="minigrad.tour", description=__doc__.split("\n")[0])
    parser.add_argument("--out", default=".", metavar="DIR", help="where to write (here)")
    parser.add_argument("--epochs", type=int, default=8, metavar="N", help="rounds of training (8)")
    chosen = parser.parse_args(arguments)
    if chosen.epochs < 1:
        parser.error(f"--epochs must be at least 1, got {chosen.epochs}")
    try:
        say(f"\nThe report: {write(chosen.out, chosen.epochs)}")
        return 0
    except KeyboardInterrupt:
        say("\ntour: interrupted; no report was written. A shorter one: --epochs 1")
        return 130
    except OSError as e:
        say(f"tour: cannot write {REPORT} to {chosen.out}: {e.strerror or e}. Choose a folder: --out DIR")
        return 1


if __name__ == "__main__":
    sys.exit(main())
