"""Prefect artifacts: the main results of a run, shown on its page in the UI."""

import os
import re
from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import quote

from prefect.artifacts import create_link_artifact, create_markdown_artifact, create_table_artifact

from storage import manifest, reference, tables
from storage.decision import METRICS, metric_title
from storage.manifest import File
from storage.uri import URI, ReportURI, parse_root, redact_text
from tasks.learning import images
from tasks.orchestration.stage import artifact_key, logger
from tasks.planning.make_plan import default_storage
from tasks.report_page import ReportData, moment, number, plots

REPORTS_URL = "PIPELINE_REPORTS_URL"
"""Environment variable with the address at which the folder `reports` of the default storage root is served."""
_IMAGES_A_ROW = 8

_MOST_CLASSES = 100
"""Most classes with which the confusion matrix is published: it grows with their square, in Prefect's database."""


def publish(data: ReportData, target: ReportURI) -> None:
    """Publish a summary, tables (history, per class, confusion) and a link to the report; never fails the run."""
    try:
        _publish(data, target)
    except Exception as error:  # all results are committed, whether the server answers now or not
        logger().warning("the results cannot be shown on the page of the run: %s", redact_text(str(error)))


def _publish(data: ReportData, target: ReportURI) -> None:
    verdict = "promoted" if data.decision.promoted else "not promoted"
    create_markdown_artifact(
        key=artifact_key("summary"), description=f"{data.recipe_name}: {verdict}", markdown="\n".join(_summary(data))
    )
    create_table_artifact(key=artifact_key("history"), table=data.history, description="Metrics of every epoch")
    create_table_artifact(
        key=artifact_key("per-class"), table=data.per_class, description="Metrics per class on the test rows"
    )
    if len(data.classes) <= _MOST_CLASSES:
        confusion = confusion_table(data.classes, data.confusion)
        create_table_artifact(
            key=artifact_key("confusion"), table=confusion, description="Confusion matrix of the test rows"
        )
    _publish_report(target, is_default_root=reference.root_of(target) == parse_root(default_storage()))


def _publish_report(target: ReportURI, *, is_default_root: bool) -> None:
    """Publish a link to the report if it is served, else what to open: browsers follow no `file:` or `s3:` link."""
    page, address = target.child("index.html"), os.environ.get(REPORTS_URL, "").rstrip("/")
    if address and is_default_root:
        link = f"{address}/{quote(target.name)}/index.html"
        create_link_artifact(
            key=artifact_key("report"), link=link, link_text="Report page", description=f"Report: {page}"
        )
        return
    how = "Copy it to your machine, then open it in a browser" if page.is_s3 else "Open this file in a browser"
    create_markdown_artifact(
        key=artifact_key("report"), description=f"Report: {page}", markdown=f"{how}:\n\n    {page}\n"
    )


def confusion_table(classes: Sequence[str], counts: Sequence[Sequence[int]]) -> list[dict[str, Any]]:
    """Return a row for each true class; the class itself is the first column.

    Columns are named `predicted 7`, because a browser would move a column named `7` before all others.
    """
    return [
        {"true class": name} | {f"predicted {other}": count for other, count in zip(classes, row, strict=True)}
        for name, row in zip(classes, counts, strict=True)
    ]


def publish_training_images(uri: URI, file: File) -> None:
    """Publish the first training images, stored by the training in `file` below `uri`, each above its class."""
    cells = [
        f"![{name}]({plots.png(image, enlarged=True)})<br>{name}"
        for image, name in ((image, _plain(name)) for image, name in images.with_names(tables.read_part(uri, file)))
    ]
    rows = [cells[start : start + _IMAGES_A_ROW] for start in range(0, len(cells), _IMAGES_A_ROW)]
    head = [[""] * len(rows[0]), ["---"] * len(rows[0])]
    create_markdown_artifact(
        key=artifact_key("training-images"),
        description=f"The first {len(cells)} training images as the model sees them, augmented, with their labels",
        markdown="\n".join(f"| {' | '.join(row)} |" for row in [*head, *rows]),
    )


def _plain(text: str) -> str:
    """Escape `text` so that Markdown shows it literally: with a backslash before any ASCII punctuation."""
    return re.sub(r"[!-/:-@\[-`{-~]", r"\\\g<0>", " ".join(text.split()))


def _summary(data: ReportData) -> Iterator[str]:
    decision = data.decision
    yield f"# {data.recipe_name}: {'promoted' if decision.promoted else 'not promoted'}\n\n{_plain(decision.reason)}.\n"
    if decision.decided:
        yield f"Decided on {moment(decision.decided)} by {_plain(decision.author or 'an unknown user')}.\n"
    if data.sample_notice:
        yield f"> **Note:** this is {data.sample_notice}.\n"
    for problem in data.data_problems:
        if not problem.is_minor:
            yield f"> **Note:** {_plain(problem.summary)}.\n"
    champion = decision.metrics.get("champion", {})
    yield "| on the test rows | this model | champion before this run |\n|---|---|---|"
    for name in (*METRICS.values(), "test_loss", "expected_calibration_error", "num_rows"):
        yield f"| {metric_title(name)} | {number(data.metrics[name])} | {number(champion.get(name))} |"
    for role, difference in decision.differences.items():
        yield f"\nCompared with the {role}: {_plain(str(difference))}.\n"
    places = {step.title: URI(step.uri) for step in data.lineage if step.uri}
    prepared = manifest.load(places["Prepared dataset"])
    rows = {split: sum(file.rows or 0 for file in prepared.split(split)) for split in ("train", "validation", "test")}
    counted = ", ".join(f"{count:,} {split}" for split, count in rows.items())
    left_out = sum(prepared.statistics.get("quarantined", {}).values())
    yield f"\nData set `{data.data_set}`: {counted} rows; {left_out:,} rows excluded.\n"
    yield "| | |\n|---|---|"
    for title, uri in places.items():
        yield f"| {title} | `{uri}` |"
