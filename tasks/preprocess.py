"""Preprocess: check, split and shuffle a raw dataset, as a Ray job."""

from typing import Any

from prefect import task

from storage.uri import DatasetURI
from tasks.orchestration.prefect_options import task_options
from tasks.orchestration.stage import stage
from tasks.planning.plan import Timeouts
from tasks.runners.runner import Runner, retry_on_fault
from tasks.stages import PreprocessSpec


@task(name="preprocess", **task_options, **retry_on_fault)
def preprocess(
    raw: DatasetURI, prepared: DatasetURI, values: dict[str, Any], timeouts: Timeouts, runner: Runner
) -> DatasetURI:
    """Write each usable row of `raw` once to a train, validation or test split; count and list unusable rows."""
    with stage("preprocess", prepared, parents={"raw": raw}) as current:
        if not current.reused:
            runner.run("preprocess", PreprocessSpec(source=raw, parameters=values, **timeouts.of_job(prepared)))
    return prepared
