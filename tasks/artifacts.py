"""A run's essentials as Prefect artifacts: what its page in the UI shows."""

import re
from collections.abc import Iterator

from prefect.artifacts import create_link_artifact, create_markdown_artifact, create_table_artifact

from storage import manifest, tables
from storage.manifest import File
from storage.uri import URI, ReportURI
from tasks.learning import images
from tasks.pages import ReportData, plots
from tasks.plan import Plan

_METRICS = ("test_accuracy", "test_loss", "expected_calibration_error", "num_rows")
_IMAGES_A_ROW = 8
_MARKDOWN = re.compile(r"[!-/:-@\[-`{-~]")
"""ASCII punctuation: whatever of it means something in Markdown means itself after a backslash."""


def publish(data: ReportData, target: ReportURI, plan: Plan) -> None:
    """A summary, tables of the history, the classes and the confusion, and a link to the report."""
    verdict = "promoted" if data.promoted else "not promoted"
    create_markdown_artifact(
        key="summary", description=f"{data.recipe_name}: {verdict}", markdown="\n".join(_summary(data, target, plan))
    )
    create_table_artifact(key="history", table=data.history, description="Every epoch of the training")
    create_table_artifact(key="per-class", table=data.per_class, description="Per class, on the test rows")
    confusion = [
        {"true": name} | dict(zip(data.classes, row, strict=True))
        for name, row in zip(data.classes, data.confusion, strict=True)
    ]
    create_table_artifact(key="confusion", table=confusion, description="Test rows by true and predicted class")
    page = target.child("index.html")
    link = page if page.is_s3 else f"file://{page}"
    create_link_artifact(key="report", link=link, link_text="Report page", description=f"The report: {page}")


def publish_training_images(uri: URI, file: File) -> None:
    """Show the first training images, which a training wrote to `file` below `uri`, each above its class."""
    cells = [
        f"![{name}]({plots.png(image, enlarged=True)})<br>{name}"
        for image, name in ((image, _plain(name)) for image, name in images.with_names(tables.read_part(uri, file)))
    ]
    rows = [cells[start : start + _IMAGES_A_ROW] for start in range(0, len(cells), _IMAGES_A_ROW)]
    head = [[""] * len(rows[0]), ["---"] * len(rows[0])]
    create_markdown_artifact(
        key="training-images",
        description=f"The first {len(cells)} training images as the model sees them, augmented, with their labels",
        markdown="\n".join(f"| {' | '.join(row)} |" for row in [*head, *rows]),
    )


def _plain(text: str) -> str:
    """Return `text` as Markdown that shows it as it is."""
    return _MARKDOWN.sub(r"\\\g<0>", " ".join(text.split()))


def _summary(data: ReportData, target: ReportURI, plan: Plan) -> Iterator[str]:
    """Lines of Markdown: the decision, the metrics against the champion's, the data, and where everything lies."""
    yield f"# {data.recipe_name}: {'promoted' if data.promoted else 'not promoted'}\n\n{data.reason}.\n"
    if data.sample_notice:
        yield f"> **Note:** this is {data.sample_notice}.\n"
    champion = data.champion_metrics or {}
    yield "| on the test rows | this model | champion until now |\n|---|---|---|"
    for name in _METRICS:
        yield f"| {name.replace('_', ' ')} | {_number(data.metrics[name])} | {_number(champion.get(name))} |"
    prepared = manifest.load(plan.prepared)
    rows = {split: sum(file.rows or 0 for file in prepared.split(split)) for split in ("train", "validation", "test")}
    counted = ", ".join(f"{number:,} {split}" for split, number in rows.items())
    left_out = sum(prepared.statistics.get("quarantined", {}).values())
    yield f"\nData set `{data.data_set}`: {counted} rows; {left_out:,} rows left out as unusable.\n"
    yield "| | |\n|---|---|"
    places = {"files": URI(files)} if (files := manifest.load(plan.raw).parents.get("files")) else {}
    places |= {"raw": plan.raw, "prepared": plan.prepared, "checkpoint": plan.checkpoint}
    for name, uri in (places | {"predictions": plan.predictions, "report": target}).items():
        yield f"| {name} | `{uri}` |"


def _number(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:,}" if isinstance(value, int) else f"{value:.4f}"
