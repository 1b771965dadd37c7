"""Promote: compare challenger and champion on the same test rows, and record the gate's decision permanently."""

import contextlib
import dataclasses

from prefect import task
from prefect.context import FlowRunContext
from prefect.events import emit_event

from storage import manifest, reference, registry
from storage.decision import Decision
from storage.registry import Superseded
from storage.uri import CheckpointURI, DatasetURI, EvaluationURI
from tasks.evaluate import evaluate
from tasks.jobs.deadline import DeadlineExceeded
from tasks.orchestration.prefect_options import author, task_options
from tasks.orchestration.stage import logger, stage
from tasks.planning.plan import PromoteParameters, Timeouts
from tasks.planning.result_uris import evaluation_of, predictions_of
from tasks.predict import predict
from tasks.promotion.gate import find_valid_decision, judge, resolved, rival_of
from tasks.runners.runner import Runner


@task(name="promote", **task_options)
def promote(
    checkpoint: CheckpointURI,
    evaluation: EvaluationURI,
    parameters: PromoteParameters,
    timeouts: Timeouts,
    runner: Runner,
) -> Decision:
    """Make `checkpoint` the champion, atomically, if it passes the gate; record decision, metrics and reason anyway."""
    parameters = dataclasses.replace(parameters, gate=resolved(parameters.gate, checkpoint))
    decisions = registry.history(reference.root_of(evaluation), parameters.registered_model)
    decision = find_valid_decision(checkpoint, evaluation, decisions, parameters.gate)
    with stage("promote", reused=decision is not None):  # its predictions may wait for other runs
        if decision is None:
            decision = decide(checkpoint, evaluation, parameters, timeouts, runner)
            if FlowRunContext.get() is not None:
                emit_event(  # automations may react to it; Prefect adds the run and its deployment
                    f"pipeline.model.{decision.verdict}",
                    resource={
                        "prefect.resource.id": f"pipeline.registered-model.{parameters.registered_model}",
                        "prefect.resource.name": parameters.registered_model,
                    },
                    payload=decision.model_dump(mode="json", include={"number", "challenger", "reason", "metrics"}),
                )
        logger().info("%s: %s", decision.verdict, decision.reason)
        for comparison in decision.comparisons:
            logger().info("%s", comparison)
    return decision


def decide(
    checkpoint: CheckpointURI,
    evaluation: EvaluationURI,
    parameters: PromoteParameters,
    timeouts: Timeouts,
    runner: Runner,
) -> Decision:
    """Judge and record; repeat if another run decided in the meantime, unless it decided on this checkpoint."""
    root, registered_model = reference.root_of(evaluation), parameters.registered_model
    for _ in range(5):
        decisions = registry.history(root, registered_model)
        if earlier := find_valid_decision(checkpoint, evaluation, decisions, parameters.gate):
            return earlier
        champion = rival_of(checkpoint, decisions)
        rival = score(champion, evaluation, parameters, timeouts, runner) if champion else None
        decision = judge(checkpoint, evaluation, decisions, rival, parameters.gate).made_by(author())
        if not manifest.is_committed(checkpoint):
            raise FileNotFoundError(f"{checkpoint} was deleted before it could be promoted; run again")
        with contextlib.suppress(Superseded):
            registry.append(root, registered_model, decision)
            return decision
        logger().info("another run recorded a decision on %s; comparing again", registered_model)
    raise Superseded(f"other runs kept recording decisions on {registered_model}; run again")


def score(
    rival: CheckpointURI, evaluation: EvaluationURI, parameters: PromoteParameters, timeouts: Timeouts, runner: Runner
) -> EvaluationURI | str:
    """Evaluate `rival` on the test rows of `evaluation`, reusing existing results; return why if it fails."""
    try:
        root, judged = reference.root_of(evaluation), manifest.load(evaluation).parent("predictions", of=evaluation)
        how, dataset = parameters.predict, DatasetURI(manifest.load(judged).parent("dataset", of=judged))
        of_rival = predictions_of(root, rival, dataset, split=how.split)
        predictions = predict(rival, dataset, of_rival, how, timeouts, runner, name="predict with champion")
        return evaluate(predictions, evaluation_of(root, predictions), timeouts, name="evaluate champion")
    except DeadlineExceeded:
        raise
    except Exception as error:  # no error here may make the challenger champion
        logger().warning("%s cannot be scored: %s", rival, error)
        return f"{rival}: {type(error).__name__}: {error}"
