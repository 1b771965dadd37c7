"""Backends that process a stage's rows: on Ray, or in this process."""
