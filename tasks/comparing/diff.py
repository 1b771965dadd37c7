"""What is different in two results or runs: data, recipe, code, versions, hardware, metrics and test rows."""

from collections.abc import Iterator, Mapping

import pandas as pd

from storage import kinds, manifest, reference
from storage.decision import METRICS
from storage.kinds import DatasetURI, PredictionsURI
from storage.manifest import JSON, Damaged, Manifest
from storage.terminal import count
from tasks.comparing import data
from tasks.comparing.results import Results
from tasks.images import row_tables
from tasks.learning import recipes
from tasks.promotion import answers, seen_rows
from tasks.promotion.answers import Answers, names_of
from tasks.stages import Predict

_MADE_BY = (kinds.CHECKPOINT, kinds.PREPARED, kinds.RAW, kinds.FILES)
"""Results that say with which code they were made; the first that both have counts."""
_DATA = ("listing", "sha256")
"""Parameters that stand for the files of the data, which are compared one by one."""
_SHOWN = 3
"""Most classes in a line."""


def diff(a: Results, b: Results) -> JSON:
    """Return everything that is different in `b` from `a` as JSON values, and in `changes` a line for each cause.

    What cannot be compared, such as deleted data, is none, and `notes` says why.
    """
    document: JSON = {"a": _described(a), "b": _described(b), "changes": []}
    document |= {"data": None, **_settings(a, b), "test_rows": None, "notes": {}}
    first, second = map(_content, (a, b))
    is_same = first is not None and first == second
    compared = {"data": lambda: data.NONE if is_same else data.compare(a, b)}
    if all(side.manifest(kinds.CHECKPOINT) for side in (a, b)):
        compared["test_rows"] = lambda: _compare_test_rows(a, b, is_same_data=is_same)
    for name, compare in compared.items():
        try:
            document[name] = compare()
        except (FileNotFoundError, Damaged, ValueError) as error:
            document["notes"][name] = str(error)
    document["changes"] = list(_lines(document))
    return document


def _described(side: Results) -> JSON:
    trained, evaluated = side.manifest(kinds.CHECKPOINT), side.manifest(kinds.EVALUATION)
    newest = trained or next(recorded for _, recorded in side.manifests.values())
    return {
        "uri": side.uri,
        "results": {kind: uri for kind, (uri, _) in side.manifests.items()},
        "created": newest.created.isoformat(timespec="seconds"),
        "evaluation": evaluated.statistics.model_dump(mode="json") if evaluated else None,
    }


def _content(side: Results) -> str | None:
    """Return the digest of the content of the data; known to the prepared dataset even if the raw one was deleted."""
    if recorded := side.manifest(kinds.RAW) or side.manifest(kinds.FILES):
        return recorded.content
    prepared = side.manifest(kinds.PREPARED)
    return prepared.parents["raw"].content if prepared and "raw" in prepared.parents else None


def _settings(a: Results, b: Results) -> dict[str, dict[str, JSON]]:
    """Return the fields of recipe, code, versions and hardware that differ, each with both values."""
    both = [kind for kind in _MADE_BY if a.manifest(kind) and b.manifest(kind)]
    sides = [{kind.name: recorded for kind in both if (recorded := side.manifest(kind))} for side in (a, b)]
    first, second = (dict(_groups(side)) for side in sides)
    return {
        group: {
            name: {"a": first[group].get(name), "b": second[group].get(name)}
            for name in dict.fromkeys([*first[group], *second[group]])
            if first[group].get(name) != second[group].get(name)
        }
        for group in first
    }


def _groups(manifests: Mapping[str, Manifest]) -> Iterator[tuple[str, JSON]]:
    """Yield the settings of a run by group; `manifests` are of its results, from the checkpoint back to the data."""
    trained, newest = manifests.get(kinds.CHECKPOINT.name), next(iter(manifests.values()), None)
    fields: JSON = {}
    for recorded in reversed(list(manifests.values())):
        fields |= {name: value for name, value in recipes.flat(recorded.parameters).items() if name not in _DATA}
    if trained:
        fields |= recipes.flat(trained.statistics_of(kinds.CHECKPOINT).recipe)
        fields |= {role: parent.uri for role, parent in trained.parents.items() if role in ("initial", "weights")}
    yield "recipe", fields
    versions = dict(newest.producer) if newest else {}
    commit, _, dirty = (versions.pop("git", None) or "").partition(" dirty ")
    yield "code", {"commit": commit or None, "dirty": bool(dirty), "digest": versions.pop("code", None)}
    yield "versions", versions
    training = trained.statistics_of(kinds.CHECKPOINT) if trained else None
    yield "hardware", {"training": "; ".join(training.hardware), **vars(training.resolved)} if training else {}


def _lines(document: JSON) -> Iterator[str]:
    """Yield a line for each cause: a sort of change in the data, a field of recipe, code, versions or hardware."""
    changes = document["data"] or data.NONE
    for sort, number in changes["counts"].items():
        if number:
            classes = changes["by_class"][sort]
            named = ", ".join(f"{name or 'no class'} {its:,}" for name, its in list(classes.items())[:_SHOWN])
            named += ", ..." if len(classes) > _SHOWN else ""
            yield f"data: {count(number, changes['unit'])} {sort}: {named}"
    for group in ("recipe", "code", "versions", "hardware"):
        for name, values in document[group].items():
            yield f"{group}: {name} {_shown(values['a'])} -> {_shown(values['b'])}"


def _shown(value: object) -> str:
    return "unset" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def _compare_test_rows(a: Results, b: Results, *, is_same_data: bool) -> JSON:
    """Return the metrics of both on the test rows that they share, and each row that only one of them gets right.

    The rows are those of one dataset, if both models predicted it, else those with equal pixels. Rows that one of the
    models was trained on do not count. Labels are those of `b`. Raises `ValueError` with the reason if there are no
    such rows.
    """
    sides = _predictions(a, b)
    ours, theirs = (answers.read_rows(*side) for side in sides)
    datasets = [DatasetURI(predicted.parent("dataset", of=uri)) for uri, predicted in sides]
    if datasets[0] == datasets[1] or is_same_data:
        pairs = pd.DataFrame({"id_a": ours["id"], "id_b": ours["id"]})
    else:
        first, second = (row_tables.read_digests(dataset).to_pandas().query("split == 'test'") for dataset in datasets)
        place_a, place_b = data.match(first, second, ["digest"])
        pairs = pd.DataFrame({"id_a": first["id"][place_a].array, "id_b": second["id"][place_b].array})
    both = pairs.merge(ours.add_suffix("_a"), on="id_a").merge(theirs.add_suffix("_b"), on="id_b")
    models = {"the first": a.require(kinds.CHECKPOINT)[0], "the second": b.require(kinds.CHECKPOINT)[0]}
    seen = seen_rows.find(Answers.of(theirs, datasets[1], answers.label_names(datasets[1])), models)
    both = both[~both["id_b"].isin(seen.ids)]
    if both.empty:
        raise ValueError(f"they share no test rows, by content{seen.note}")
    is_right = {name: both[f"prediction_{name}"] == both["label_b"] for name in "ab"}
    better, worse = (both[is_right[right] & ~is_right[wrong]] for right, wrong in ("ba", "ab"))
    return {
        "rows": len(both),
        "note": seen.note.removeprefix("; "),
        "only_a": len(ours) - both["id_a"].nunique(),
        "only_b": len(theirs) - len(both),
        "metrics": _metrics(both, datasets[1]),
        "better": _rows(better, by="probability_a"),
        "worse": _rows(worse, by="probability_b"),
    }


def _predictions(a: Results, b: Results) -> list[tuple[PredictionsURI, Manifest]]:
    """Return predictions of both, if possible on the test rows of one dataset."""
    sides = [side.require(kinds.PREDICTIONS) for side in (a, b)]
    datasets = [DatasetURI(predicted.parent("dataset", of=uri)) for uri, predicted in sides]
    for number, side in ((0, a), (1, b)):  # promotion lets the champion predict the challenger's rows
        if datasets[0] != datasets[1]:
            checkpoint, _ = side.require(kinds.CHECKPOINT)
            root, dataset = reference.root_of(checkpoint), datasets[1 - number]
            uri = Predict.of(checkpoint, dataset, split="test", root=root).target
            if recorded := manifest.find(uri):
                sides[number] = uri, recorded
                break
    return sides


def _metrics(both: pd.DataFrame, dataset: DatasetURI) -> dict[str, dict[str, float]]:
    """Return each metric of both models, the 95% interval of the difference, and its p-value."""
    classes = sorted(set(both["label_b"]))
    columns = ({"id_b": "id", "label_b": "label", f"prediction_{name}": "prediction"} for name in "ab")
    a, b = (Answers.of(both[list(names)].rename(columns=names), dataset, classes) for names in columns)
    return {
        name: {"a": a.scores[name], "b": b.scores[name]}
        | b.compare_with(a, metric=metric).model_dump(include={"difference", "lower", "upper", "p_value"})
        for metric, name in METRICS.items()
    }


def _rows(rows: pd.DataFrame, *, by: str) -> list[JSON]:
    """Describe rows, those on which a model was wrong with the highest probability first."""
    rows = rows.sort_values([by, "id_b"], ascending=[False, True])
    names = names_of(rows.filter(like="_b").rename(columns=lambda name: name.removesuffix("_b")))
    columns = ["label_b", "prediction_a", "probability_a", "prediction_b", "probability_b"]
    described = rows[columns].rename(columns={"label_b": "label"}).assign(file=names)
    return [{str(name): value for name, value in row.items()} for row in described.to_dict("records")]
