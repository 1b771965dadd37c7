"""Entry point of every job: `python -m tasks.jobs STAGE SPEC`."""

from tasks.jobs.main import main

main()
