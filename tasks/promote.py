"""Promote: compare challenger and champion on the same test rows, and record the gate's decision permanently."""

from prefect import task
from prefect.context import FlowRunContext
from prefect.events import emit_event

from storage import manifest, reference, registry
from storage.decision import Decision
from storage.kinds import CheckpointURI, DatasetURI, EvaluationURI
from storage.registry import Superseded
from tasks.evaluate import evaluate
from tasks.jobs.deadline import DeadlineExceeded
from tasks.learning.recipes import Gate
from tasks.orchestration.prefect_options import author, task_options
from tasks.orchestration.stage import logger, step
from tasks.predict import predict
from tasks.promotion.gate import find_valid_decision, judge, resolved, rival_of
from tasks.resources.needs import ANY, Limits, Needs
from tasks.runners.runner import Runner
from tasks.stages import Predict


@task(name="promote", **task_options)
def promote(
    checkpoint: CheckpointURI,
    evaluation: EvaluationURI,
    registered_model: str,
    gate: Gate,
    runner: Runner,
    *,
    judge_only: bool = False,
    replaces: CheckpointURI | None = None,
    needs: Needs = ANY,
    limits: Limits = Limits(),
) -> Decision:
    """Make `checkpoint` the champion, atomically, if it passes the gate; record decision, metrics and reason anyway.

    The champion is judged on the test rows of `evaluation` too: `runner` predicts them, by workers with these `needs`.
    `judge_only` records the decision but keeps the champion. `replaces` is a champion to forget: it predicts nothing
    more, and `checkpoint` takes its place whatever the gate says.
    """
    root, gate = reference.root_of(evaluation), resolved(gate, checkpoint)
    decisions = registry.history(root, registered_model)
    if not decisions or decisions[-1].champion != replaces:  # it is replaced already, or a user promoted another
        replaces = None

    def find() -> Decision | None:
        valid = find_valid_decision(checkpoint, evaluation, decisions, gate, judge_only=judge_only)
        return None if replaces else valid

    decision = find()
    with step("promote", reused=decision is not None):  # its predictions may wait for other runs
        while decision is None:
            champion, rival = None if replaces else rival_of(checkpoint, decisions), None
            if champion:
                rival = score_champion(champion, evaluation, runner, needs=needs, limits=limits)
            judged = judge(checkpoint, evaluation, decisions, rival, gate, judge_only=judge_only).made_by(author())
            judged = _in_place_of(replaces, judged) if replaces else judged
            if not manifest.is_committed(checkpoint):
                raise FileNotFoundError(f"{checkpoint} was deleted before it could be promoted; run again")
            try:
                registry.append(root, registered_model, judged)
                _emit(judged, registered_model)
                decision = judged
            except Superseded:
                logger().info("another run recorded a decision on %s; comparing again", registered_model)
                decisions = registry.history(root, registered_model)
                decision = find()
        logger().info("%s: %s", decision.verdict, decision.reason)
        for comparison in decision.comparisons:
            logger().info("%s", comparison)
    return decision


def _in_place_of(champion: CheckpointURI, judged: Decision) -> Decision:
    changes = {
        "champion": judged.challenger,
        "weights": registry.weights_of(judged.challenger),
        "promoted": True,
        "withdraws": champion,
        "reason": f"promoted in place of {champion.name}, which was made of an image that is forgotten",
    }
    return judged.model_copy(update=changes)


def _emit(decision: Decision, registered_model: str) -> None:
    """Emit an event for Prefect's automations, which adds the run and its deployment; nothing outside of a run."""
    if FlowRunContext.get() is not None:
        emit_event(
            f"pipeline.model.{decision.verdict}",
            resource={
                "prefect.resource.id": f"pipeline.registered-model.{registered_model}",
                "prefect.resource.name": registered_model,
            },
            payload=decision.model_dump(mode="json", include={"number", "challenger", "reason", "metrics"}),
        )


def score_champion(
    champion: CheckpointURI, evaluation: EvaluationURI, runner: Runner, *, needs: Needs, limits: Limits
) -> EvaluationURI | str:
    """Evaluate `champion` on the test rows of `evaluation`, reusing existing results; return why if it fails."""
    try:
        root, judged = reference.root_of(evaluation), manifest.load(evaluation).parent("predictions", of=evaluation)
        dataset = DatasetURI(manifest.load(judged).parent("dataset", of=judged))
        name = "predict with champion"
        own = Predict.of(champion, dataset, split="test", root=root).embeddings
        predictions = predict(
            champion, dataset, runner, split="test", embeddings=own, root=root, needs=needs, limits=limits, name=name
        )
        return evaluate(predictions, limits=limits, name="evaluate champion")
    except DeadlineExceeded:
        raise
    except Exception as error:  # no error here may make the challenger champion
        logger().warning("%s cannot be scored: %s", champion, error)
        return f"{champion}: {type(error).__name__}: {error}"
