"""Pictures of what happens inside: the graph now, memory and training later.

The files, in reading order: README.md in this folder.
"""

from importlib import import_module

from minigrad.viz.graph import Picture, draw

__all__ = ["Picture", "draw"]


def __getattr__(name: str):
    """The other views load when they are asked for."""
    if name in ("comparison", "hierarchy", "memory", "pool", "profile", "timeline"):
        return import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
