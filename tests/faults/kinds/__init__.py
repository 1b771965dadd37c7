"""Every kind of fault, and the required result."""

from tests.faults.kinds import collection, data, downloads, flows, infrastructure, parents, s3, stored, training
from tests.faults.kinds.register import KINDS

__all__ = ["KINDS", "collection", "data", "downloads", "flows", "infrastructure", "parents", "s3", "stored", "training"]
