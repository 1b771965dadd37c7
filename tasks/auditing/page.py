"""Page of an audit: the worst suspects side by side, in one self-contained HTML file."""

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

from tasks import report_page
from tasks.auditing.rows import Fold, images_of

MOST_SHOWN = 200
"""Most suspects on the page; the table has all."""


def render(suspects: pa.Table, folds: Sequence[Fold]) -> str:
    """Render the page; the same suspects give the same bytes."""
    shown = suspects.slice(0, MOST_SHOWN)
    pictures = images_of(folds[0].raw, shown)
    template = report_page.environment(Path(__file__).parent).get_template("audit.html.j2")
    return template.render(
        suspects=[row | {"image": pictures[rank]} for rank, row in enumerate(shown.to_pylist())],
        total=len(suspects),
        sure=sum(suspects["sure"].to_pylist()),
        rows=sum(fold.num_rows for fold in folds),
        trainings=len(folds),
        longest_word=0,
    )
