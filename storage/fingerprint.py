"""Fingerprints: short digests of everything that determines the bytes of a result."""

import hashlib
import json
from typing import Any

LENGTH = 12
"""Hexadecimal digits: 48 bits, so a collision is unlikely until one root holds millions of results."""


def fingerprint(stage: str, *, version: int, parents: list[str], parameters: dict[str, Any]) -> str:
    """Hash a stage, its version, the parents' fingerprints and `parameters` (JSON values).

    Equal arguments give the same digest on every machine.
    """
    made_from = {"stage": stage, "version": version, "parents": parents, "parameters": parameters}
    canonical = json.dumps(made_from, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(canonical.encode()).hexdigest()[:LENGTH]
