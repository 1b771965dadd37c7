"""Tickets: what a run takes of a machine while it computes, as other runs see it."""

import time
from typing import Self

from pydantic import BaseModel

from storage.process import Process

KEPT_S = 20.0
"""Seconds for which a finished stage's slot is kept for the next stage of its run: a prediction after its training."""


class Claim(BaseModel, frozen=True, extra="forbid"):
    """Resources of a machine that a run uses while it computes."""

    folder: str
    """Folder of this machine's tickets."""
    shared: bool
    """True if other users may have tickets there; else the folder must belong to this user alone."""
    run: str
    """Id of the run; a slot is kept for a while for the next stage of the same run. Empty: no run, nothing is kept."""
    process: Process
    """Process of the run; once it has ended, nothing is kept for it."""
    who: str
    """Name of the run for others who wait: run, process, result and storage."""
    doing: str
    """Activity, such as `training`, for others who wait."""
    cores: list[int]
    """Cores that it may run on."""
    num_cores: int
    """Number of these cores that it computes on."""
    gpus: list[str]
    """All GPUs that it computes on, by number or by name."""


class Ticket(BaseModel, frozen=True, extra="forbid"):
    """Ticket of a run that waits or computes, readable for all others."""

    number: int
    """Position in the queue: the lowest number came first."""
    claim: Claim
    given: list[int] | None = None
    """Cores that it computes on; None while it waits."""
    kept_until: float | None = None
    """End of the time for which it is kept, on the monotonic clock; None while its process works or waits."""

    def is_kept(self) -> bool:
        """Return True if the run's next stage may take it over, although the process that took it has ended.

        False for a ticket from before the machine was restarted: the monotonic clock then began again.
        """
        if self.kept_until is None:
            return False
        return 0 < self.kept_until - time.monotonic() <= KEPT_S and not self.claim.process.has_ended()

    def conflicts(self, other: Self) -> bool:
        """Return True if the two may want the same core or GPU."""
        return bool(set(self.claim.cores) & set(other.claim.cores)) or self.shares_gpu(other)

    def shares_gpu(self, other: Self) -> bool:
        """Return True if they may want the same GPU; one by number and one by name may be the same."""
        ours, theirs = set(self.claim.gpus), set(other.claim.gpus)
        alike = {name.isdecimal() for name in ours | theirs}
        return bool(ours and theirs) and (bool(ours & theirs) or len(alike) > 1)
