"""Entry point of the job: `python -m tasks.jobs.train SPEC`."""

from tasks.jobs.main import main

main("train")
