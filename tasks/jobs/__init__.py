"""Entry points of the Ray jobs: they use Ray Data and Ray Train, never Prefect.

Each one can also be run by hand: `python -m tasks.jobs.train SPEC`.
"""
