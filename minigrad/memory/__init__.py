"""Where the memory is: the tensors that are alive, and what keeps one.  The files: README.md in this folder."""

from minigrad.memory.live import LiveTensors, live_tensors
from minigrad.memory.why import why_alive
