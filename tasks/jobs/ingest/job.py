"""The ingest job: survey the source if rows must be counted first, write the parts piece by piece, commit."""

import functools
import math
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from storage import commits, files, tables
from storage.statistics import RawStatistics
from tasks.images import image_files, parquet_files, pieces, user_files
from tasks.images.pieces import Piece, Source
from tasks.jobs import events
from tasks.jobs.ingest import downloads
from tasks.jobs.local_data import LocalData, Row
from tasks.jobs.spec import JobSpec
from tasks.learning import images, user_code
from tasks.stages import Ingest

_SOURCES: dict[str, Source] = {"files": downloads, "images": image_files, "parquet": parquet_files}
T = TypeVar("T")


def run(spec: JobSpec[Ingest], data: LocalData) -> None:
    """Commit the raw dataset: every image has its row, in the order of the source.

    Raises `ValueError` for a file that has the wrong content, or has changed since it was listed.
    """
    started, stage = time.monotonic(), spec.stage
    source = _SOURCES["files" if stage.files else user_files.listed(stage).kind]
    work = source.plan(stage, functools.partial(_map, data, stage=stage, what="groups of files scanned", upto=0.3))
    files.check_space(stage.target, needed=sum(piece.rows for piece in work.pieces) * math.prod(work.shape) // 2)
    done = _map(data, source.make, work.pieces, stage=stage, classes=work.classes, what="pieces written", upto=1.0)
    beside, provenance = source.finish(stage, done)
    commits.commit(
        stage.target,
        kind="raw",
        parents=stage.parents,  # the user's own files are no committed result
        parameters=stage.values,
        listed=[*(part for piece in done for part in piece.parts), *beside],
        schema=tables.describe(images.schema(work.shape, work.classes, store=stage.store)),
        statistics=RawStatistics(
            **vars(provenance),
            labels=work.labels,
            class_counts=pieces.class_counts(done, work.classes),
            seconds=time.monotonic() - started,
        ),
    )


def _map(
    data: LocalData,
    function: Callable[..., T],
    pieces: Sequence[Piece],
    *,
    stage: Ingest,
    what: str,
    upto: float,
    **more: object,
) -> list[T]:
    done: list[T] = []
    keywords = {"function": function, "stage": stage} | more
    for row in data.from_items(pieces).map(_call, fn_kwargs=keywords).iter_rows() if pieces else ():
        done.append(row["item"])
        events.progress(what, len(done), len(pieces), fraction=upto * len(done) / len(pieces))
    return done


def _call(row: Row, *, function: Callable[..., Any], **keywords: Any) -> Row:
    with user_code.wrap_user_errors():
        return {"item": function(row["item"], **keywords)}
