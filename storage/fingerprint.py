"""Fingerprints: short digests of everything that decides the bytes of a result."""

import hashlib
import json
from typing import Any

LENGTH = 12
"""Hexadecimal digits: 48 bits, a collision is not to be expected below millions of results in one root."""


def fingerprint(stage: str, *, version: int, parents: list[str], parameters: dict[str, Any]) -> str:
    """The same digest for the same stage, version, parents' fingerprints and parameters, on every machine.

    `parameters` are JSON values.
    """
    made_from = {"stage": stage, "version": version, "parents": parents, "parameters": parameters}
    canonical = json.dumps(made_from, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(canonical.encode()).hexdigest()[:LENGTH]
