"""Pictures of what happens inside: the graph now, memory and training later.

The files, in reading order: README.md in this folder.
"""

from minigrad.viz.graph import Picture, draw

__all__ = ["Picture", "draw"]
