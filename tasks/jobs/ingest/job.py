"""The ingest job: survey the source if rows must be counted first, write the parts piece by piece, commit."""

import json
import math
import time
from collections.abc import Callable, Sequence
from typing import Any

from storage import commits, files, tables
from storage.manifest import File
from tasks.images import image_files, parquet_files, pieces
from tasks.images.pieces import Piece, Source
from tasks.jobs import events
from tasks.jobs.backends.base import Row, StageBackend
from tasks.jobs.ingest import downloads
from tasks.learning import images, user_code
from tasks.stages import IngestSpec

_SOURCES: dict[str, Source] = {"files": downloads, "images": image_files, "parquet": parquet_files}


def run(spec: IngestSpec, backend: StageBackend) -> None:
    """Commit the raw dataset of `spec`: every image has its row, in the order of the source.

    Raises `ValueError` for a file that has the wrong content, or has changed since it was listed.
    """
    started = time.monotonic()
    source = _SOURCES[spec.kind]
    listed = source.to_survey(spec)
    surveyed = _each(backend, source.survey, listed, spec, what="groups of files scanned", upto=0.3)
    work = source.plan(spec, surveyed)
    files.check_space(spec.target, needed=sum(piece["rows"] for piece in work.pieces) * math.prod(work.shape) // 2)
    done = _each(backend, source.make, work.pieces, spec, classes=work.classes, what="pieces written", upto=1.0)
    beside, statistics = source.finish(spec, done)
    commits.commit(
        spec.target,
        kind="raw",
        parents={"files": spec.source} if spec.kind == "files" else {},  # the user's own files are no committed result
        parameters=spec.parameters,
        listed=[*(File.model_validate(part) for piece in done for part in piece["parts"]), *beside],
        schema=tables.describe(images.schema(work.shape, work.classes, store=images.store_of(spec.parameters))),
        statistics={
            **statistics,
            "labels": work.labels,
            "class_counts": pieces.class_counts(done, work.classes),
            "seconds": time.monotonic() - started,
        },
    )


def _each(
    backend: StageBackend,
    function: Callable[..., Piece],
    inputs: Sequence[Piece],
    spec: IngestSpec,
    *,
    what: str,
    upto: float,
    **more: Any,
) -> list[Piece]:
    """Return `function` of each piece, in order; pieces travel as JSON, since Ray Data turns lists into arrays."""
    items = [{"piece": json.dumps(piece)} for piece in inputs]
    done: list[Piece] = []
    for row in backend.each(_call, items, function=function, spec=spec.model_dump_json(), more=more) if items else ():
        done.append(json.loads(row["made"]))
        events.progress(what, len(done), len(inputs), fraction=upto * len(done) / len(inputs))
    return done


def _call(row: Row, *, function: Callable[..., Piece], spec: str, more: dict[str, Any]) -> Row:
    with user_code.wrap_user_errors():
        piece = function(json.loads(row["piece"]), IngestSpec.model_validate_json(spec), **more)
    return {"made": json.dumps(piece)}
