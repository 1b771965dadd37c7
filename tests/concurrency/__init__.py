"""Leases, commits and the registry under contention, checked against what they are to do one call at a time."""
