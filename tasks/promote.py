"""Promote: champion against challenger on the same test rows, decided by a gate and recorded for ever."""

from collections.abc import Sequence

from prefect import task
from prefect.events import emit_event

from storage import manifest, registry
from storage.registry import Decision, Superseded
from storage.uri import CheckpointURI, EvaluationURI
from tasks.cluster import Cluster
from tasks.evaluate import evaluate
from tasks.jobs.deadline import DeadlineExceeded
from tasks.options import task_options
from tasks.plan import Plan
from tasks.predict import predict
from tasks.stage import logger, stage

PROMOTED = "pipeline.model.promoted"
"""Name of the event that tells of a new champion."""

_TRIES = 5
_UNSCORED = "the champion cannot be scored"


@task(name="promote", **task_options)
def promote(checkpoint: CheckpointURI, evaluation: EvaluationURI, plan: Plan, cluster: Cluster) -> Decision:
    """Put `checkpoint` in charge if it passes the gate; either way the decision, its numbers and reason are recorded.

    The champion changes in one atomic step. When another run decided meanwhile, judges again against the new champion.
    """
    decisions = registry.history(plan.root, plan.data_name)
    decision = standing(checkpoint, evaluation, decisions, plan.gate)
    with stage("promote", reused=decision is not None, deadline_s=plan.deadline_s):
        decision = decision or decide(checkpoint, evaluation, plan, cluster)
        logger().info("%s: %s", "promoted" if decision.promoted else "not promoted", decision.reason)
    return decision


def decide(checkpoint: CheckpointURI, evaluation: EvaluationURI, plan: Plan, cluster: Cluster) -> Decision:
    """Judge and record; when another run decided meanwhile, again, against the new champion."""
    for _ in range(_TRIES):
        decisions = registry.history(plan.root, plan.data_name)
        champion = decisions[-1].champion if decisions else None
        rival = None
        if champion not in (None, checkpoint):
            rival = score_champion(CheckpointURI(str(champion)), plan, cluster)
        decision = judge(checkpoint, evaluation, decisions, rival, plan.gate)
        try:
            registry.append(plan.root, plan.data_name, decision)
        except Superseded:
            logger().info("another run decided on %s meanwhile: judging again", plan.data_name)
            continue
        announce(decision, plan)
        return decision
    raise Superseded(f"other runs kept deciding on {plan.data_name}; run again")


def announce(decision: Decision, plan: Plan) -> None:
    """Tell Prefect's server of a promotion, as an event that automations can wait for."""
    if decision.promoted:
        name = plan.data_name
        emit_event(
            PROMOTED,
            resource={"prefect.resource.id": f"pipeline.champion.{name}", "prefect.resource.name": name},
            payload={"checkpoint": decision.challenger, "reason": decision.reason, "metrics": decision.metrics},
        )


def score_champion(champion: CheckpointURI, plan: Plan, cluster: Cluster) -> EvaluationURI | str:
    """The champion's evaluation on this plan's test rows, made if need be, or why there can be none."""
    try:
        return evaluate(predict(champion, plan.prepared, plan, cluster), plan)
    except DeadlineExceeded:
        raise
    except Exception as error:  # whatever it is, it must not put the challenger in charge
        logger().warning("the champion %s cannot be scored: %s", champion, error)
        return f"{type(error).__name__}: {error}"


def standing(
    checkpoint: CheckpointURI, evaluation: EvaluationURI, decisions: Sequence[Decision], gate: dict[str, float]
) -> Decision | None:
    """The decision already made on `checkpoint` by the same gate, if it still holds.

    It does not when another champion took charge since, nor when the champion could not be scored then.
    """
    for decision in reversed(decisions):
        if (decision.challenger, decision.evaluation, decision.gate) == (checkpoint, evaluation, gate):
            holds = decision.champion == decisions[-1].champion and not decision.reason.startswith(_UNSCORED)
            return decision if holds else None
    return None


def judge(
    checkpoint: CheckpointURI,
    evaluation: EvaluationURI,
    decisions: Sequence[Decision],
    rival: EvaluationURI | str | None,
    gate: dict[str, float],
) -> Decision:
    """The gate: an absolute floor, and not below the champion on the same rows by more than the margin.

    What a person rolled back takes charge again only by hand.
    """
    champion = decisions[-1].champion if decisions else None
    accuracy = _metrics(evaluation)["test_accuracy"]
    numbers = {"challenger": _metrics(evaluation)}
    floor, margin = gate["accuracy_floor"], gate["margin"]
    promoted = False
    if accuracy < floor:
        reason = f"test accuracy {accuracy:.4f} is below the floor {floor:.4f}"
    elif checkpoint in registry.withdrawn(decisions):
        reason = f"it was rolled back by hand; promote it by hand with: python -m storage promote {checkpoint}"
    elif champion is None:
        promoted, reason = True, f"test accuracy {accuracy:.4f} reaches the floor {floor:.4f}; there was no champion"
    elif champion == checkpoint:
        promoted, reason = True, f"it is the champion already, with test accuracy {accuracy:.4f}"
    elif not isinstance(rival, EvaluationURI):
        reason = (
            f"{_UNSCORED} on the same rows: {champion}: {rival}; run again, or promote by hand with: "
            f"python -m storage promote {checkpoint}"
        )
    else:
        numbers["champion"] = _metrics(rival)
        best = numbers["champion"]["test_accuracy"]
        promoted = accuracy >= best - margin
        relation = "is not more than" if promoted else "is more than"
        against = f"the champion's {best:.4f} on the same rows"
        if accuracy >= best:
            reason = f"test accuracy {accuracy:.4f} is at least {against}"
        else:
            reason = f"test accuracy {accuracy:.4f} {relation} the margin {margin:.4f} below {against}"
    return Decision(
        number=decisions[-1].number + 1 if decisions else 1,
        champion=checkpoint if promoted else champion,
        challenger=checkpoint,
        evaluation=evaluation,
        promoted=promoted,
        reason=reason,
        gate=gate,
        metrics=numbers,
    )


def _metrics(evaluation: EvaluationURI) -> dict[str, float]:
    statistics = manifest.load(evaluation).statistics
    return {name: statistics[name] for name in ("test_accuracy", "test_loss", "expected_calibration_error", "num_rows")}
