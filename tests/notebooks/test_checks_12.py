"""The checks of notebook 12: right answers pass, plausible wrong ones do not."""

import checks_12 as checks

import minigrad as mg
from tests.notebooks.check_laws import (  # noqa: F401
    test_a_right_answer_passes,
    test_a_wrong_answer_is_told_what_is_off_in_one_line,
    test_an_open_answer_stops_nothing,
    test_every_check_has_right_and_wrong_answers,
)


# ---- average and its mutants --------------------------------------------------------------------
def in_place(comm, parameters):
    for p in parameters:
        comm.all_reduce_(p.grad, "mean")


def flat(comm, parameters):
    """All in one message."""
    total = comm.all_reduce(mg.cat([p.grad.reshape(-1) for p in parameters])) / comm.world_size
    for p, part in zip(parameters, total.split([p.numel() for p in parameters])):
        p.grad = part.reshape(p.shape)


def summed(comm, parameters):
    for p in parameters:
        comm.all_reduce_(p.grad)


def dropped(comm, parameters):
    for p in parameters:
        comm.all_reduce(p.grad, "mean")


def by_four(comm, parameters):
    for p in parameters:
        p.grad = comm.all_reduce(p.grad) / 4


def first_only(comm, parameters):
    comm.all_reduce_(parameters[0].grad, "mean")


def of_rank_0(comm, parameters):
    for p in parameters:
        p.grad = comm.broadcast(p.grad, 0)


def on_rank_0(comm, parameters):
    for p in parameters:
        mean = comm.reduce(p.grad, 0, "mean")
        if comm.rank == 0:
            p.grad = mean


def skips(comm, parameters):
    for p in parameters:
        if comm.rank == 0:
            comm.all_reduce_(p.grad, "mean")


def values(comm, parameters):
    for p in parameters:
        p.grad = comm.all_reduce(p.detach(), "mean")


# ---- buckets and their mutants ------------------------------------------------------------------
def buckets(order=-1, at_least=True, before=False, rest=True, reset=True, strict=False):
    """Right by default; each argument plants one mistake."""

    def run(sizes, cap):
        found, bucket, full = [], [], 0
        for k in range(len(sizes))[::order]:
            if before and bucket and full + sizes[k] > cap:
                found.append(bucket)
                bucket, full = [], 0
            bucket.append(k)
            full += sizes[k]
            if not before and at_least and (full > cap if strict else full >= cap):
                found.append(bucket)
                bucket, full = [], 0 if reset else full
        return found + [bucket] * bool(bucket and rest)

    return run


# ---- exposed and its mutants --------------------------------------------------------------------
def exposed(queue=True, never_negative=True, last=True, early=False):
    def run(ready, seconds, end):
        free = 0
        for at, time in list(zip(ready, seconds))[: None if last else -1]:
            free = max(free if queue else 0, 0 if early else at) + time
        return max(free - end, 0) if never_negative else free - end

    return run


RIGHT = {
    checks.check_average: [in_place, flat],
    checks.check_buckets: [buckets()],
    checks.check_exposed: [exposed()],
    checks.check_scale: [
        lambda rows, rank: len(rows) * rows[rank] / sum(rows),
        lambda rows, rank: rows[rank] / np_mean(rows),
    ],
}
WRONG = {
    checks.check_average: [summed, dropped, by_four, first_only, of_rank_0, on_rank_0, skips, values],
    checks.check_buckets: [
        buckets(order=1),
        buckets(at_least=False),
        buckets(before=True),
        buckets(rest=False),
        buckets(reset=False),
        buckets(strict=True),
        lambda sizes, cap: [[k] for k in reversed(range(len(sizes)))],
        lambda sizes, cap: [list(reversed(range(len(sizes)))), []],
        lambda sizes, cap: 3,
    ],
    checks.check_exposed: [
        exposed(queue=False),
        exposed(never_negative=False),
        exposed(last=False),
        exposed(early=True),
        lambda ready, seconds, end: sum(seconds),
        lambda ready, seconds, end: seconds[-1],
        lambda ready, seconds, end: max(0, sum(seconds) - end),
        lambda ready, seconds, end: "long",
    ],
    checks.check_scale: [
        lambda rows, rank: 1.0,
        lambda rows, rank: rows[rank] / sum(rows),
        lambda rows, rank: len(rows) * rows[rank],
        lambda rows, rank: sum(rows) / (len(rows) * rows[rank]) if rows[rank] else 0,
        lambda rows, rank: rows[rank] / max(rows),
        lambda rows, rank: len(rows) / sum(rows),
        lambda rows, rank: [1.0],
    ],
}


def np_mean(rows):
    return sum(rows) / len(rows)


def unfinished(*inputs):
    ...
