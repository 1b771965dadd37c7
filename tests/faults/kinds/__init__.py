"""Every kind of fault, and the required result."""

from tests.faults.kinds import downloads, flows, infrastructure, s3, stored, training
from tests.faults.kinds.register import KINDS

__all__ = ["KINDS", "downloads", "flows", "infrastructure", "s3", "stored", "training"]
