"""The gate: decides whether a challenger becomes champion. Runs no model and writes nothing."""

import dataclasses
import itertools
import shlex
from collections.abc import Mapping, Sequence

from storage import manifest, registry
from storage.decision import METRICS, Decision, Difference, metric_title
from storage.kinds import CHECKPOINT, EVALUATION, CheckpointURI, EvaluationURI
from storage.manifest import JSON
from storage.statistics import ModelSpec
from storage.terminal import first
from tasks.learning import user_code
from tasks.learning.recipes import Gate
from tasks.promotion import answers, seen_rows
from tasks.promotion.answers import Answers
from tasks.promotion.seen_rows import SeenRows

_UNSCORED = "cannot be scored on the same rows"
_MORE_ROWS = "add test images that no model was trained on, or choose another registered model with --register-as NAME"
_MAX_P_VALUE = 0.05
"""Largest p-value if a recipe sets none and the challenger has no more or changed rows to learn from."""
_MAX_CHANCE = 0.05
"""Largest probability with which the predictions of a first champion, dealt to the test rows at random, are as good."""


def settings_of(gate: Gate, *, judge_only: bool) -> JSON:
    """Return the settings of `gate` that decide anything, as a decision records them."""
    settings = dataclasses.asdict(gate) | ({"judge_only": True} if judge_only else {})
    if gate.tolerance or gate.max_p_value == 0:
        del settings["max_p_value"]
    return settings


def resolved(gate: Gate, checkpoint: CheckpointURI) -> Gate:
    """Return `gate` with the metric that `auto` means: balanced accuracy for a model trained with class weights."""
    if gate.metric != "auto":
        return gate
    is_balanced = manifest.load(checkpoint).statistics_of(CHECKPOINT).resolved.class_weights == "balanced"
    return dataclasses.replace(gate, metric="balanced_accuracy" if is_balanced else "accuracy")


def rival_of(checkpoint: CheckpointURI, decisions: Sequence[Decision]) -> CheckpointURI | None:
    """Return the champion that `checkpoint` is compared with; none without one, or if it is the champion itself."""
    champion = decisions[-1].champion if decisions else None
    return None if champion == checkpoint else champion


def find_valid_decision(
    checkpoint: CheckpointURI,
    evaluation: EvaluationURI,
    decisions: Sequence[Decision],
    gate: Gate,
    *,
    judge_only: bool = False,
) -> Decision | None:
    """Return the decision already made on `checkpoint` by the same gate, if it is still valid.

    A decision of a promoting run is also valid for a `judge_only` run. It is invalid if the champion has changed since,
    or if it could not be scored then.
    """
    settings = [_changed(settings_of(gate, judge_only=value)) for value in {False, judge_only}]
    for decision in reversed(decisions):
        is_same = (decision.challenger, decision.evaluation) == (checkpoint, evaluation)
        if is_same and _changed(decision.gate) in settings:
            holds = decision.champion == decisions[-1].champion and _UNSCORED not in decision.reason
            return decision if holds else None
    return None


def _changed(settings: JSON) -> JSON:
    """Return the settings without defaults, so that a setting that is added later changes no earlier decision."""
    usual = dataclasses.asdict(Gate())
    return {name: value for name, value in settings.items() if name not in usual or value != usual[name]}


def judge(
    checkpoint: CheckpointURI,
    evaluation: EvaluationURI,
    decisions: Sequence[Decision],
    rival: EvaluationURI | str | None,
    gate: Gate,
    *,
    judge_only: bool = False,
) -> Decision:
    """Judge a challenger: it must reach the minimum, and be at most the tolerance below the champion on the same rows.

    It must beat always predicting the largest class of the test rows, the first champion also chance. It must know all
    classes of the champion, and with `max_p_value` be significantly better. Test rows count for no model if one of them
    has seen the image in training. A model that was rolled back can only be promoted by hand.

    `decisions` are all those of the registered model, oldest first. `rival` is the champion's evaluation on the
    challenger's test rows, or why there is none; none without a champion. With `judge_only` the champion stays, as in a
    backfill.
    """
    champion, weights = decisions[-1].champion if decisions else None, registry.weights_of(checkpoint)
    evaluations = {"challenger": evaluation} | ({"champion": rival} if isinstance(rival, EvaluationURI) else {})
    models = {"this model": checkpoint} | ({"the champion": champion} if champion not in (None, checkpoint) else {})
    compared = _compare(evaluations, models, metric=gate.metric)
    pairs = itertools.pairwise(decisions)
    rivals = {past.challenger for before, past in pairs if past.difference and before.champion == champion}
    num_before = len(rivals - {checkpoint})
    is_good_enough, floor = _floor(compared, gate, is_first=champion is None)
    if not is_good_enough:
        promoted, reason = False, floor
    elif registry.withdrawn(decisions) & {checkpoint, weights}:
        promoted, reason = False, f"this model was rolled back; promote it with: {_by_hand(checkpoint)}"
    elif champion is None:
        promoted, reason = True, f"{floor}; there was no champion"
    elif champion == checkpoint:
        promoted, reason = False, f"it is already the champion, with {compared.shown()}"
    else:
        promoted, reason = _beside_champion(checkpoint, champion, compared, rival, gate, num_before=num_before)
    reason += compared.seen.note + _disagreement(compared)
    if promoted and (model := _model(checkpoint)) and user_code.is_reference(model.model):
        code = model.model.partition(":")[0]
        reason += f"; from now on runs and predictions need the unchanged {code} in {user_code.FILES}"
    if promoted and judge_only:
        promoted = False
        reason += f"; it was only judged; promote it with: {_by_hand(checkpoint)}"
    return Decision(
        number=decisions[-1].number + 1 if decisions else 1,
        champion=checkpoint if promoted else champion,
        weights=weights if promoted else None,
        challenger=checkpoint,
        evaluation=evaluation,
        promoted=promoted,
        reason=reason,
        gate=settings_of(gate, judge_only=judge_only),
        metrics=compared.metrics,
        scores=compared.scores,
        difference=compared.difference,
        known_difference=compared.known_difference,
        num_excluded=len(compared.seen.ids),
        num_compared_before=num_before,
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Compared:
    """The challenger and, if it can be scored, the champion on the same test rows, by role."""

    metric: str
    """The gate's metric."""
    metrics: dict[str, dict[str, float]]
    """Metrics on all test rows."""
    seen: SeenRows
    """Rows that do not count."""
    scores: dict[str, dict[str, float]]
    """The metrics that a gate may use, on the rows that count."""
    rows: Answers
    """The challenger's predictions on the rows that count."""
    difference: Difference | None = None
    """Between the challenger and the champion on the rows that count; none if too few count."""
    known_difference: Difference | None = None
    """The same on the rows with a label that the champion's own data had; none if these are all rows or none."""

    def score(self, role: str = "challenger") -> float:
        """Return the gate's metric of a model."""
        return self.scores[role][METRICS[self.metric]]

    def shown(self) -> str:
        return f"{metric_title(METRICS[self.metric])} {self.score():.4f}"


def _compare(
    evaluations: Mapping[str, EvaluationURI], models: Mapping[str, CheckpointURI], *, metric: str
) -> _Compared:
    metrics = {role: manifest.load(uri).statistics_of(EVALUATION).metrics() for role, uri in evaluations.items()}
    all_rows = {role: answers.read(uri) for role, uri in evaluations.items()}
    seen = seen_rows.find(all_rows["challenger"], models)
    rows_of = {role: rows.without(seen.ids) for role, rows in all_rows.items()}
    rows, difference, known_difference = rows_of["challenger"], None, None
    if seen.lost_classes:
        scores = {role: {name: values[name] for name in METRICS.values()} for role, values in metrics.items()}
    else:
        scores = {role: each.scores for role, each in rows_of.items()}
    if (champion := rows_of.get("champion")) and not seen.lost_classes:
        difference = rows.compare_with(champion, metric=metric)
        new = seen_rows.find_new_labels(all_rows["challenger"], models["the champion"])
        if 0 < len((known := rows.without(new)).ids) < len(rows.ids):
            known_difference = known.compare_with(champion.without(new), metric=metric)
    return _Compared(
        metric=metric,
        metrics=metrics,
        seen=seen,
        scores=scores,
        rows=rows,
        difference=difference,
        known_difference=known_difference,
    )


def _by_hand(checkpoint: CheckpointURI) -> str:
    return f"data-to-model promote {shlex.quote(checkpoint)}"


def _floor(compared: _Compared, gate: Gate, *, is_first: bool) -> tuple[bool, str]:
    """Return whether the challenger is good enough regardless of the champion, and why."""
    score, shown, minimum = compared.score(), compared.shown(), gate.minimum
    if lost := compared.seen.lost_classes:
        return False, f"no test row of class {first(lost)} counts; {_MORE_ROWS}"
    if score < minimum:
        return False, f"{shown} is below the minimum {minimum:.4f}"
    reached = f"{shown} reaches the minimum {minimum:.4f}"
    name, always = compared.rows.largest_class()
    other = always[METRICS[compared.metric]]
    largest = f"{other:.4f}, the score of always predicting {name!r}, the largest class of the test rows"
    if score <= other:
        return False, f"{shown} is not above {largest}"
    if is_first and (chance := compared.rows.chance(compared.metric)) > _MAX_CHANCE:
        required = f"(p = {chance:.2g}, required: at most {_MAX_CHANCE:g})"
        return False, f"{shown} is above {largest}, but may be chance {required}; add test images"
    return True, reached if minimum else f"{shown} is above {largest}"


def _model(checkpoint: CheckpointURI) -> ModelSpec | None:
    """Return the description of a checkpoint's model; none if it does not exist."""
    recorded = manifest.find(checkpoint)
    return recorded.statistics_of(CHECKPOINT).model if recorded else None


def _disagreement(compared: _Compared) -> str:
    """Return a hint if new test rows, or old ones with new labels, turn the comparison round; else an empty text."""
    difference, known = compared.difference, compared.known_difference
    if not difference or not known or difference.difference * known.difference >= 0:
        return ""
    direction = "better" if known.difference > 0 else "worse"
    rows = f"{known.num_rows:,} test rows whose label the champion's data had"
    return f"; on the {rows} it is {direction} ({known.difference:+.4f}): check the labels of the other test images"


def _rule(gate: Gate, checkpoint: CheckpointURI, champion: CheckpointURI) -> tuple[float, str]:
    """Return the largest p-value of a better challenger, 0 if it need not be better, and why, unless it is set.

    docs/promotion.md has the measurements behind it.
    """
    if gate.tolerance or gate.max_p_value is not None:
        return 0.0 if gate.tolerance else gate.max_p_value or 0.0, ""
    uris = (checkpoint, champion)
    try:
        models = [manifest.load(uri) for uri in uris]
        data = [manifest.load(model.parent("prepared", of=uri)) for model, uri in zip(models, uris, strict=True)]
    except (FileNotFoundError, manifest.Damaged):
        return _MAX_P_VALUE, ", as the champion or its data no longer exists"
    # How many workers and cores compute a model is no part of its recipe.
    recipes = [(dict(model.parameters, workers=0, cores=0), model.statistics_of(CHECKPOINT).split) for model in models]
    now, before = (of.num_rows("train", "validation") for of in data)
    is_retrained = recipes[0] == recipes[1] and data[0].content != data[1].content
    if now > before or (now == before and is_retrained):
        return 0.0, " (enough on more or changed data)"
    return _MAX_P_VALUE, f", as it learned from {now:,} rows, the champion from {before:,}"


def is_enough(difference: float, p_value: float, *, max_p_value: float, tolerance: float, num_before: int) -> bool:
    """Return whether a model with this difference from the champion may replace it.

    With a `max_p_value`, it must be better with at most this p-value, divided by the number of models compared with the
    champion: each has another chance to seem better. Without, it may be worse by at most `tolerance`.
    """
    if max_p_value:
        return difference > 0 and p_value <= max_p_value / (1 + num_before)
    return difference >= -tolerance


def _beside_champion(
    checkpoint: CheckpointURI,
    champion: CheckpointURI,
    compared: _Compared,
    rival: EvaluationURI | str | None,
    gate: Gate,
    *,
    num_before: int,
) -> tuple[bool, str]:
    """Return whether the challenger is good enough compared with the champion, and why."""
    own, before = _model(checkpoint), _model(champion)
    gone = [name for name in before.classes if not own or name not in own.classes] if before else []
    if gone and not gate.classes_may_go:
        advice = "restore their images, or allow it with --set classes_may_go=true"
        return False, f"classes of the champion are gone: {first(gone)}; {advice}"
    difference, (max_p_value, why) = compared.difference, _rule(gate, checkpoint, champion)
    if difference is None:
        return False, f"the champion {_UNSCORED}: {rival}; run again, or promote it with: {_by_hand(checkpoint)}"
    score, shown, other = compared.score(), compared.shown(), compared.score("champion")
    against = f"the champion's {other:.4f} on the same rows"
    limits = {"max_p_value": max_p_value, "tolerance": gate.tolerance}
    promoted = is_enough(difference.difference, difference.p_value, **limits, num_before=num_before)
    if max_p_value:
        if difference.difference <= 0:
            return False, f"{shown} is not above {against} (required{why})"
        allowed = max_p_value / (1 + num_before)
        required = f"p = {difference.p_value:.2g}, required: at most {allowed:.2g}"
        if num_before:
            required += f" = {max_p_value:g} / {1 + num_before}, the models compared with this champion so far"
        return promoted, f"{shown} is above {against}{'' if promoted else ', but not significantly'} ({required}{why})"
    if score >= other:
        return True, f"{shown} is at least {against}{why}"
    tolerance = f"{'within the' if promoted else 'allowed'} tolerance {gate.tolerance:.4f}"
    return promoted, f"{shown} is below {against} ({tolerance})"
