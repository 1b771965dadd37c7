"""Entry point of the job: `python -m tasks.jobs.predict SPEC`."""

from tasks.jobs.main import main

main("predict")
