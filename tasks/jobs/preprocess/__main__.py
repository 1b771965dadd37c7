"""Entry point of the job: `python -m tasks.jobs.preprocess SPEC`."""

from tasks.jobs.main import main

main("preprocess")
