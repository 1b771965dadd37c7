"""Processes contend for commits and the registry, and two machines carry out the same run, while they are killed."""
