"""Rows of an audit: the suspects by file, their images, and the page of them."""

import math
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
from scipy.special import softmax

from storage import tables
from storage.kinds import AuditURI
from storage.manifest import JSON
from tasks import report_page
from tasks.auditing import confident_learning
from tasks.images import row_tables
from tasks.images.embedding_rows import EmbeddedRows
from tasks.learning import probe
from tasks.report_page import pictures
from tasks.resources import scaling

SCHEMA = pa.schema(
    {
        "split": pa.string(),
        "id": pa.int64(),
        "file": pa.string(),
        "row": pa.int64(),
        "given": pa.string(),
        "likely": pa.string(),
        "sure": pa.bool_(),
        "probability": pa.float32(),
        "probability_given": pa.float32(),
        "probability_wrong": pa.float32(),
    }
)
"""Suspects, worst first: `split` and `id` are those of the raw dataset, `row` is that in a Parquet file; of
these, as many are `sure` as there are wrong labels."""
_LEAST, _LEAST_ROWS = 0.05, 20
"""Share of all rows, and number of rows, that are listed at least: where a model cannot tell wrong labels from its own
mistakes, its ranking still has most of them early (docs/image-problems.md)."""
MOST_SHOWN = 200
"""Most suspects on the page; the table has all."""
_FITTED = 2**21
"""Most probabilities that the label noise is fitted to."""


def out_of_fold(rows: EmbeddedRows) -> tuple[np.ndarray, np.ndarray]:
    """Return the probabilities (float64, (N, classes)) of each row by a probe that has seen neither it nor a copy.

    And whether the probe has seen rows of its class, bool (N,).
    """
    fitted = probe.fit(rows.vectors, rows.labels, groups=rows.groups(), threads=scaling.cores_here())
    return np.asarray(softmax(fitted.out_of_fold, axis=1)), fitted.is_judged


def find_suspects(rows: EmbeddedRows) -> pa.Table:
    """Return the rows with the least probable labels, worst first.

    They are as many as there are wrong labels, or more: at least 5 % of all, and 20. The only row of a class comes
    last: no other says what the class looks like.
    """
    classes, given, everyone = np.array(rows.classes, dtype=object), rows.labels, np.arange(len(rows.labels))
    probabilities, is_judged = out_of_fold(rows)
    some = np.flatnonzero(is_judged)[:: math.ceil(probabilities.size / _FITTED)]
    noise = confident_learning.fit(given[some], probabilities[some])
    num_wrong = round(noise.rate * is_judged.sum())
    probabilities = noise.tempered(probabilities)
    of_label = probabilities[everyone, given]
    probabilities[everyone, given] = -1
    likely = probabilities.argmax(1)
    judged = pd.DataFrame(
        {
            "split": rows.splits,
            "id": rows.ids,
            "given": classes[given],
            "likely": classes[likely],
            "probability": probabilities[everyone, likely],
            "probability_given": of_label,
            "probability_wrong": noise.wrong(of_label, num_classes=len(classes)),
            "is_alone": ~is_judged,
        }
    )
    num_listed = max(num_wrong, math.ceil(_LEAST * len(given)), _LEAST_ROWS)
    suspects = judged.sort_values(["is_alone", "probability_given", "split", "id"], ignore_index=True).head(num_listed)
    is_sure = (suspects.index < num_wrong) & (suspects["probability"] > suspects["probability_given"])
    suspects = row_tables.with_files(suspects.assign(sure=is_sure), rows.dataset)
    return pa.Table.from_pandas(suspects, schema=SCHEMA, preserve_index=False).replace_schema_metadata(None)


def render(suspects: pa.Table, rows: EmbeddedRows) -> str:
    """Render the page; the same suspects give the same bytes."""
    shown = suspects.slice(0, MOST_SHOWN)
    places = list(zip(shown["split"].to_pylist(), shown["id"].to_pylist(), strict=True))
    image_of = pictures.of_raw_rows(rows.raw, places)
    template = report_page.environment(Path(__file__).parent).get_template("audit.html.j2")
    return template.render(
        suspects=[row | {"image": image_of[key]} for key, row in zip(places, shown.to_pylist(), strict=True)],
        total=len(suspects),
        sure=sum(suspects["sure"].to_pylist()),
        rows=len(rows.labels),
    )


def read(audit: AuditURI) -> list[JSON]:
    suspects: list[JSON] = tables.read_split(audit, "suspects").to_pylist()
    return suspects
