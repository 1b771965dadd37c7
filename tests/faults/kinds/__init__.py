"""Every kind of fault, and the required result."""

from tests.faults.case import KINDS
from tests.faults.kinds import flows, infrastructure, s3, stored, training

__all__ = ["KINDS", "flows", "infrastructure", "s3", "stored", "training"]
