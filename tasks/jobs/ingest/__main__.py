"""Entry point of the job: `python -m tasks.jobs.ingest SPEC`."""

from tasks.jobs import main
from tasks.jobs.spec import IngestSpec

if __name__ == "__main__":
    main.main("ingest", IngestSpec)
