"""Time limits of a stage: no part of its value, since they change no byte of its result."""

from pydantic import BaseModel, ConfigDict


class Limits(BaseModel):
    """Time limits of a stage, in seconds."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    stage_s: float = 24 * 3600.0
    """Seconds after which a stage is aborted."""
    stall_s: float = 600.0
    """Seconds without progress after which a training worker is restarted, or the wait for a cluster's nodes ends."""
    download_s: float = 30.0
    """Seconds without data after which a download gives a connection up."""
