"""Ray jobs, without Prefect; each can also be run by hand: `python -m tasks.jobs train SPEC`."""
