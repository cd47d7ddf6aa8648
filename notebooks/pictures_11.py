"""Pictures of simulated devices: machines, collectives, runs, each as the simulator draws it, with its words."""

from __future__ import annotations

import re
from importlib import import_module

from simulator.cluster import Cluster
from simulator.collectives import Plan
from simulator.looking.ledger import Ledger
from simulator.looking.matrices import Matrix
from simulator.looking.timeline import Timeline
from simulator.strategies import Comparison
from simulator.topology import Topology

VIEWS = {Cluster: "topology", Topology: "topology", Plan: "collectives", Timeline: "timeline", Ledger: "ledger",
         Matrix: "messages", Comparison: "convergence"}


class Shown:
    """The picture as SVG and as text."""

    def __init__(self, words: str, svg: str) -> None:
        self.words, self.svg = words, svg

    def __repr__(self) -> str:
        return self.words

    def _repr_mimebundle_(self, include=None, exclude=None) -> dict[str, str]:
        return {"text/plain": self.words, "image/svg+xml": self.svg}


def picture(thing: Cluster | Topology | Plan | Timeline | Ledger | Matrix | Comparison, *how: object) -> Shown:
    """What the simulator's own view of it shows.  `how`: more for the view, such as the bytes of a plan."""
    view = import_module(f"simulator.viz.{VIEWS[type(thing)]}")
    svg = re.search(r"<svg.*</svg>", view.html(thing, *how), re.DOTALL)
    return Shown(view.text(thing, *how), svg[0] if svg else "")
