"""What runs, in order: the flows and their command lines."""

PROJECT = "mnist-pipeline"
"""Marks what is ours on a Prefect server: the tag of deployments and runs, the beginning of automations' names."""
