"""Report: write a self-contained HTML page about a run, and publish its summary as a Prefect artifact."""

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import quote

from prefect import task

from storage import commits, manifest, reference, registry
from storage.decision import Decision
from storage.kinds import CHECKPOINT, EVALUATION, PREDICTIONS, PREPARED, RAW, EvaluationURI, Kind, ReportURI
from storage.manifest import Manifest
from storage.statistics import ReportStatistics
from storage.uri import URI, redact_text
from tasks import report_page
from tasks.comparing.diff import diff
from tasks.comparing.results import Results
from tasks.evaluate import read_evaluation
from tasks.jobs.preprocess.data_problems import by_split, find_data_problems
from tasks.learning import images, recipes
from tasks.learning.recipes import Recipe
from tasks.orchestration.artifacts import publish
from tasks.orchestration.prefect_options import task_options
from tasks.orchestration.stage import seconds_so_far, step
from tasks.report_page import LineageStep, more_photos, pictures
from tasks.resources.needs import Limits
from tasks.stages import Report


@task(name="report", **task_options)
def report(
    evaluation: EvaluationURI,
    decision: Decision,
    recipe: Recipe,
    registered_model: str,
    *,
    register_as: str | None = None,
    command: str = "",
    limits: Limits = Limits(),
) -> ReportURI:
    """Write an HTML page on the training, its data, metrics and decision, without external resources.

    `decision` is what became of the model of `evaluation`; the other arguments are those of the run.
    """
    run = Run(evaluation, decision, recipe, registered_model, register_as=register_as, command=command)
    # A checkpoint that was trained again has other times in its history, which make no other page.
    with step("report", run.stage.target, timeout_s=limits.stage_s) as current:
        data = gather(run)
        if not current.reused:
            _write(run, with_pictures(run, data))
        publish(data, run.stage.target, registered_model=registered_model)
    return run.stage.target


@dataclasses.dataclass(frozen=True)
class Run:
    """The run that a report is about."""

    evaluation: EvaluationURI
    decision: Decision
    recipe: Recipe
    registered_model: str
    register_as: str | None = None
    command: str = ""

    @property
    def embedded(self) -> Manifest | None:
        """The manifest of the embeddings by which near duplicates were found."""
        uri, predicted = self.results.require(PREDICTIONS)
        return manifest.load(predicted.parent("embeddings", of=uri)) if "embeddings" in predicted.parents else None

    @functools.cached_property
    def results(self) -> Results:
        return Results.of(self.evaluation)

    @functools.cached_property
    def stage(self) -> Report:
        root = reference.root_of(self.evaluation)
        return Report(
            root=root,
            checkpoint=self.results.require(CHECKPOINT)[0],
            predictions=self.results.require(PREDICTIONS)[0],
            evaluation=self.evaluation,
            # what only its entry in the registry has makes no other page
            decision=registry.with_references(self.decision, root, exclude={"decided", "author", "weights"}),
            register_as=self.register_as,
        )

    @property
    def scale(self) -> dict[str, Any]:
        """Numbers of workers and cores, if they were requested."""
        trained = self.results.require(CHECKPOINT)[1].parameters
        return {name: trained[name] for name in ("workers", "cores") if name in trained}

    @property
    def settings(self) -> dict[str, Any]:
        """Every field of the recipe, and the numbers of workers and cores."""
        return {**recipes.flat(self.recipe.to_dict()), "workers": "auto", **self.scale}


def _write(run: Run, data: report_page.ReportData) -> None:
    stage, target = run.stage, run.stage.target
    dataset, _ = run.results.require(PREPARED)
    commits.commit(
        target,
        kind="report",
        parents=stage.parents,
        parameters=stage.values,
        listed=[commits.write_file(target, "index.html", report_page.render(data).encode(), fixed_name=True)],
        statistics=ReportStatistics(
            registered_model=run.registered_model,
            recipe=run.recipe.name,
            data=dataset.stem,
            dataset=dataset.name,
            changes={**recipes.changes(run.recipe), **run.scale},
            settings=run.settings,
            seconds=seconds_so_far(),
        ),
    )


def gather(run: Run) -> report_page.ReportData:
    """Read the page's content, except its pictures, from committed results: the same results give the same page."""
    raw_uri, raw = run.results.require(RAW)
    prepared_uri, prepared = run.results.require(PREPARED)
    checkpoint, trained = run.results.require(CHECKPOINT)
    kinds: tuple[Kind[Any, Any], ...] = (RAW, PREPARED, CHECKPOINT, PREDICTIONS, EVALUATION)
    titles = {RAW: "Raw dataset", PREPARED: "Prepared dataset"}
    steps: list[tuple[str, URI, Manifest | None]] = [
        (titles.get(kind, kind.name.capitalize()), *run.results.require(kind)) for kind in kinds
    ]
    if "files" in raw.parents:
        steps.insert(0, ("Downloaded files", raw.parent("files", of=raw_uri), None))
    for role in {"initial", "weights"} & trained.parents.keys():
        steps.insert(-3, ("Initial weights", trained.parent(role, of=checkpoint), None))
    training = trained.statistics_of(CHECKPOINT)
    computed = {"hardware": "; ".join(training.hardware), "reproducible": training.is_reproducible}
    resolved = {f"{name} (resolved)": value for name, value in (computed | vars(training.resolved)).items()}
    return report_page.ReportData(
        recipe_name=run.recipe.name,
        data_set=prepared_uri.stem,
        sample_notice=raw.statistics_of(RAW).notice,
        decision=run.decision,
        evaluated=read_evaluation(run.evaluation),
        trained=training,
        classes=images.classes_of(prepared.columns["metadata"]),
        class_counts=by_split(prepared.statistics_of(PREPARED).class_counts),
        data_problems=tuple(find_data_problems(raw, prepared, run.embedded)),
        lineage=tuple(_lineage(steps, raw, run)),
        parameters=run.settings | resolved,
        command=run.command,
        producer=trained.producer,
    )


def with_pictures(run: Run, data: report_page.ReportData) -> report_page.ReportData:
    """Add the pictures, and what is different from the champion before."""
    worst = [row["id"] for row in data.evaluated["worst"]]
    shown = pictures.of_mistakes(run.stage.predictions, worst=worst)
    shown |= pictures.of_data(run.results.require(PREPARED)[0], run.embedded) | against_champion(run)
    mistakes = [row["id"] for row in shown["mistakes"]]
    shown["more_photos"] = more_photos.of_probe(run.stage.checkpoint, run.stage.predictions, mistakes=mistakes)
    return dataclasses.replace(data, **shown)


def against_champion(run: Run) -> dict[str, Any]:
    """Return what is different from the champion before the decision, for the section about it."""
    history = registry.history(run.stage.storage, run.registered_model)
    champion = next((earlier.champion for earlier in reversed(history) if earlier.number < run.decision.number), None)
    if champion in (None, run.stage.checkpoint):
        return {}
    if run.decision.withdraws:
        return {"against_note": "The champion before was trained on an image that is forgotten."}
    try:
        return {"against": diff(Results.of(champion), run.results)}
    except (FileNotFoundError, manifest.Damaged) as error:
        return {"against_note": f"The champion before cannot be compared: {error}."}


def _lineage(steps: Sequence[tuple[str, URI, Manifest | None]], raw: Manifest, run: Run) -> Iterator[LineageStep]:
    """Yield the steps of the lineage; `steps` are title, URI and manifest of each result."""
    sources = raw.statistics_of(RAW).sources
    origins = tuple((file.name, f"{file.sha256}\nfrom {redact_text(file.url)}") for file in sources)
    yield LineageStep(title="Raw files and SHA-256", facts=origins)
    for title, uri, result in [*steps, ("Report", run.stage.target, None)]:
        place = reference.of(uri, root=run.stage.storage)
        link = "" if place == uri else f"../../{quote(place)}/{manifest.NAME}"
        when = result.created if result else run.decision.decided if uri == run.stage.target else None
        facts = [("created (UTC)", report_page.moment(when).removesuffix(" UTC"))] if when else []
        if result:
            splits = dict.fromkeys(file.split for file in result.files if file.split and file.rows)
            facts += [(f"{split} rows", f"{result.num_rows(split):,}") for split in splits]
        yield LineageStep(title=title, uri=uri, link=link, facts=tuple(facts))
