"""Processes contend for commits and the registry while they are stopped and killed."""
