"""Shared Prefect code of the tasks: stages, options, progress, artifacts, events and the summary."""
