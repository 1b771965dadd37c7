"""Audit: name the images whose labels are probably wrong, by probes on embeddings that did not see them."""

from prefect import task

from storage import commits, manifest, tables
from storage.kinds import EMBEDDINGS, AuditURI, EmbeddingsURI
from storage.statistics import AuditStatistics
from tasks.auditing.rows import find_suspects, render
from tasks.images import embedding_rows
from tasks.orchestration.prefect_options import task_options
from tasks.orchestration.stage import make_once
from tasks.resources.needs import Limits
from tasks.stages import Audit


@task(name="audit", **task_options)
def audit(embeddings: EmbeddingsURI, *, limits: Limits = Limits()) -> AuditURI:
    """Compare labels with out-of-fold probabilities; write a table of suspects, worst first, and a page."""
    stage = Audit(embeddings=embeddings)
    return make_once(stage, lambda: _write(stage), timeout_s=limits.stage_s)


def _write(stage: Audit) -> None:
    embedded = manifest.load(stage.embeddings)
    rows = embedding_rows.read(stage.embeddings)
    suspects = find_suspects(rows)
    content = render(suspects, rows).encode()
    commits.commit(
        stage.target,
        kind="audit",
        parents={"embeddings": embedded.as_parent(stage.embeddings)},
        parameters=stage.values,
        listed=[
            tables.write_part(stage.target, suspects, split="suspects", index=0),
            commits.write_file(stage.target, "index.html", content, fixed_name=True),
        ],
        schema=tables.describe(suspects.schema),
        statistics=AuditStatistics(rows=embedded.rows, notice=embedded.statistics_of(EMBEDDINGS).notice),
    )
