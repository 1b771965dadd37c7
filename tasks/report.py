"""Report: write a self-contained HTML page about a run, and publish its summary as a Prefect artifact."""

import dataclasses
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import quote

from prefect import task

from storage import commits, manifest, reference, registry
from storage.decision import Decision
from storage.kinds import CHECKPOINT, PREDICTIONS, PREPARED, RAW
from storage.manifest import Manifest
from storage.statistics import ReportStatistics
from storage.uri import URI, CheckpointURI, DatasetURI, EvaluationURI, PredictionsURI, ReportURI, redact_text
from tasks import report_page
from tasks.comparing.diff import diff
from tasks.comparing.results import Results
from tasks.evaluate import read_evaluation
from tasks.jobs.preprocess.data_problems import by_split, find_data_problems
from tasks.learning import images
from tasks.orchestration.artifacts import publish
from tasks.orchestration.prefect_options import task_options
from tasks.orchestration.stage import seconds_so_far, stage
from tasks.planning.plan import ReportParameters, Timeouts
from tasks.planning.result_uris import decision_as_json, report_of
from tasks.report_page import LineageStep, pictures


@task(name="report", **task_options)
def report(
    checkpoint: CheckpointURI,
    predictions: PredictionsURI,
    evaluation: EvaluationURI,
    decision: Decision,
    parameters: ReportParameters,
    timeouts: Timeouts,
) -> ReportURI:
    """Write an HTML page on the training, its data, metrics and decision, without external resources."""
    target = report_of(evaluation, decision, register_as=parameters.register_as)
    parents: dict[str, URI] = {"checkpoint": checkpoint, "predictions": predictions, "evaluation": evaluation}
    with stage("report", target, timeout_s=timeouts.stage_s) as current:
        data = gather(checkpoint, predictions, evaluation, decision, parameters)
        if not current.reused:
            worst = [row["id"] for row in data.evaluated["worst"]]
            prepared = DatasetURI(manifest.load(predictions).parent("dataset", of=predictions))
            data = dataclasses.replace(
                data,
                **pictures.of_mistakes(predictions, worst=worst),
                **pictures.of_data(prepared),
                **against_champion(checkpoint, evaluation, decision, parameters),
            )
            commits.commit(
                target,
                kind="report",
                parents=parents,
                parameters={"decision": decision_as_json(decision, reference.root_of(target))},
                listed=[commits.write_file(target, "index.html", report_page.render(data).encode(), fixed_name=True)],
                statistics=ReportStatistics(
                    registered_model=parameters.registered_model,
                    recipe=parameters.recipe_name,
                    data=parameters.data_name,
                    dataset=prepared.name,
                    changes=parameters.changes,
                    settings=parameters.values,
                    seconds=seconds_so_far(),
                ),
            )
        publish(data, target, registered_model=parameters.registered_model)
    return target


def gather(
    checkpoint: CheckpointURI,
    predictions: PredictionsURI,
    evaluation: EvaluationURI,
    decision: Decision,
    parameters: ReportParameters,
) -> report_page.ReportData:
    """Read the page's content, except its pictures, from committed results: the same results give the same page."""
    trained, predicted = manifest.load(checkpoint), manifest.load(predictions)
    prepared_uri = DatasetURI(predicted.parent("dataset", of=predictions))
    prepared = manifest.load(prepared_uri)
    raw_uri = DatasetURI(prepared.parent("raw", of=prepared_uri))
    raw = manifest.load(raw_uri)
    steps: list[tuple[str, URI, Manifest | None]] = [
        ("Raw dataset", raw_uri, raw),
        ("Prepared dataset", prepared_uri, prepared),
        ("Checkpoint", checkpoint, trained),
        ("Predictions", predictions, predicted),
        ("Evaluation", evaluation, manifest.load(evaluation)),
    ]
    if "files" in raw.parents:
        steps.insert(0, ("Downloaded files", raw.parent("files", of=raw_uri), None))
    for role in {"initial", "weights"} & trained.parents.keys():
        steps.insert(-3, ("Initial weights", trained.parent(role, of=checkpoint), None))
    target = report_of(evaluation, decision, register_as=parameters.register_as)
    training = trained.statistics_of(CHECKPOINT)
    resolved = {"hardware": "; ".join(training.hardware), "reproducible": training.is_reproducible}
    resolved |= vars(training.resolved)
    return report_page.ReportData(
        recipe_name=parameters.recipe_name,
        data_set=parameters.data_name,
        sample_notice=raw.statistics_of(RAW).notice,
        decision=decision,
        evaluated=read_evaluation(evaluation),
        trained=training,
        classes=images.classes_of(prepared.columns["metadata"]),
        temperature=predicted.statistics_of(PREDICTIONS).temperature,
        class_counts=by_split(prepared.statistics_of(PREPARED).class_counts),
        data_problems=tuple(find_data_problems(raw, prepared)),
        lineage=tuple(_lineage(steps, raw, target, decision)),
        parameters=parameters.values | {f"{name} (resolved)": value for name, value in resolved.items()},
        command=parameters.command,
        producer=trained.producer,
    )


def against_champion(
    checkpoint: CheckpointURI, evaluation: EvaluationURI, decision: Decision, parameters: ReportParameters
) -> dict[str, Any]:
    """Return what is different from the champion before the decision, for the section about it."""
    history = registry.history(reference.root_of(evaluation), parameters.registered_model)
    champion = next((earlier.champion for earlier in reversed(history) if earlier.number < decision.number), None)
    if champion in (None, checkpoint):
        return {}
    try:
        return {"against": diff(Results.of(champion), Results.of(evaluation))}
    except (FileNotFoundError, manifest.Damaged) as error:
        return {"against_note": f"The champion before cannot be compared: {error}."}


def _lineage(
    steps: Sequence[tuple[str, URI, Manifest | None]], raw: Manifest, target: ReportURI, decision: Decision
) -> Iterator[LineageStep]:
    """Yield the steps of the lineage; `steps` are title, URI and manifest of each result."""
    sources = raw.statistics_of(RAW).sources
    origins = tuple((file.name, f"{file.sha256}\nfrom {redact_text(file.url)}") for file in sources)
    yield LineageStep(title="Raw files and SHA-256", facts=origins)
    for title, uri, result in [*steps, ("Report", target, None)]:
        place = reference.of(uri, root=reference.root_of(target))
        link = "" if place == uri else f"../../{quote(place)}/{manifest.NAME}"
        when = result.created if result else decision.decided if uri == target else None
        facts = [("created (UTC)", report_page.moment(when).removesuffix(" UTC"))] if when else []
        rows = Counter[str]()
        for file in result.files if result else ():
            rows[file.split or ""] += file.rows or 0
        facts += [(f"{split} rows", f"{count:,}") for split, count in rows.items() if split and count]
        yield LineageStep(title=title, uri=uri, link=link, facts=tuple(facts))
