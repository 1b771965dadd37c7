"""The gate: decides whether a challenger becomes champion. Runs no model and writes nothing."""

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from storage import manifest, registry
from storage.accuracy_difference import Difference
from storage.decision import Decision
from storage.uri import CheckpointURI, EvaluationURI
from tasks.learning.recipes import Recipe
from tasks.promotion import correct_rows
from tasks.promotion.correct_rows import Answers

_UNSCORED = "cannot be scored on the same rows"
_NAMES = {"champion": "the champion", "best": "the best champion so far"}
Gate = dict[str, Any]
"""Settings: `accuracy_floor` and `margin`, and optionally `significance` (largest p-value at which a better challenger
is significantly better), `above_largest_class` (it must beat always predicting the largest class of the test rows) and
`judge_only` (record the decision but keep the champion, as in a backfill)."""
Scores = dict[str, dict[str, float]]
"""Metrics of the challenger and of its rivals, by role."""
Rivals = Mapping[str, EvaluationURI | str]
"""By role, such as `champion`, the rival's evaluation on the challenger's test rows, or why there is none."""
_SHOWN = 10
"""Maximum number of class names in a reason."""


def settings_of(recipe: Recipe, *, judge_only: bool, is_own: bool) -> Gate:
    """Return the settings of the gate for `recipe`; optional ones are present only if requested.

    A model of the user's own data (`is_own`) must beat always predicting the largest class.
    """
    found: Gate = {"accuracy_floor": recipe.accuracy_floor, "margin": recipe.margin}
    if recipe.significance and not recipe.margin:
        found["significance"] = recipe.significance
    if is_own:
        found["above_largest_class"] = True
    return found | ({"judge_only": True} if judge_only else {})


def rivals_of(checkpoint: CheckpointURI, decisions: Sequence[Decision], gate: Gate) -> dict[str, CheckpointURI]:
    """Return the rivals of `checkpoint` by role: the `champion`, and with a margin also the `best` champion so far.

    Each promotion may lose up to the margin; the comparison with the best champion bounds the total loss.
    """
    champion = decisions[-1].champion if decisions else None
    if champion in (None, checkpoint):
        return {}
    rivals = {"champion": champion}
    best = registry.best(decisions, manifest.is_committed) if gate["margin"] > 0 else None
    return rivals if best in (None, champion, checkpoint) else rivals | {"best": best}


def find_valid_decision(
    checkpoint: CheckpointURI, evaluation: EvaluationURI, decisions: Sequence[Decision], gate: Gate
) -> Decision | None:
    """Return the decision already made on `checkpoint` by the same gate, if it is still valid.

    A decision of a promoting run is also valid for a `judge_only` run. It is invalid if the champion has changed since,
    or if a rival could not be scored then.
    """
    promoting = {name: value for name, value in gate.items() if name != "judge_only"}
    for decision in reversed(decisions):
        is_same = (decision.challenger, decision.evaluation) == (checkpoint, evaluation)
        if is_same and decision.gate in (gate, promoting):
            holds = decision.champion == decisions[-1].champion and _UNSCORED not in decision.reason
            return decision if holds else None
    return None


def judge(
    checkpoint: CheckpointURI, evaluation: EvaluationURI, decisions: Sequence[Decision], rivals: Rivals, gate: Gate
) -> Decision:
    """Judge a challenger: it must reach a floor, and be at most the margin below its rivals on the same rows.

    With `significance`, it must be better than its rivals, and a significance test over the rows must confirm it. A
    model that was rolled back can only be promoted by hand. `decisions` are all those of the championship, oldest
    first.
    """
    champion = decisions[-1].champion if decisions else None
    weights = registry.weights_of(checkpoint)
    scores = {"challenger": _metrics(evaluation)}
    scores |= {role: _metrics(rival) for role, rival in rivals.items() if isinstance(rival, EvaluationURI)}
    accuracy, its = scores["challenger"]["test_accuracy"], correct_rows.read(evaluation)
    differences = _differences(its, rivals)
    test_rows = its.digest() if its else None
    num_before = _num_compared(checkpoint, decisions, test_rows)
    new, gone = _other_classes(rivals.get("champion"))
    is_above, floor = _floor(accuracy, its, gate)
    if not is_above:
        promoted, reason = False, floor
    elif registry.withdrawn(decisions) & {checkpoint, weights}:
        promoted, reason = False, f"this model was rolled back; promote it with: {_by_hand(checkpoint)}"
    elif champion is None:
        promoted, reason = True, f"{floor}; there was no champion"
    elif champion == checkpoint:
        promoted, reason = True, f"it is already the champion, with test accuracy {accuracy:.4f}"
    else:
        promoted, reason = _compared(checkpoint, scores, rivals, differences, gate, num_before=num_before)
        reason += _describe_classes("new", new) + _describe_classes("gone", gone)
    if promoted and gate.get("judge_only") and champion != checkpoint:
        promoted = False
        reason += f"; a backfill does not promote: use --promote, or: {_by_hand(checkpoint)}"
    return Decision(
        number=decisions[-1].number + 1 if decisions else 1,
        champion=checkpoint if promoted else champion,
        weights=weights if promoted else None,
        challenger=checkpoint,
        evaluation=evaluation,
        promoted=promoted,
        reason=reason,
        gate=gate,
        metrics=scores,
        differences=differences,
        test_rows=test_rows,
        num_compared_before=num_before,
        new_classes=new,
        gone_classes=gone,
    )


def _by_hand(checkpoint: CheckpointURI) -> str:
    return f"python -m storage promote {shlex.quote(checkpoint)}"


def _differences(challenger: Answers | None, rivals: Rivals) -> dict[str, Difference]:
    read = {role: correct_rows.read(rival) for role, rival in rivals.items() if isinstance(rival, EvaluationURI)}
    return {role: challenger.beside(rival) for role, rival in read.items() if challenger and rival}


def _floor(accuracy: float, its: Answers | None, gate: Gate) -> tuple[bool, str]:
    """Return whether the challenger is good enough regardless of its rivals, and why."""
    if accuracy < gate["accuracy_floor"]:
        return False, f"test accuracy {accuracy:.4f} is below the floor {gate['accuracy_floor']:.4f}"
    if not gate.get("above_largest_class"):
        return True, f"test accuracy {accuracy:.4f} reaches the floor {gate['accuracy_floor']:.4f}"
    if its is None:
        return False, f"its predictions {_UNSCORED}: they no longer exist; run again"
    name, share = its.largest_class()
    beaten = "is above" if accuracy > share else "is not above"
    always = f"the accuracy of always predicting {name!r}, the largest class of the test rows"
    return accuracy > share, f"test accuracy {accuracy:.4f} {beaten} {share:.4f}, {always}"


def _compared(
    checkpoint: CheckpointURI,
    scores: Scores,
    rivals: Rivals,
    differences: Mapping[str, Difference],
    gate: Gate,
    *,
    num_before: int,
) -> tuple[bool, str]:
    """Return whether the challenger is good enough compared with every rival, and why."""
    for role, rival in rivals.items():
        known: Mapping[str, Any] = differences if "significance" in gate else scores
        if role not in known:
            why = rival if role not in scores else "its predictions no longer exist"
            advice = f"run again, or promote it with: {_by_hand(checkpoint)}"
            return False, f"{_NAMES[role]} {_UNSCORED}: {why}; {advice}"
    verdicts = [_beside(role, scores, differences.get(role), gate, num_before=num_before) for role in rivals]
    return next((verdict for verdict in verdicts if not verdict[0]), verdicts[0])


def _num_compared(checkpoint: CheckpointURI, decisions: Sequence[Decision], test_rows: str | None) -> int:
    """Return how many other models were compared with a champion on these test rows."""
    compared = {one.challenger for one in decisions if one.differences and test_rows and one.test_rows == test_rows}
    return len(compared - {checkpoint})


def _beside(
    role: str, scores: Scores, difference: Difference | None, gate: Gate, *, num_before: int
) -> tuple[bool, str]:
    """Return whether the challenger is good enough compared with one rival, and why.

    Each further model that is compared on the same test rows has another chance to seem better. So the largest p-value
    is divided by the number of models so far, as in Bonferroni's correction.
    """
    accuracy, other = scores["challenger"]["test_accuracy"], scores[role]["test_accuracy"]
    against = f"{_NAMES[role]}'s {other:.4f} on the same rows"
    if "significance" in gate and difference is not None:
        if difference.difference <= 0:
            return False, f"test accuracy {accuracy:.4f} is not above {against}"
        allowed = gate["significance"] / (1 + num_before)
        promoted = difference.p_value <= allowed
        required = f"p = {difference.p_value:.2g}, required: at most {allowed:.2g}"
        if num_before:
            required += f" = {gate['significance']:g} / {1 + num_before}, the models compared on these rows so far"
        but = "" if promoted else ", but not significantly"
        return promoted, f"test accuracy {accuracy:.4f} is above {against}{but} ({required})"
    if accuracy >= other:
        return True, f"test accuracy {accuracy:.4f} is at least {against}"
    promoted = accuracy >= other - gate["margin"]
    allowed = f"{'within the' if promoted else 'allowed'} margin {gate['margin']:.4f}"
    return promoted, f"test accuracy {accuracy:.4f} is below {against} ({allowed})"


def _other_classes(champion: EvaluationURI | str | None) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the test rows' classes that the champion does not know, and those that only the champion knows."""
    if not isinstance(champion, EvaluationURI):
        return (), ()
    classes = manifest.load(champion).statistics.get("classes", {})
    return tuple(classes.get("new", ())), tuple(classes.get("gone", ()))


def _describe_classes(what: str, classes: Sequence[str]) -> str:
    shown = [*classes[:_SHOWN], *(["..."] if len(classes) > _SHOWN else [])]
    return f"; classes {what} since the champion: {', '.join(shown)}" if classes else ""


def _metrics(evaluation: EvaluationURI) -> dict[str, float]:
    statistics = manifest.load(evaluation).statistics
    return {name: statistics[name] for name in ("test_accuracy", "test_loss", "expected_calibration_error", "num_rows")}
