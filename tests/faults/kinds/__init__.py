"""Every kind of fault, and what has to come of it."""

from tests.faults.kinds import downloads, flows, s3, stored, surroundings, training
from tests.faults.kinds.register import KINDS, Kind

__all__ = ["KINDS", "Kind", "downloads", "flows", "s3", "stored", "surroundings", "training"]
