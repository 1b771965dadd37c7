"""Promote: compare challenger and champion on the same test rows, and record the gate's decision permanently."""

from prefect import task

from storage import manifest, registry
from storage.decision import Decision
from storage.registry import Superseded
from storage.uri import CheckpointURI, EvaluationURI
from tasks.evaluate import evaluate
from tasks.jobs.deadline import DeadlineExceeded
from tasks.orchestration.announce import announce, with_event
from tasks.orchestration.prefect_options import author, task_options
from tasks.orchestration.stage import logger, stage
from tasks.planning.plan import Plan
from tasks.predict import predict
from tasks.promotion.gate import find_valid_decision, judge, rivals_of
from tasks.runners.runner import Runner


@task(name="promote", **task_options)
def promote(checkpoint: CheckpointURI, evaluation: EvaluationURI, plan: Plan, cluster: Runner) -> Decision:
    """Make `checkpoint` the champion, atomically, if it passes the gate; record decision, metrics and reason anyway."""
    decisions = registry.history(plan.root, plan.registered_model)
    decision = find_valid_decision(checkpoint, evaluation, decisions, plan.gate)
    with stage("promote", reused=decision is not None):  # its predictions may wait for other runs
        if decision is None:
            decision = decide(checkpoint, evaluation, plan, cluster)
            decisions = registry.history(plan.root, plan.registered_model)
        announce(plan.root, plan.registered_model, decisions)
        logger().info("%s: %s", "promoted" if decision.promoted else "not promoted", decision.reason)
        for role, found in decision.differences.items():
            logger().info("compared with the %s: %s", role, found)
    return decision


def decide(checkpoint: CheckpointURI, evaluation: EvaluationURI, plan: Plan, cluster: Runner) -> Decision:
    """Judge and record; repeat if another run decided in the meantime, unless it decided on this checkpoint."""
    for _ in range(5):
        decisions = registry.history(plan.root, plan.registered_model)
        if made := find_valid_decision(checkpoint, evaluation, decisions, plan.gate):
            return made
        rivals = rivals_of(checkpoint, decisions, plan.gate)
        scores = {role: score(rival, plan, cluster) for role, rival in rivals.items()}
        judged = judge(checkpoint, evaluation, decisions, scores, plan.gate).made_by(author())
        decision = with_event(judged, decisions)
        if not manifest.is_committed(checkpoint):  # gc keeps it while this run uses it
            raise FileNotFoundError(f"{checkpoint} was deleted before it could be promoted; run again")
        try:
            registry.append(plan.root, plan.registered_model, decision)
        except Superseded:
            logger().info("another run recorded a decision on %s; comparing again", plan.registered_model)
            continue
        return decision
    raise Superseded(f"other runs kept recording decisions on {plan.registered_model}; run again")


def score(rival: CheckpointURI, plan: Plan, cluster: Runner) -> EvaluationURI | str:
    """Evaluate `rival` on this plan's test rows, reusing existing results; return why if it fails."""
    try:
        return evaluate(predict(rival, plan.prepared, plan, cluster), plan)
    except DeadlineExceeded:
        raise
    except Exception as error:  # no error here may make the challenger champion
        logger().warning("%s cannot be scored: %s", rival, error)
        return f"{rival}: {type(error).__name__}: {error}"
