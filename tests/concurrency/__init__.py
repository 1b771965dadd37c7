"""Processes contend for commits, the registry, leases and garbage collection, while they are stopped and killed."""
