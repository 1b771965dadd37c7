"""Leases, commits and the registry under contention, checked against a sequential model."""
