"""Two models on the test rows that both predicted: their metrics, and the rows that got better and worse."""

from typing import Any

import pandas as pd

from storage import kinds, manifest, reference
from storage.decision import METRICS
from storage.manifest import Damaged, Manifest
from storage.uri import DatasetURI, PredictionsURI
from tasks.comparing import data_changes, test_rows
from tasks.comparing.data_rows import DataRows
from tasks.comparing.results import Results
from tasks.planning.result_uris import evaluation_of, predictions_of
from tasks.promotion import correct_rows, seen_rows
from tasks.promotion.correct_rows import Answers

_Predictions = tuple[PredictionsURI, Manifest]


def compare(a: Results, b: Results, data: DataRows | None, *, is_same_data: bool) -> dict[str, Any]:
    """Return the metrics of both on the test rows that they share, and each row that only one of them gets right.

    The rows are those of one dataset, if both models predicted it, else those with equal digests in `data`, from
    `data_rows.load`. Rows that one of the models was trained on do not count. Labels are those of `b`. Raises
    `ValueError` with the reason if there are no such rows.
    """
    first, second, is_one_dataset = _predictions(a, b)
    ours, theirs = (pd.concat(list(test_rows.read(*side)), ignore_index=True) for side in (first, second))
    if is_one_dataset or is_same_data:
        pairs = pd.DataFrame({"id_a": ours["id"], "id_b": ours["id"]})
    else:
        pairs = _same_test_rows(data)
    both = pairs.merge(ours.add_suffix("_a"), on="id_a").merge(theirs.add_suffix("_b"), on="id_b")
    models = {"the first": a.require(kinds.CHECKPOINT)[0], "the second": b.require(kinds.CHECKPOINT)[0]}
    root = reference.root_of(second[0])
    seen = seen_rows.find(correct_rows.read(evaluation_of(root, second[0])), models)
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
        "metrics": _metrics(both, second[0]),
        "better": _rows(better, by="probability_a"),
        "worse": _rows(worse, by="probability_b"),
    }


def _same_test_rows(data: DataRows | None) -> pd.DataFrame:
    """Return `id_a` and `id_b` of the test rows with equal digests; raise `ValueError` if there is no `data`."""
    if data is None:
        raise ValueError("their test rows cannot be told to be the same images")
    first, second = (rows[rows["split"] == "test"] for rows in data[1:])
    place_a, place_b = data_changes.match(first, second, ["digest"])
    return pd.DataFrame({"id_a": first["id"][place_a].array, "id_b": second["id"][place_b].array})


def _predictions(a: Results, b: Results) -> tuple[_Predictions, _Predictions, bool]:
    """Return predictions of both, if possible on the test rows of one dataset, and whether they are."""
    sides = [side.require(kinds.PREDICTIONS) for side in (a, b)]
    datasets = [DatasetURI(predicted.parent("dataset", of=uri)) for uri, predicted in sides]
    if datasets[0] == datasets[1]:
        return sides[0], sides[1], True
    for number, side in ((0, a), (1, b)):  # promotion lets the champion predict the challenger's rows
        try:
            checkpoint, _ = side.require(kinds.CHECKPOINT)
            root = reference.root_of(checkpoint)
            uri = predictions_of(root, checkpoint, datasets[1 - number], split="test")
            sides[number] = uri, manifest.load(uri)
            return sides[0], sides[1], True
        except (FileNotFoundError, Damaged):
            continue
    return sides[0], sides[1], False


def _metrics(both: pd.DataFrame, predictions: PredictionsURI) -> dict[str, dict[str, float]]:
    """Return each metric of both models, the 95 % interval of the difference, and its p-value."""
    labels, classes = pd.factorize(both["label_b"], sort=True)
    a, b = (
        Answers(
            ids=both["id_b"].to_numpy(),
            labels=labels,
            predictions=pd.Index(classes).get_indexer(both[f"prediction_{name}"]),
            classes=tuple(classes),
            dataset=DatasetURI(manifest.load(predictions).parent("dataset", of=predictions)),
        )
        for name in "ab"
    )
    return {
        name: {"a": a.scores[name], "b": b.scores[name]}
        | b.beside(a, metric=metric).model_dump(include={"difference", "lower", "upper", "p_value"})
        for metric, name in METRICS.items()
    }


def _rows(rows: pd.DataFrame, *, by: str) -> list[dict[str, Any]]:
    """Describe rows, those on which a model was wrong with the highest probability first."""
    rows = rows.sort_values([by, "id_b"], ascending=[False, True])
    names = test_rows.names(rows.filter(like="_b").rename(columns=lambda name: name.removesuffix("_b")))
    columns = ["label_b", "prediction_a", "probability_a", "prediction_b", "probability_b"]
    described = rows[columns].rename(columns={"label_b": "label"}).assign(file=names)
    return [{str(name): value for name, value in row.items()} for row in described.to_dict("records")]
