"""Report: one self-contained page about a run, and its essentials as Prefect artifacts."""

import shlex
from collections.abc import Iterator, Sequence

import numpy as np
from prefect import task

from storage import manifest, tables
from storage.fingerprint import fingerprint
from storage.manifest import Manifest
from storage.registry import Decision
from storage.uri import URI, CheckpointURI, DatasetURI, EvaluationURI, PredictionsURI, ReportURI
from tasks import pages
from tasks.artifacts import publish
from tasks.evaluate import read_evaluation
from tasks.learning import images, recipes
from tasks.learning.checkpoint import training_images
from tasks.options import task_options
from tasks.pages import Picture
from tasks.pages.lineage import LineageStep
from tasks.plan import VERSIONS, Plan
from tasks.stage import stage

_NUM_SAMPLES = 24
_NUM_MISTAKES = 16
_CLASSES_SHOWN = 20
_RAW_FILES = "Raw files and SHA-256"
_DOWNLOAD = "Downloaded files"


@task(name="report", **task_options)
def report(
    checkpoint: CheckpointURI,
    predictions: PredictionsURI,
    evaluation: EvaluationURI,
    decision: Decision,
    plan: Plan,
) -> ReportURI:
    """One HTML page that says what was trained on what, how good it is and what was decided; loads nothing."""
    target = report_of(evaluation, decision, plan)
    with stage("report", target, deadline_s=plan.deadline_s) as current:
        data = gather(checkpoint, predictions, evaluation, decision, plan)
        if not current.reused:
            page = manifest.write_file(target, "index.html", pages.render(data).encode(), fixed_name=True)
            manifest.commit(
                target,
                kind="report",
                parents={"checkpoint": checkpoint, "predictions": predictions, "evaluation": evaluation},
                parameters={"decision": decision.model_dump(mode="json")},
                listed=[page],
            )
        publish(data, target, plan)
    return target


def report_of(evaluation: EvaluationURI, decision: Decision, plan: Plan) -> ReportURI:
    """Where the report on `evaluation` and `decision` lies."""
    digest = fingerprint(
        "report",
        version=VERSIONS["report"],
        parents=[evaluation.fingerprint],
        parameters={"decision": decision.model_dump(mode="json")},
    )
    return ReportURI(plan.root.child(f"reports/{plan.recipe.name}-{digest}"))


def gather(
    checkpoint: CheckpointURI,
    predictions: PredictionsURI,
    evaluation: EvaluationURI,
    decision: Decision,
    plan: Plan,
) -> pages.ReportData:
    """Everything the page shows, read from committed results alone: the same results give the same page."""
    raw, prepared, trained, predicted = (
        manifest.load(uri) for uri in (plan.raw, plan.prepared, checkpoint, predictions)
    )
    evaluated = read_evaluation(evaluation)
    classes = images.classes_of(prepared.columns["metadata"])
    mistakes = evaluated["worst"][:_NUM_MISTAKES]
    first_seen = training_images(checkpoint, trained)
    made = {"download": _files(raw), "ingest": raw, "preprocess": prepared, "train": trained, "predict": predicted}
    return pages.ReportData(
        recipe_name=plan.recipe.name,
        data_set=plan.data_name,
        sample_notice=raw.statistics["notice"],
        promoted=decision.promoted,
        reason=decision.reason,
        metrics=evaluated["metrics"],
        history=trained.statistics["history"],
        best_epoch=trained.statistics["best_epoch"],
        training_seconds=trained.statistics["seconds"],
        classes=classes,
        per_class=evaluated["per_class"],
        confusion=evaluated["confusion"],
        calibration=evaluated["calibration"],
        samples=tuple(_pictures(plan.prepared, prepared, predictions, classes, _spread(prepared))),
        mistakes=tuple(_pictures(plan.prepared, prepared, predictions, classes, [row["id"] for row in mistakes])),
        gate=dict(decision.gate),
        champion_metrics=decision.metrics.get("champion"),
        lineage=tuple(_lineage(plan, checkpoint, predictions, evaluation, decision)),
        timings=[(name, one.statistics["seconds"]) for name, one in made.items() if one],
        parameters=plan.recipe.to_dict()
        | {"workers": "auto" if plan.workers is None else plan.workers, **_resolved(trained)},
        command=command(plan),
        producer=trained.producer,
        training_images=tuple(images.with_names(first_seen)) if first_seen else (),
    )


def _files(raw: Manifest) -> Manifest | None:
    """What `raw` was made from, where that was downloaded and is still there."""
    try:
        return manifest.load(URI(raw.parents["files"]))
    except (KeyError, FileNotFoundError, manifest.Damaged):
        return None


def command(plan: Plan) -> str:
    """The command line that gives the same URIs below another storage root; `--refresh` would make new ones."""
    words = ["python", "flows/pipeline.py", "--recipe", plan.recipe.origin or plan.recipe.name]
    for name, value in recipes.changes(plan.recipe).items():
        words += ["--set", f"{name}={value}"]
    words += ["--data", str(plan.given)] if plan.given else []
    words += ["--workers", str(plan.workers)] if plan.workers is not None else []
    return shlex.join(words)


def _resolved(trained: Manifest) -> dict[str, object]:
    return {f"{name} (resolved)": value for name, value in trained.statistics["resolved"].items()}


def _spread(prepared: Manifest) -> list[int]:
    """Row numbers spread evenly over the test split."""
    total = sum(file.rows or 0 for file in prepared.split("test"))
    return [int(number) for number in np.linspace(0, total - 1, min(total, _NUM_SAMPLES)).round()]


def _pictures(
    dataset: DatasetURI, prepared: Manifest, predictions: PredictionsURI, classes: Sequence[str], ids: Sequence[int]
) -> Iterator[Picture]:
    """The test rows with these ids, in their order; ids that were left out as unusable are passed over."""
    shape = images.shape_of(prepared.columns["metadata"])
    found: dict[int, Picture] = {}
    made = manifest.load(predictions)
    for source, output in zip(prepared.split("test"), made.split("test"), strict=True):
        answers = tables.read_part(predictions, output)
        wanted = np.flatnonzero(np.isin(answers["id"].to_numpy(), ids))
        if not len(wanted):
            continue
        pixels, labels = images.to_arrays(tables.read_part(dataset, source).take(wanted), shape)
        assert labels is not None
        for image, label, row in zip(pixels, labels, answers.take(wanted).to_pylist(), strict=True):
            found[row["id"]] = Picture(
                image=image,
                label=classes[label],
                prediction=classes[row["prediction"]],
                probability=row["probability"],
                id=row["id"],
            )
    return (found[number] for number in ids if number in found)


def _lineage(
    plan: Plan, checkpoint: CheckpointURI, predictions: PredictionsURI, evaluation: EvaluationURI, decision: Decision
) -> Iterator[LineageStep]:
    raw = manifest.load(plan.raw)
    facts = tuple((file["name"], f"{file['sha256']}\nfrom {file['url']}") for file in raw.statistics["sources"])
    yield LineageStep(title=_RAW_FILES, facts=facts)
    titles: dict[str, str] = {}
    if "files" in raw.parents:  # which may be gone by now
        uri = URI(raw.parents["files"])
        titles[uri.name] = _DOWNLOAD
        yield LineageStep(
            title=_DOWNLOAD, stage="download", uri=uri, fingerprint=uri.fingerprint, parents=(_RAW_FILES,)
        )
    steps: list[tuple[str, str, URI]] = [
        ("Raw dataset", "ingest", plan.raw),
        ("Prepared dataset", "preprocess", plan.prepared),
        ("Checkpoint", "train", checkpoint),
        ("Predictions", "predict", predictions),
        ("Evaluation", "evaluate", evaluation),
    ]
    titles |= {uri.name: title for title, _, uri in steps}
    for title, maker, uri in steps:
        made = manifest.load(uri)
        names = [URI(parent).name for parent in made.parents.values()]
        parents = tuple(titles[name] for name in names if name in titles) or (_RAW_FILES,)
        facts = tuple(_facts(made))
        yield LineageStep(title=title, stage=maker, uri=uri, fingerprint=uri.fingerprint, parents=parents, facts=facts)
    target = report_of(evaluation, decision, plan)
    yield LineageStep(
        title="Report",
        stage="promote, report",
        uri=target,
        fingerprint=target.fingerprint,
        parents=("Checkpoint", "Predictions", "Evaluation"),
        facts=(("decision", f"{'' if decision.promoted else 'not '}promoted"),),
    )


def _facts(made: Manifest) -> Iterator[tuple[str, str]]:
    for split in dict.fromkeys(file.split for file in made.files if file.split):
        yield f"{split} rows", f"{sum(file.rows or 0 for file in made.split(split)):,}"
    statistics = made.statistics
    if made.kind == "raw" and "found" in statistics:
        found = statistics["found"]
        yield "images as they came", ", ".join(f"{count:,} {mode}" for mode, count in found["modes"].items())
        yield "their sizes", " to ".join(f"{w} x {h}" for w, h in zip(found["widths"], found["heights"], strict=True))
    if made.kind == "prepared":
        for split, counts in statistics.get("class_counts", {}).items():
            shown = [f"{name} {count:,}" for name, count in list(counts.items())[:_CLASSES_SHOWN]]
            yield f"classes in {split}", ", ".join(shown) + (", ..." if len(counts) > len(shown) else "")
    if statistics.get("quarantined_files"):
        yield "files left out", "\n".join(statistics["quarantined_files"])
    if statistics.get("quarantined"):
        yield "quarantined", "\n".join(f"{count:,}: {why}" for why, count in statistics["quarantined"].items())
    # Not in the datasets of before it was counted.
    if (in_train := statistics.get("test_rows_in_train", {})).get("count"):
        ids = ", ".join(map(str, in_train["ids"])) + (", ..." if in_train["count"] > len(in_train["ids"]) else "")
        yield "test rows that also stand in train", f"{in_train['count']:,}: ids {ids}"
    if "initial" in made.parents:
        yield "began with the weights of", made.parents["initial"]
    if made.kind == "checkpoint":
        yield "best epoch", f"{statistics['best_epoch']} of {len(statistics['history'])}"
    if made.kind == "evaluation":
        yield "test accuracy", pages.share(statistics["test_accuracy"])
