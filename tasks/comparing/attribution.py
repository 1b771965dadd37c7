"""Attribution: how much of the difference of two models is explained by the data, and how much by the recipe.

Four arms are trained, each combination of the data and the recipe of both, with several seeds. They are ordinary
results of ordinary plans: what is in storage is not trained again.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import pandas as pd

from storage import kinds, manifest
from storage.decision import METRICS
from storage.uri import Root
from tasks.comparing import data_rows, row_changes
from tasks.comparing.diff import diff, is_same_data
from tasks.comparing.results import Results
from tasks.learning import images, metrics, recipes, user_code
from tasks.learning.recipes import Recipe
from tasks.planning import model_check
from tasks.planning.make_plan import make_plan
from tasks.planning.plan import Plan
from tasks.promotion import correct_rows, seen_rows
from tasks.promotion.correct_rows import Answers
from tasks.resources.scaling import Workers

_T: Final = (0.0, 0.0, 2.776, 2.306, 2.179, 2.120, 2.086, 2.064, 2.048, 2.037, 2.028)
"""Quantiles of Student's t, two-sided 95 %, by the number of seeds: four arms of n seeds have 4 (n - 1) degrees."""

Arm = tuple[str, str]
"""Whose data and whose recipe an arm has, each `a` or `b`."""
ARMS: Final[tuple[Arm, ...]] = (("a", "a"), ("a", "b"), ("b", "a"), ("b", "b"))
_OWN: Final[dict[str, Arm]] = {"A": ("a", "a"), "B": ("b", "b")}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Request:
    """A checked request for an attribution; the same request gives the same URIs."""

    root: Root
    a: Results
    b: Results
    only: str | None = None
    """What changed, if not both data and recipe; then there are no arms."""
    arms: Mapping[Arm, Sequence[Plan]] = dataclasses.field(default_factory=dict)
    """A plan for each seed."""
    missing: Sequence[Plan] = ()
    """Plans that are not carried out yet."""
    pairs: pd.DataFrame = dataclasses.field(default_factory=pd.DataFrame)
    """`id_a` and `id_b` of the test rows of both."""
    workers: Workers = None

    @property
    def plans(self) -> list[Plan]:
        """All plans."""
        return [plan for plans in self.arms.values() for plan in plans]

    @property
    def needs_ray(self) -> bool:
        """Whether a stage that runs on Ray is missing."""
        return any(plan.needs_ray for plan in self.missing)


def resolve(root: Root, a: Results, b: Results, *, seeds: int) -> Request:
    """Plan the arms; raise `ValueError` naming A or B, and the next step, if they cannot be trained or compared."""
    sides = {"a": a, "b": b}
    trained = {name: side.require(kinds.CHECKPOINT)[1] for name, side in sides.items()}
    if is_same_data(a, b):
        is_same = _recipe_values(trained["a"]) == _recipe_values(trained["b"])
        return Request(root=root, a=a, b=b, only="neither data nor recipe" if is_same else "only the recipe")
    try:
        raws = {name: side.require(kinds.RAW)[0] for name, side in sides.items()}
    except ValueError as error:
        raise ValueError(f"--explain: {error}") from None
    chosen = {name: _recipe(name, side) for name, side in sides.items()}
    workers = {name: recorded.parameters["workers"] for name, recorded in trained.items()}
    if workers["a"] != workers["b"]:
        raise ValueError(
            f"--explain: A was trained with workers {workers['a']} and B with {workers['b']}; run the command of one "
            "of them again with the --workers of the other, and compare that run"
        )
    classes = {images.classes_of(manifest.load(raw).columns["metadata"]) for raw in raws.values()}
    if len(classes) > 1:
        raise ValueError(
            "--explain: A and B have different classes; compare runs with the same ones, or omit --explain"
        )
    num_workers = None if workers["a"] == "auto" else int(workers["a"])

    def plan(arm: Arm, seed: int) -> Plan:
        data, recipe = (chosen[name] for name in arm)
        training = dataclasses.replace(recipe.training, seed=recipe.training.seed + seed)
        try:
            combined = dataclasses.replace(recipe, data=data.data, training=training)
            planned = make_plan(
                storage=root, recipe=combined, workers=num_workers, data=raws[arm[0]], registered_model="explain"
            )
            model_check.check_training(planned)
        except ValueError as error:
            names = "the data of {} with the recipe of {}".format(*map(str.upper, arm))
            raise ValueError(f"--explain: {names} cannot be trained: {error}") from None
        return planned

    first = {arm: plan(arm, 0) for arm in ARMS}
    for name, side in sides.items():
        if first[name, name].checkpoint != (checkpoint := side.require(kinds.CHECKPOINT)[0]):
            raise ValueError(
                f"--explain: {name.upper()}, {checkpoint}, cannot be trained again from what it recorded: it was made "
                "by an audit, with --refresh, or with another --cores (PIPELINE_CORES) or code than now; name a run "
                "without these, or set them as then"
            )
    if first["a", "b"].checkpoint == first["a", "a"].checkpoint:
        return Request(root=root, a=a, b=b, only="only the data")
    try:
        pairs = row_changes.same_test_rows(data_rows.load(a, b))
    except ValueError as error:
        raise ValueError(f"--explain: {error}; omit it") from None
    if pairs.empty:
        raise ValueError(
            "--explain: A and B share no test rows, by content; give both the same test images, or omit it"
        )
    arms = {arm: (first[arm], *(plan(arm, seed) for seed in range(1, seeds))) for arm in ARMS}
    plans = [plan for plans in zip(*arms.values(), strict=True) for plan in plans]
    missing = [plan for plan in plans if not _is_measured(plan)]
    return Request(root=root, a=a, b=b, arms=arms, missing=missing, pairs=pairs, workers=num_workers)


def _is_measured(plan: Plan) -> bool:
    return all(map(manifest.is_committed, (plan.prepared, plan.predictions, plan.evaluation)))


def _recipe_values(trained: manifest.Manifest) -> dict[str, Any]:
    """Return what decides the weights besides the data."""
    recipe = trained.statistics["recipe"]
    values = {**trained.parameters, **recipe["split"], "start": recipe["training"]["start"]}
    return values | {"initial": trained.parents.get("initial")}


def _recipe(name: str, side: Results) -> Recipe:
    checkpoint, trained = side.require(kinds.CHECKPOINT)
    option = f"--explain: {name.upper()}, {checkpoint}"
    if "initial" in trained.parents:
        raise ValueError(f"{option}, began with a champion, which is neither data nor recipe; name a run without start")
    try:
        user_code.check_listed()
        return recipes.from_dict(trained.statistics["recipe"])
    except ValueError as error:
        raise ValueError(f"{option}: its recipe cannot be used: {error}") from None


def explain(request: Request) -> dict[str, Any]:
    """Return what `diff` does, and in `explained` what explains the difference."""
    return diff(request.a, request.b) | {"explained": _explained(request)}


def _explained(request: Request) -> dict[str, Any]:
    """Return the metrics of the arms, and the difference in accuracy that data and recipe explain, as JSON values.

    All arms are measured on the same rows: those that are test rows in the data of both, by digest, and that no arm was
    trained on. Labels are those of B. Raises `ValueError` if there are no such rows.
    """
    if request.only:
        return {"only": request.only, "seeds": 0, "rows": 0, "note": "", "arms": [], "differences": {}}
    pairs = request.pairs
    answers = {arm: [_answers(plan) for plan in plans] for arm, plans in request.arms.items()}
    older, newer = answers["a", "a"][0], answers["b", "b"][0]
    seen = seen_rows.find(newer, {name: request.arms[arm][0].checkpoint for name, arm in _OWN.items()})
    usable = pairs["id_a"].isin(older.ids) & pairs["id_b"].isin(newer.ids) & ~pairs["id_b"].isin(seen.ids)
    if not usable.any():
        raise ValueError(f"--explain: A and B share no usable test rows{seen.note}; omit it")
    pairs = pairs[usable]
    labels = pd.Series(newer.labels, newer.ids)[pairs["id_b"]].to_numpy()

    def scores(rows: Answers, data: str) -> dict[str, float]:
        predictions = pd.Series(rows.predictions, rows.ids)[pairs[f"id_{data}"]].to_numpy()
        return metrics.scores(labels, predictions, num_classes=len(newer.classes))

    by_seed = {arm: [scores(rows, arm[0]) for rows in its] for arm, its in answers.items()}
    arms = [
        {"data": arm[0], "recipe": arm[1], "checkpoints": [plan.checkpoint for plan in request.arms[arm]]}
        | {name: [values[name] for values in its] for name in METRICS.values()}
        for arm, its in by_seed.items()
    ]
    accuracies = {arm: np.array([values[METRICS["accuracy"]] for values in its]) for arm, its in by_seed.items()}
    return {
        "only": None,
        "seeds": len(request.arms["a", "a"]),
        "rows": len(pairs),
        "note": seen.note.removeprefix("; "),
        "arms": arms,
        "differences": differences(accuracies),
    }


def _answers(plan: Plan) -> Answers:
    rows = correct_rows.read(plan.evaluation)
    assert rows, "its predictions are committed"
    return rows


def differences(scores: dict[Arm, np.ndarray]) -> dict[str, dict[str, Any]]:
    """Split the difference of the arms of A and B between data and recipe, from each arm's `scores`, one a seed.

    What the data explains is the mean of both orders: of changing it before the recipe, and after it. So both parts add
    up to the whole (Shapley values of two players). The 95 % intervals are Student's, with one variance for all arms.
    """
    mean = {arm: float(values.mean()) for arm, values in scores.items()}
    seeds = len(scores["a", "a"])
    error = float(np.sqrt(np.mean([values.var(ddof=1) for values in scores.values()]) / seeds))
    parts = {
        "data": (mean["b", "a"] - mean["a", "a"] + mean["b", "b"] - mean["a", "b"]) / 2,
        "recipe": (mean["a", "b"] - mean["a", "a"] + mean["b", "b"] - mean["b", "a"]) / 2,
        "both": mean["b", "b"] - mean["a", "a"],
    }
    half = {"data": _T[seeds] * error, "recipe": _T[seeds] * error, "both": _T[seeds] * error * 2**0.5}
    return {
        name: {
            "difference": part,
            "lower": part - half[name],
            "upper": part + half[name],
            "is_told_apart": abs(part) > half[name],
        }
        for name, part in parts.items()
    }
