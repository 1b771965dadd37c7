"""Audit: name the images whose labels are probably wrong, from the predictions of models that did not see them."""

from collections.abc import Sequence

from prefect import task

from storage import commits, kinds, manifest, tables
from storage.statistics import AuditStatistics
from storage.uri import URI, AuditURI, PredictionsURI
from tasks.auditing.rows import Fold, find_suspects, render
from tasks.orchestration.prefect_options import task_options
from tasks.orchestration.stage import stage
from tasks.planning.plan import Timeouts


@task(name="audit", **task_options)
def audit(predictions: Sequence[PredictionsURI], target: AuditURI, timeouts: Timeouts) -> AuditURI:
    """Compare labels with out-of-fold probabilities; write a table of suspects, worst first, and a page."""
    parents: dict[str, URI] = dict(zip(kinds.AUDIT.parents, predictions, strict=False))
    with stage("audit", target, parents=parents, timeout_s=timeouts.stage_s) as current:
        if not current.reused:
            read = {role: manifest.load(uri).as_parent(uri) for role, uri in parents.items()}
            folds = [Fold(uri) for uri in predictions]
            suspects = find_suspects(folds)
            content = render(suspects, folds).encode()
            commits.commit(
                target,
                kind="audit",
                parents=read,
                parameters={},
                listed=[
                    tables.write_part(target, suspects, split="suspects", index=0),
                    commits.write_file(target, "index.html", content, fixed_name=True),
                ],
                schema=tables.describe(suspects.schema),
                statistics=AuditStatistics(
                    rows=sum(fold.num_rows for fold in folds), notice=folds[0].statistics.notice
                ),
            )
    return target
