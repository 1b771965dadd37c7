"""The flows, their command lines, and the Prefect servers that run them."""

PROJECT = "data-to-model"
"""Marks this project's objects on a Prefect server: tag of deployments and runs, prefix of automation names."""
