"""Every kind of fault, and the required result."""

from tests.faults.kinds import collection, flows, infrastructure, parents, s3, stored, training
from tests.faults.kinds.register import KINDS

__all__ = ["KINDS", "collection", "flows", "infrastructure", "parents", "s3", "stored", "training"]
