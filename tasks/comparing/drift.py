"""Drift: whether new images are like the test rows of their model, which has not seen those either."""

import numpy as np
import pandas as pd
from scipy.special import xlogy
from scipy.stats import ks_2samp, random_table

from storage import manifest, tables
from storage.kinds import CheckpointURI, DatasetURI, PredictionsURI
from storage.manifest import JSON
from tasks.images.listing import NEW
from tasks.stages import Predict

FALSE_ALARMS = 0.01
"""Share of batches like the test rows that are reported anyway, at most."""
LEAST_ROWS = 30
"""New images and test rows that are compared, at least."""
_RANDOM_TABLES = 1999
"""Their p-values are multiples of 1 / 2000: fine enough for half of `FALSE_ALARMS`."""


def of_new_images(predictions: PredictionsURI) -> JSON | None:
    """Compare predictions of new images with those of the model's test rows.

    Returns:
        `rows` and `test_rows`, `p_distance` and `p_classes`, `is_drift` (None: too few rows), and a `summary`; None if
        they are no new images, or if there are no distances or no predictions of test rows.
    """
    predicted = manifest.load(predictions)
    checkpoint = CheckpointURI(predicted.parent("checkpoint", of=predictions))
    trained = manifest.find(checkpoint)
    if not trained or "embeddings" not in predicted.parents or not predicted.split(NEW):
        return None
    prepared = DatasetURI(trained.parent("prepared", of=checkpoint))
    own = Predict.of(checkpoint, prepared, split="test").target
    if not manifest.is_committed(own):
        return None
    columns = ["prediction", "distance"]
    new, test = (
        tables.read_split(uri, split, columns=columns).to_pandas().dropna()
        for uri, split in ((predictions, NEW), (own, "test"))
    )
    return compare(new, test)


def compare(new: pd.DataFrame, test: pd.DataFrame) -> JSON:
    """Compare rows by their columns `prediction` and `distance`, as `of_new_images` does."""
    counted = f"{len(new):,} new images, {len(test):,} test rows"
    result: JSON = dict.fromkeys(("p_distance", "p_classes", "is_drift")) | {"rows": len(new), "test_rows": len(test)}
    if min(len(new), len(test)) < LEAST_ROWS:
        return result | {"summary": f"too few to compare: {counted}; at least {LEAST_ROWS} each are needed"}
    p_distance = float(ks_2samp(new["distance"], test["distance"], alternative="less").pvalue)
    p_classes = _p_of_shares(new["prediction"], test["prediction"])
    medians = [f"{rows['distance'].median():.3f}" for rows in (new, test)]
    far = f"farther from the model's images (median distance {medians[0]}, test rows {medians[1]})"
    reasons = {far: p_distance, "other shares of classes": p_classes}
    found = [reason for reason, p_value in reasons.items() if p_value <= FALSE_ALARMS / 2]
    summary = f"yes, {' and '.join(found)}" if found else "none found"
    summary += f": {counted}, p {p_distance:.2g} by distance, {p_classes:.2g} by classes"
    return result | {"p_distance": p_distance, "p_classes": p_classes, "is_drift": bool(found), "summary": summary}


def _p_of_shares(new: pd.Series, test: pd.Series) -> float:
    """Return the p-value of a G-test of two lists of classes: against random tables, since classes may be rare."""
    counts = np.array([(rows == name).sum() for name in sorted({*new, *test}) for rows in (new, test)]).reshape(-1, 2)
    if len(counts) < 2:
        return 1.0
    drawn = random_table(counts.sum(1), counts.sum(0), seed=0).rvs(_RANDOM_TABLES)
    g_drawn, g_found = (xlogy(table, table).sum((-2, -1)) for table in (drawn, counts))
    return float((1 + np.count_nonzero(g_drawn >= g_found * (1 - 1e-12))) / (1 + _RANDOM_TABLES))
