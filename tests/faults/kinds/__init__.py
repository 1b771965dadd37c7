"""Every kind of fault, and the required result."""

from tests.faults.kinds import collection, downloads, flows, infrastructure, parents, s3, stored, training
from tests.faults.kinds.register import KINDS

__all__ = ["KINDS", "collection", "downloads", "flows", "infrastructure", "parents", "s3", "stored", "training"]
