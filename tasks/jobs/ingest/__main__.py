"""Entry point of the job: `python -m tasks.jobs.ingest SPEC`."""

from tasks.jobs.main import main

main("ingest")
