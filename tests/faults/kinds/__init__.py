"""Every kind of fault, and the required result."""

from tests.faults.kinds import collection, data, downloads, flows, infrastructure, parents, s3, stored, training
from tests.faults.kinds.register import KINDS, Kind

__all__ = [
    "KINDS",
    "Kind",
    "collection",
    "data",
    "downloads",
    "flows",
    "infrastructure",
    "parents",
    "s3",
    "stored",
    "training",
]
