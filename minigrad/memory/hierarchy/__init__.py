"""The memory hierarchy of this machine, measured: the ladder, strides, blocks, and the roofline with each op on it.

The files: README.md in this folder."""

from minigrad.memory.hierarchy.ladder import Disk, Ladder, Level, Point, cache_ladder
from minigrad.memory.hierarchy.locality import Blocking, Run, Strides, blocked_transpose, strides, tiled_matmul
from minigrad.memory.hierarchy.roofs import OpPoint, Roof, Roofline, roofline
from minigrad.memory.hierarchy.system import Cache, caches
