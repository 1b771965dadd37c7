"""Raw datasets as a run makes them, without Prefect and in this process."""

from storage.uri import DatasetURI
from tasks.download import download
from tasks.ingest import ingest
from tasks.planning.plan import Plan
from tasks.runners.runner import InProcessRunner


def ingested(plan: Plan) -> DatasetURI:
    """Download and ingest what `plan` asks for."""
    return ingest.fn(download.fn(plan), plan, InProcessRunner())
