"""The errors of programs that talk: what stands still, what does not match, who failed.

Each names the ranks, the calls with their lines, and the way out.  First of the files on talking; imports nothing.
"""
from __future__ import annotations


class CommunicationError(RuntimeError):
    """Ranks that do not agree, or cannot go on; all of them have been stopped."""


class CollectiveMismatch(CommunicationError):
    """Ranks of a group made different calls where they must make the same one; no data moved."""


class Deadlock(CommunicationError):
    """Every rank that has not returned waits for another; `cycle` are the ranks of a ring of waits, if there is one."""

    def __init__(self, message: str, cycle: tuple[int, ...] = ()) -> None:
        super().__init__(message)
        self.cycle = cycle


class UnreceivedMessage(CommunicationError):
    """All ranks have returned, and a message that was sent has not been received."""


class RankTimeout(CommunicationError, TimeoutError):
    """The ranks did not end within the limit that `spawn` was given."""


class RankFailed(CommunicationError):
    """A rank's program raised: `rank`, and `failures`, the exceptions by rank; the first is the cause of this one."""

    def __init__(self, message: str, rank: int, failures: dict[int, BaseException]) -> None:
        super().__init__(message)
        self.rank, self.failures = rank, failures

    def __reduce__(self) -> tuple:
        return type(self), (str(self), self.rank, self.failures)


class WorkerLost(CommunicationError):
    """A process that ranks ran in has died, left its cluster, or cannot be reached."""


class RanksAbsent(CommunicationError, TimeoutError):
    """Not all ranks could begin: their workers do other work, or have gone."""


class Stopped(BaseException):
    """Ends the program of a rank that is not to go on.  No Exception, so that `except Exception` lets it pass."""


__all__ = ["CollectiveMismatch", "CommunicationError", "Deadlock", "RankFailed", "RankTimeout", "RanksAbsent",
           "Stopped", "UnreceivedMessage", "WorkerLost"]
