"""MLflow: each training of a registered model as a run and a version there, and its champion as an alias."""

import dataclasses
import itertools
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from storage import manifest, registry
from storage.admin import runs
from storage.decision import Decision
from storage.kinds import CHECKPOINT, EVALUATION
from storage.statistics import EpochMetrics
from storage.uri import URI, Root, redact, redact_text
from tasks.comparing.results import Results
from tasks.learning import recipes
from tasks.orchestration.stage import logger

if TYPE_CHECKING:
    from mlflow.entities import Run

_COMPLETE = "decision"
"""Tag that is set last: number of the decision up to which a run is logged."""
_MOST, _MOST_METRICS = 10, 1000
"""Most trainings to log in one call, the latest; most metrics that a server takes in one request."""
_USUAL = {
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",  # by MLflow's defaults a run would wait for minutes for a server that is away
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",  # stdout is the command's own
    "MLFLOW_DISABLE_TELEMETRY": "true",
}


def track(root: Root, registered_model: str) -> None:
    """Log to MLflow what it does not have yet of a registered model; never fails.

    These are the latest trainings that the registry has a decision on, and the alias of the champion. The registry says
    what they are, so each call makes up for earlier ones that failed. Nothing happens without MLFLOW_TRACKING_URI.
    """
    address = os.environ.get("MLFLOW_TRACKING_URI")
    if not address:
        return
    os.environ.update(_USUAL | dict(os.environ))
    try:
        _Tracker(root, registered_model).update()
    except Exception as error:  # all results are committed, whether the server answers now or not
        is_installed = not isinstance(error, ModuleNotFoundError)
        advice = "check the server" if is_installed else "run: pip install mlflow-skinny"
        reason = redact_text(" ".join(str(error).split()))
        message = "WARNING: not logged to MLflow at %s (%s); %s, and the next run logs what is missing"
        logger().warning(message, redact(address), reason, advice)


class _Tracker:
    """A registered model on a server: a run there is one training, by the fingerprint of its checkpoint."""

    def __init__(self, root: Root, model: str) -> None:
        from mlflow import MlflowClient

        self.root, self.model, self.client = root, model, MlflowClient()
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or model
        experiment = self.client.get_experiment_by_name(name)
        self.experiment: str = experiment.experiment_id if experiment else self.client.create_experiment(name)

    def update(self) -> None:
        decisions = {decision.challenger: decision for decision in registry.history(self.root, self.model)}
        newest = sorted(decisions.values(), key=lambda decision: -decision.number)
        # The oldest is logged first: once one is there, so are those before it.
        for decision in reversed([*itertools.takewhile(self._is_missing, newest[:_MOST])]):
            self._log(decision)
        if champion := newest[0].champion:
            run = self._find(decisions[champion])
            version = self._version(run if run and _COMPLETE in run.data.tags else self._log(decisions[champion]))
            if str(self.client.get_registered_model(self.model).aliases.get("champion")) != version:
                self.client.set_registered_model_alias(self.model, "champion", version)

    def _find(self, decision: Decision) -> "Run | None":
        fingerprint = decision.challenger.fingerprint
        condition = f"tags.fingerprint = '{fingerprint}' and tags.registered_model = '{self.model}'"
        return next(iter(self.client.search_runs([self.experiment], condition, max_results=1)), None)

    def _is_missing(self, decision: Decision) -> bool:
        run = self._find(decision)
        is_logged = run is not None and run.data.tags.get(_COMPLETE) == str(decision.number)
        return not is_logged and manifest.is_committed(decision.challenger)

    def _log(self, decision: Decision) -> "Run":
        """Log the training that `decision` is about, or only what is new of it; return its run."""
        checkpoint, run = decision.challenger, self._find(decision)
        if not run:
            tags = {"fingerprint": checkpoint.fingerprint, "registered_model": self.model, "checkpoint": checkpoint}
            trained = manifest.load(checkpoint)
            begin = trained.created.timestamp() - trained.statistics_of(CHECKPOINT).seconds
            run = self.client.create_run(self.experiment, round(begin * 1000), tags, run_name=checkpoint.name)
        if _COMPLETE not in run.data.tags:
            self._log_training(run, Results.of(checkpoint))
        reports = [row for row in runs.of(self.root)[0] if row["registered_model"] == self.model]
        if page := {row["checkpoint"]: row["uri"] for row in reports}.get(checkpoint):
            self._upload(run, page, "report")
        facts = {"verdict": decision.verdict, "mlflow.note.content": decision.account, _COMPLETE: str(decision.number)}
        for name, value in facts.items():
            self.client.set_tag(run.info.run_id, name, value)
        logger().info("logged to MLflow: %s", checkpoint.name)
        return run

    def _log_training(self, run: "Run", results: Results) -> None:
        """Log recipe, metrics and model; a metric of an epoch that was not measured is 0, and left out."""
        from mlflow.entities import Metric, Param

        (checkpoint, trained), run_id, when_ms = results.require(CHECKPOINT), run.info.run_id, run.info.start_time
        training, evaluated = trained.statistics_of(CHECKPOINT), results.manifest(EVALUATION)
        params = [Param(name, str(value)) for name, value in recipes.flat(training.recipe).items()]
        self.client.log_batch(run_id, params=params)
        scores = evaluated.statistics_of(EVALUATION).metrics() if evaluated else {}
        metrics = [Metric(name, value, when_ms, 0) for name, value in scores.items()]
        for epoch, field in itertools.product(training.history, dataclasses.fields(EpochMetrics)):
            value = getattr(epoch, field.name)
            if field.name != "epoch" and isinstance(value, int | float) and (field.compare or value):
                metrics.append(Metric(field.name, value, when_ms, epoch.epoch))
        for first in range(0, len(metrics), _MOST_METRICS):
            self.client.log_batch(run_id, metrics=metrics[first : first + _MOST_METRICS])
        self._upload(run, checkpoint, "model")
        self._version(run)
        self.client.set_terminated(run_id, end_time=when_ms + round(training.seconds * 1000))

    def _upload(self, run: "Run", uri: URI, name: str) -> None:
        """Upload a result with its manifest; raises `Damaged` if its bytes are not those that were committed."""
        recorded = manifest.load(uri)
        with tempfile.TemporaryDirectory() as folder:
            for file in recorded.files:
                path = Path(folder, file.path)
                path.parent.mkdir(parents=True, exist_ok=True)
                manifest.fetch_file(uri, file, path)
            Path(folder, manifest.NAME).write_bytes(recorded.to_json())
            self.client.log_artifacts(run.info.run_id, folder, name)

    def _version(self, run: "Run") -> str:
        """Return the version of the registered model that is the model of `run`; create it if there is none."""
        client, run_id, of_model = self.client, run.info.run_id, f"name = '{self.model}'"
        if not client.search_registered_models(of_model):
            client.create_registered_model(self.model)
        (version,) = client.search_model_versions(f"{of_model} and run_id = '{run_id}'") or [
            client.create_model_version(self.model, f"{run.info.artifact_uri}/model", run_id, await_creation_for=0)
        ]
        return str(version.version)
