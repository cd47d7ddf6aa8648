"""Where the time went.  The files, in reading order: README.md in this folder."""

from minigrad.profiler.measurement import Profile, Row, profile
