"""Entry point of the job: `python -m tasks.jobs.ingest SPEC`."""

from tasks.jobs import driver
from tasks.jobs.spec import IngestSpec

if __name__ == "__main__":
    driver.main("ingest", IngestSpec)
