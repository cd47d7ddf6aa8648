"""`SizeClasses` of `policies.py` in machine code, for NumPy to call: what decides, and nothing else.

A block begins with a header of eight words; free blocks hang in bins, four to each power of two, in the order of (size,
address), so the first that fits is the best fit, as there: a test holds the two together.  Addresses and sizes are
signed words.  After `native.py`; `caching.py` reads what is counted here.
"""
from __future__ import annotations

from typing import Any

from minigrad.memory.native import call2, call3, call3_void, intrinsic, load, numba, types, word
from minigrad.memory.policies import SizeClasses

# control: the handler below (0 … 4), then
SMALLEST, LIMIT, KEEP, MEMSET, MEMMOVE = range(5, 10)               # settings; KEEP: empty segments stay
TABLE, CAPACITY, COUNT, LOW, HIGH = range(10, 15)                   # of segments: (start, stop, address below)
ALLOCS, FREES, SPLITS, MERGES, HITS, MISSES = range(15, 21)
PEAK, USE = 21, 24                                                  # three words; four of each kind
REQUESTED, ALLOCATED, RESERVED, SEGMENTS = range(4)
REFUSALS, REFUSED, HOLDERS = 32, 33, 39     # bytes, use, largest free, segment; then three (address, bytes)
FIRST, BINS, ENTRY = 45, 128, 3
WORDS = FIRST + 2 * BINS
# a block's header
SIZE, BEFORE, AFTER, NEXT, LAST, ASKED, SERIAL, KIND = range(8)     # NEXT and LAST: in the bin, while it is free
HEADER, MOST = 64, 1 << 46

ROUND, SMALL, SMALL_SEGMENT = SizeClasses.ROUND, SizeClasses.SMALL, SizeClasses.SMALL_SEGMENT
OWN, LARGE_SEGMENT, ROUND_LARGE = SizeClasses.OWN, SizeClasses.LARGE_SEGMENT, SizeClasses.ROUND_LARGE
i, u = numba.int64, numba.uintp


# no wrappers for Python, which nobody calls: they take most of the time of compiling
njit: Any = numba.njit                                               # its hints do not know these options
code = njit(no_cpython_wrapper=True, no_cfunc_wrapper=True, _nrt=False)


@intrinsic
def get(context, at, k):
    """The k-th word at an address."""
    def emit(target, builder, signature, args):
        return builder.load(_place(builder, *args))
    return i(i, i), emit


@intrinsic
def put(context, at, k, value):
    def emit(target, builder, signature, args):
        builder.store(args[2], _place(builder, *args[:2]))
        return args[2]
    return i(i, i, i), emit


def _place(builder, at, k):
    return builder.inttoptr(builder.add(at, builder.shl(k, k.type(3))), k.type.as_pointer())


@code
def add(at, k, value):
    put(at, k, get(at, k) + value)


@code
def entry(c, k):
    return get(c, TABLE) + k * 8 * ENTRY


# ---- bins ----------------------------------------------------------------------------------------
@code
def bin_of(c, kind, size):
    """The word of `control` that holds the first block of its bin."""
    k = 9
    while size >> (k + 1):
        k += 1
    return FIRST + kind * BINS + min(((k - 9) << 2) + ((size >> (k - 2)) & 3), BINS - 1)


@code
def enlist(c, block):
    size, last = get(block, SIZE), i(0)
    head = bin_of(c, get(block, KIND), size)
    at = get(c, head)
    while at and (get(at, SIZE) < size or (get(at, SIZE) == size and at < block)):
        last, at = at, get(at, NEXT)
    put(block, NEXT, at)
    put(block, LAST, last)
    if at:
        put(at, LAST, block)
    if last:
        put(last, NEXT, block)
    else:
        put(c, head, block)


@code
def unlist(c, block):
    after, last = get(block, NEXT), get(block, LAST)
    if after:
        put(after, LAST, last)
    if last:
        put(last, NEXT, after)
    else:
        put(c, bin_of(c, get(block, KIND), get(block, SIZE)), after)


@code
def find(c, kind, size):
    for k in range(bin_of(c, kind, size), FIRST + (kind + 1) * BINS):
        at = get(c, k)
        while at:
            if get(at, SIZE) >= size:
                return at
            at = get(at, NEXT)
    return i(0)


# ---- counts --------------------------------------------------------------------------------------
@code
def total(c, what):
    return get(c, USE + what) + get(c, USE + 4 + what)


@code
def count(c, kind, what, n):
    """Add n bytes to what is requested, allocated or reserved; remember the most."""
    add(c, USE + 4 * kind + what, n)
    put(c, PEAK + what, max(get(c, PEAK + what), total(c, what)))


# ---- segments ------------------------------------------------------------------------------------
@code
def room(c):
    """Whether the table has an entry to spare, longer if need be."""
    n = get(c, CAPACITY)
    if get(c, COUNT) < n:
        return True
    old, size = u(get(c, TABLE)), u(8 * ENTRY * max(64, 2 * n))
    new = call3(load(u(c + 24)), load(u(c)), old, size) if n else call2(load(u(c + 8)), load(u(c)), size, u(0))
    if new:
        put(c, TABLE, new)
        put(c, CAPACITY, max(64, 2 * n))
    return new != 0


@code
def reserve(c, kind, size):
    """The one free block of a new segment; 0 if that passes the limit, or there is no memory."""
    for _ in range(2):
        if (get(c, LIMIT) == 0 or size <= get(c, LIMIT) - total(c, RESERVED)) and room(c):
            raw = i(call2(load(u(c + 8)), load(u(c)), u(size + 64), u(0)))
            if raw:
                return enter(c, kind, size, raw)
        if release(c) == 0:
            break
    return i(0)


@code
def enter(c, kind, size, raw):
    block = (raw + 63) & -64
    row = entry(c, get(c, COUNT))
    put(row, 0, block)
    put(row, 1, block + size)
    put(row, 2, raw)
    add(c, COUNT, 1)
    put(c, LOW, min(get(c, LOW), block) if get(c, LOW) else block)
    put(c, HIGH, max(get(c, HIGH), block + size))
    for k in range(8):
        put(block, k, 0)
    put(block, SIZE, size)
    put(block, KIND, kind)
    count(c, kind, RESERVED, size)
    add(c, USE + 4 * kind + SEGMENTS, 1)
    enlist(c, block)
    return block


@code
def release(c):
    """Give the empty segments to the handler below, and the table too when it is empty; the bytes."""
    found = i(0)
    for k in range(get(c, COUNT) - 1, -1, -1):
        row = entry(c, k)
        block = get(row, 0)
        if get(block, SERIAL) == 0 and get(block, AFTER) == 0:
            size, kind, raw = get(block, SIZE), get(block, KIND), get(row, 2)
            unlist(c, block)
            last = entry(c, get(c, COUNT) - 1)
            for j in range(ENTRY):
                put(row, j, get(last, j))
            add(c, COUNT, -1)
            count(c, kind, RESERVED, -size)
            add(c, USE + 4 * kind + SEGMENTS, -1)
            call3_void(load(u(c + 32)), load(u(c)), u(raw), u(size + 64))
            found += size
    if get(c, COUNT) == 0 and get(c, CAPACITY):
        call3_void(load(u(c + 32)), load(u(c)), u(get(c, TABLE)), u(8 * ENTRY * get(c, CAPACITY)))
        put(c, CAPACITY, 0)
        put(c, LOW, 0)
        put(c, HIGH, 0)
    return found


@code
def owns(c, at):
    if at < get(c, LOW) or at >= get(c, HIGH):
        return False
    for k in range(get(c, COUNT)):
        if get(entry(c, k), 0) < at and at < get(entry(c, k), 1):
            return True
    return False


# ---- blocks --------------------------------------------------------------------------------------
@code
def rounded(n):
    return (n + HEADER + ROUND - 1) & -ROUND


@code
def take(c, n):
    """The address for n bytes of the program; 0 if refused."""
    size = rounded(n)
    kind = i(0 if size <= SMALL else 1)
    block = find(c, kind, size)
    if block:
        add(c, HITS, 1)
    else:
        more = SMALL_SEGMENT if kind == 0 else LARGE_SEGMENT if size < OWN else (size + ROUND_LARGE - 1) & -ROUND_LARGE
        block = reserve(c, kind, more)
        if block == 0:
            refuse(c, n, more)
            return i(0)
        add(c, MISSES, 1)
    unlist(c, block)
    cut(c, block, size, kind)
    add(c, ALLOCS, 1)
    put(block, ASKED, n)
    put(block, SERIAL, get(c, ALLOCS))
    count(c, kind, REQUESTED, n)
    count(c, kind, ALLOCATED, get(block, SIZE))
    return block + HEADER


@code
def cut(c, block, size, kind):
    """What is left of the block stays free, where it is worth it."""
    rest, after = get(block, SIZE) - size, get(block, AFTER)
    if (kind == 0 and rest >= ROUND) or rest > SMALL:
        new = block + size
        put(new, SIZE, rest)
        put(new, BEFORE, block)
        put(new, AFTER, after)
        put(new, SERIAL, 0)
        put(new, KIND, kind)
        if after:
            put(after, BEFORE, new)
        put(block, SIZE, size)
        put(block, AFTER, new)
        add(c, SPLITS, 1)
        enlist(c, new)


@code
def join(c, a, b):
    after = get(b, AFTER)
    put(a, SIZE, get(a, SIZE) + get(b, SIZE))
    put(a, AFTER, after)
    if after:
        put(after, BEFORE, a)
    add(c, MERGES, 1)
    return a


@code
def give_back(c, at):
    block = at - HEADER
    count(c, get(block, KIND), REQUESTED, -get(block, ASKED))
    count(c, get(block, KIND), ALLOCATED, -get(block, SIZE))
    add(c, FREES, 1)
    put(block, SERIAL, 0)
    before, after = get(block, BEFORE), get(block, AFTER)
    if before and get(before, SERIAL) == 0:
        unlist(c, before)
        block = join(c, before, block)
    if after and get(after, SERIAL) == 0:
        unlist(c, after)
        block = join(c, block, after)
    enlist(c, block)
    if get(c, KEEP) == 0 and get(block, BEFORE) == 0 and get(block, AFTER) == 0:
        release(c)


# ---- what Python asks ----------------------------------------------------------------------------
@code
def refuse(c, n, segment):
    """Remember what was asked, how things were, and the three largest (address, bytes)."""
    add(c, REFUSALS, 1)
    put(c, REFUSED, n)
    put(c, REFUSED + 5, segment)
    for what in range(3):
        put(c, REFUSED + 1 + what, total(c, what))
    largest, size, serial = i(0), i(MOST), i(0)
    for k in range(3):
        at, n, s = i(0), i(-1), i(0)
        for row in range(get(c, COUNT)):
            block = get(entry(c, row), 0)
            while block:
                m, t = get(block, ASKED), get(block, SERIAL)
                if t == 0:
                    largest = max(largest, get(block, SIZE))
                elif (m < size or (m == size and t > serial)) and (m > n or (m == n and t < s)):
                    at, n, s = block + HEADER, m, t
                block = get(block, AFTER)
        put(c, HOLDERS + 2 * k, at)
        put(c, HOLDERS + 2 * k + 1, n)
        size, serial = n, s
    put(c, REFUSED + 4, largest)


@numba.cfunc(word(word, word, word), cache=True)
def _blocks(control, out, capacity):
    """Write (address, size, bytes asked for, serial) of each block, and return how many there are."""
    c, n = i(control), i(0)
    for k in range(get(c, COUNT)):
        block = get(entry(c, k), 0)
        while block:
            if n < i(capacity):
                row = i(out) + 32 * n
                put(row, 0, block)
                put(row, 1, get(block, SIZE))
                put(row, 2, get(block, ASKED))
                put(row, 3, get(block, SERIAL))
            n += 1
            block = get(block, AFTER)
    return u(n)


@numba.cfunc(word(word), cache=True)
def _release(control):
    return u(release(i(control)))


# ---- what NumPy calls ----------------------------------------------------------------------------
@code
def pooled(c, n):
    return n >= get(c, SMALLEST) and n < MOST


@code
def malloc(c, n):
    return take(c, n) if pooled(c, n) else i(call2(load(u(c + 8)), load(u(c)), u(n), u(0)))


@numba.cfunc(word(word, word), cache=True)
def _malloc(control, n):
    return u(malloc(i(control), i(n)))


@numba.cfunc(word(word, word, word), cache=True)
def _calloc(control, n, size):
    c = i(control)
    if not pooled(c, i(n) * i(size)):
        return call3(load(control + u(16)), load(control), n, size)
    at = take(c, i(n) * i(size))
    if at:
        call3(load(u(c + 8 * MEMSET)), u(at), u(0), n * size)
    return u(at)


@numba.cfunc(word(word, word, word), cache=True)
def _realloc(control, old, n):
    c, at, n = i(control), i(old), i(n)
    if not owns(c, at):
        return call3(load(control + u(24)), load(control), old, u(n))
    size = get(at - HEADER, ASKED)
    if rounded(n) == get(at - HEADER, SIZE) and pooled(c, n):
        count(c, get(at - HEADER, KIND), REQUESTED, n - size)
        put(at - HEADER, ASKED, n)
        return old
    new = malloc(c, n)
    if new:
        call3(load(u(c + 8 * MEMMOVE)), u(new), old, u(min(size, n)))
        give_back(c, at)
    return u(new)


@numba.cfunc(types.void(word, word, word), cache=True)
def _free(control, at, n):
    if at and owns(i(control), i(at)):
        give_back(i(control), i(at))
    elif at:
        call3_void(load(control + u(32)), load(control), at, n)


POOLING = {"malloc": _malloc, "calloc": _calloc, "realloc": _realloc, "free": _free}
ASKING = {"blocks": _blocks, "release": _release}
