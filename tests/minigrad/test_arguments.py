"""Nonsense is refused by name where a call begins; blocks that end where they did not begin leave nothing behind."""

import gc
import threading

import numpy as np
import pytest

import minigrad as mg
from minigrad.memory import hierarchy
from minigrad.tensor import current

NET = mg.nn.Sequential(mg.nn.Linear(4, 4), mg.nn.ReLU(), mg.nn.Linear(4, 2))
X = mg.ones(3, 4)
RECORDING = mg.memory.Recording.of(100, "-0")


def unpack_as(f):
    w = mg.ones(4, 4, requires_grad=True)
    with mg.autograd.graph.saved_tensors_hooks(lambda t: t.detach(), f):
        (w * w).sum().backward()


NONSENSE = {
    "find_leaks: step must be a function, got 3": (TypeError, lambda: mg.memory.find_leaks(3)),
    "find_leaks: steps must be a whole number": (TypeError, lambda: mg.memory.find_leaks(print, steps="a")),
    "plan_checkpoints: budget, bytes, must be a whole number of at least 0, got 'a'":
        (TypeError, lambda: mg.memory.checkpointed(NET, X, budget="a")),
    "plan_checkpoints: budget, bytes, must be a whole number of at least 0, got -5":
        (ValueError, lambda: mg.memory.checkpointed(NET, X, budget=-5)),
    "checkpointed: segments = True": (ValueError, lambda: mg.memory.checkpointed(NET, X, segments=True)),
    "checkpointed: layers must be an Iterable, got 3": (TypeError, lambda: mg.memory.checkpointed(3, X)),
    "checkpointed: layer 1 must be a function, got 3": (TypeError, lambda: mg.memory.checkpointed([NET, 3], X)),
    "checkpointed: x must be a Tensor, got 7": (TypeError, lambda: mg.memory.checkpointed(NET, 7)),
    "release: x must be a Tensor, got 3": (TypeError, lambda: mg.memory.release(3)),
    "replay: policy must be a Policy, as FirstFit": (TypeError, lambda: mg.memory.replay(RECORDING, "x")),
    "replay: recording must be a Recording, got 3": (TypeError, lambda: mg.memory.replay(3)),
    "roofline: ops are classes of the catalogue": (TypeError, lambda: mg.memory.roofline(["Add"])),
    "roofline: ops must be an Iterable, got 3": (TypeError, lambda: mg.memory.roofline(3)),
    "blocked_transpose: n must be a whole number of at least 1, got -1":
        (ValueError, lambda: hierarchy.blocked_transpose(-1)),
    "tiled_matmul: n must be a whole number of at least 1, got 0": (ValueError, lambda: hierarchy.tiled_matmul(0)),
    "pool: limit, bytes, must be a whole number of at least 1, got '1 MB'":
        (TypeError, lambda: mg.memory.pool(limit="1 MB")),
    "pool: limit, bytes, must be a whole number of at least 1, got True":
        (TypeError, lambda: mg.memory.pool(limit=True)),
    "pool: smallest must be": (ValueError, lambda: mg.memory.pool(smallest=0)),
    "offload: there is no folder '/not/there'": (FileNotFoundError, lambda: mg.memory.offload(folder="/not/there")),
    "compare: batch_size must be a whole number of at least 1, got 2.5":
        (TypeError, lambda: mg.compare({"a": NET}, batch_size=2.5)),
    "compare: repeat must be": (ValueError, lambda: mg.compare({"a": print}, repeat=0)),
    "Recording.of: a size must be a whole number of at least 0, got -5":
        (ValueError, lambda: mg.memory.Recording.of(-5)),
    "record: capacity must be a whole number of at least 1, got 0":
        (ValueError, lambda: mg.memory.record(capacity=0).__enter__()),
    r"unpack_hook gave float16\[4, 4\] for what was saved as float32\[4, 4\]":
        (mg.errors.GraphError, lambda: unpack_as(lambda t: t.half())),
    r"unpack_hook gave float32\[2, 4\] for what": (mg.errors.GraphError, lambda: unpack_as(lambda t: t[:2])),
}


@pytest.mark.parametrize("told", NONSENSE)
def test_nonsense_is_refused_by_name(told):
    error, call = NONSENSE[told]
    with pytest.raises(error, match=told):
        call()


BLOCKS = {"track": mg.memory.track, "pool": mg.memory.pool, "profile": mg.profile,
          "observe": lambda: mg.observe(lambda *_: None),
          "saved_tensors_hooks": lambda: mg.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t)}


def handler():
    return np._core.multiarray.get_handler_name()


@pytest.mark.parametrize("name", BLOCKS)
def test_a_block_that_never_began_does_not_end(name):
    with pytest.raises(RuntimeError, match=f"{name}: it ends where it did not begin"):
        BLOCKS[name]().__exit__(None, None, None)


@pytest.mark.parametrize("name", BLOCKS)
def test_another_thread_cannot_end_a_block_and_its_own_still_can(name):
    block, errors, before = BLOCKS[name](), [], (current(), handler())

    def end():
        try:
            block.__exit__(None, None, None)
        except RuntimeError as e:
            errors.append(str(e))
    block.__enter__()
    thread = threading.Thread(target=end)
    thread.start()
    thread.join()
    assert len(errors) == 1 and "end it in the thread and context that began it" in errors[0]
    block.__exit__(None, None, None)
    assert (current(), handler()) == before


@pytest.mark.parametrize("first", ["track", "pool", "observe"])
@pytest.mark.parametrize("second", ["track", "pool", "observe"])
def test_blocks_that_end_in_the_order_in_which_they_began_leave_nothing_installed(first, second):
    before = current(), handler()
    a, b = BLOCKS[first](), BLOCKS[second]()
    a.__enter__()
    b.__enter__()
    x = mg.ones(100, 100) * 2
    a.__exit__(None, None, None)
    y = x + 1
    b.__exit__(None, None, None)
    assert (current(), handler()) == before and float((x + y).sum()) == 50000
    del x, y
    gc.collect()


def test_what_is_shown_at_a_prompt_is_the_report():
    with mg.memory.record() as r:
        mg.ones(200, 200)
    leaks = mg.memory.find_leaks(lambda: None, steps=5)
    for each in (r, leaks, mg.memory.offload(), mg.memory.replay(r)):
        assert repr(each) == str(each) and "object at" not in repr(each)
