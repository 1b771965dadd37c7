"""Audit: name the images whose labels are probably wrong, from the predictions of models that did not see them."""

from collections.abc import Sequence

from prefect import task

from storage import commits, manifest, tables
from storage.statistics import AuditStatistics
from storage.uri import AuditURI, PredictionsURI
from tasks.auditing.rows import Fold, find_suspects, render
from tasks.orchestration.prefect_options import task_options
from tasks.orchestration.stage import make_once
from tasks.resources.needs import Limits
from tasks.stages import Audit


@task(name="audit", **task_options)
def audit(predictions: Sequence[PredictionsURI], *, limits: Limits = Limits()) -> AuditURI:
    """Compare labels with out-of-fold probabilities; write a table of suspects, worst first, and a page."""
    stage = Audit(predictions=tuple(predictions))
    return make_once(stage, lambda: _write(stage), timeout_s=limits.stage_s)


def _write(stage: Audit) -> None:
    read = {role: manifest.load(uri).as_parent(uri) for role, uri in stage.parents.items()}
    folds = [Fold(uri) for uri in stage.predictions]
    suspects = find_suspects(folds)
    content = render(suspects, folds).encode()
    num_rows, notice = sum(fold.num_rows for fold in folds), folds[0].statistics.notice
    commits.commit(
        stage.target,
        kind="audit",
        parents=read,
        parameters=stage.values,
        listed=[
            tables.write_part(stage.target, suspects, split="suspects", index=0),
            commits.write_file(stage.target, "index.html", content, fixed_name=True),
        ],
        schema=tables.describe(suspects.schema),
        statistics=AuditStatistics(rows=num_rows, notice=notice),
    )
