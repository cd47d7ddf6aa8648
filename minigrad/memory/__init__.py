"""Where the memory is: the tensors that are alive, and what keeps one.  The files: README.md in this folder."""

from minigrad.memory.blocks import Stats
from minigrad.memory.caching import Pool, pool
from minigrad.memory.leaks import Leak, LeakCheck, Leaks, assert_no_leak, find_leaks
from minigrad.memory.lifetimes import CheckpointPlan, PlanMeasured, checkpointed, measure_plan, plan_checkpoints
from minigrad.memory.live import LiveTensors, live_tensors
from minigrad.memory.offload import offload
from minigrad.memory.policies import BestFit, Buddy, FirstFit, Policy, SizeClasses
from minigrad.memory.recording import Recording, record
from minigrad.memory.release import release
from minigrad.memory.replays import Replay, compare_policies, replay
from minigrad.memory.tracker import Tracker, track
from minigrad.memory.why import why_alive


def __getattr__(name: str):
    """The hierarchy is measured rarely: it loads when it is asked for."""
    if name in ("hierarchy", "roofline"):
        from importlib import import_module

        found = import_module(f"{__name__}.hierarchy")
        return found if name == "hierarchy" else found.roofline
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
