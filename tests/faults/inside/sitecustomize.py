"""Imported by Python itself as it starts, in processes whose PYTHONPATH names this folder."""

from tests.faults import injection

injection.install()
