"""Drivers of the Ray jobs: Ray Data and Ray Train, no Prefect.

Each also runs by hand: `python -m tasks.jobs.train SPEC`.
"""
