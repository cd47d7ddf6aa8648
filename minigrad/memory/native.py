"""The machine code behind `handler.py`, in numba: no objects, no Python, only words at addresses.

NumPy holds the interpreter lock whenever it asks for memory, so nothing here is locked.  `control` is the address of a
block of words: 0 … 4 are `ctx, malloc, calloc, realloc, free` of the handler below; what follows is the caller's.
Loading takes a second, so it is imported only when it is used.
"""
from __future__ import annotations

try:
    import numba
    from llvmlite import ir
    from numba import types
    from numba.extending import intrinsic
except ImportError as e:
    raise ImportError("memory: arrays are watched by machine code, which needs numba: pip install numba") from e

word = types.uintp
u = numba.uintp


def _caller(arguments: int, returns: bool):
    """A call of the C function at an address that is known only when it runs: so the code can be cached on disk."""
    @intrinsic
    def call(context, at, a, b, c):
        def code(target, builder, signature, args):
            w = target.get_value_type(word)
            kind = ir.FunctionType(w if returns else ir.VoidType(), [w] * arguments)
            got = builder.call(builder.inttoptr(args[0], kind.as_pointer()), args[1:1 + arguments])
            return got if returns else args[0]
        return word(word, word, word, word), code
    return call


call0, call2, call3, call3_void = _caller(0, True), _caller(2, True), _caller(3, True), _caller(3, False)


@intrinsic
def load(context, at):
    """The word at an address."""
    def code(target, builder, signature, args):
        return builder.load(builder.inttoptr(args[0], target.get_value_type(word).as_pointer()))
    return word(word), code


@intrinsic
def store(context, at, value):
    def code(target, builder, signature, args):
        builder.store(args[1], builder.inttoptr(args[0], target.get_value_type(word).as_pointer()))
        return args[1]
    return word(word, word), code


# ---- watching: words 5 live, 6 peak, 7 head, 8 capacity, 9 address of the log, 10 of who tells the thread;
# 11 how many buffers were ever taken, 12 their bytes
@numba.njit
def note(control, at, n, back):
    """Enter (address, 2 · bytes + back, thread) in the log, if there is room, and count the bytes."""
    live = load(control + u(40)) - n if back else load(control + u(40)) + n
    store(control + u(40), live)
    if not back:
        store(control + u(88), load(control + u(88)) + u(1))
        store(control + u(96), load(control + u(96)) + n)
        if live > load(control + u(48)):
            store(control + u(48), live)
    head = load(control + u(56))
    if head < load(control + u(64)):
        place = load(control + u(72)) + head * u(24)
        store(place, at)
        store(place + u(8), n + n + back)
        store(place + u(16), call0(load(control + u(80)), u(0), u(0), u(0)))
    store(control + u(56), head + u(1))


@numba.cfunc(word(word, word), cache=True)
def _malloc(control, n):
    at = call2(load(control + u(8)), load(control), n, u(0))
    if at:
        note(control, at, n, u(0))
    return at


@numba.cfunc(word(word, word, word), cache=True)
def _calloc(control, n, size):
    at = call3(load(control + u(16)), load(control), n, size)
    if at:
        note(control, at, n * size, u(0))
    return at


@numba.cfunc(word(word, word, word), cache=True)
def _realloc(control, old, n):
    """NumPy does not tell the old size: the log has a return of 0 bytes, and the reader, who knows, corrects."""
    at = call3(load(control + u(24)), load(control), old, n)
    if at:
        note(control, old, u(0), u(1))
        note(control, at, n, u(0))
    return at


@numba.cfunc(types.void(word, word, word), cache=True)
def _free(control, at, n):
    if at:
        note(control, at, n, u(1))
        call3_void(load(control + u(32)), load(control), at, n)


@numba.cfunc(types.void(word, word, word, word), cache=True)
def _enter(control, at, n, back):
    """`note`, for Python to call."""
    note(control, at, n, back)


@numba.cfunc(word(word, word), cache=True)
def _exchange(control, log):
    """Go on in another log; how many events the old one was told of.  One call: no other thread comes between."""
    head = load(control + u(56))
    store(control + u(72), log)
    store(control + u(56), u(0))
    return head


WATCHING = {"malloc": _malloc, "calloc": _calloc, "realloc": _realloc, "free": _free}
TOLD = {"enter": _enter, "exchange": _exchange}      # what Python calls itself, with the interpreter lock held
