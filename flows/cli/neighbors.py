"""The commands `next` and `similar`: which images to label next, and which are like another, by embeddings."""

import contextlib
import dataclasses
import json
from collections.abc import Iterator, Sequence

import pandas as pd
from rich.console import Console

from flows.cli import console, predictions_csv, preflight
from flows.cli.commands import NextOptions, PredictOptions, SimilarOptions
from flows.cli.options import FlowOptions
from storage import exits, manifest, terminal
from storage.kinds import DatasetURI, EmbeddingsURI
from storage.manifest import JSON
from tasks.comparing import neighbors
from tasks.comparing.rows import write_copies
from tasks.embed import embed
from tasks.images.listing import NEW
from tasks.ingest import ingest
from tasks.orchestration.stage import using
from tasks.planning.model_requests import BatchRequest, backbone_of
from tasks.predict import predict
from tasks.runners.runner import InProcessRunner, Runner
from tasks.runners.session import session
from tasks.stages import Embed


def next_to_label(options: NextOptions) -> int:
    with exits.refused_if_invalid(), _ingested(options) as (request, runner):
        stage, needs, limits = request.predict, request.needs, request.limits
        model, dataset, root = stage.checkpoint, stage.dataset, request.root
        predictions = predict.fn(
            model, dataset, runner, embeddings=stage.embeddings, root=root, needs=needs, limits=limits
        )
        images = neighbors.next_to_label(predictions, _embed(request, runner, raw=dataset), model, count=options.count)
    columns, rows = _rows(images.assign(rank=range(1, len(images) + 1)), "probability")
    if options.csv:
        predictions_csv.write_rows(options.csv, columns, rows, has_mark=options.excel)
    if options.copy_to:
        ids = zip(images["id"].tolist(), rows, strict=True)
        copied = [{"split": NEW, "id": id_, "title": row["class"], **row} for id_, row in ids]
        write_copies(options.copy_to, dataset, copied)
    return _show(columns, rows, as_json=options.as_json)


def similar(options: SimilarOptions) -> int:
    with exits.refused_if_invalid(), _ingested(options) as (request, runner):
        checkpoint, dataset = request.predict.checkpoint, request.predict.dataset
        prepared = DatasetURI(manifest.load(checkpoint).parent("prepared", of=checkpoint))
        if manifest.load(dataset).rows != 1:
            raise ValueError(f"FILE must be one image, got {options.data}; name one of its files")
        if not manifest.is_committed(prepared):
            raise ValueError(f"--model: {prepared}, the images of {checkpoint}, was deleted; run its pipeline again")
        query = _embed(request, InProcessRunner(), raw=dataset)
        embeddings = _embed(request, runner, prepared=prepared)
        images = neighbors.most_similar(embeddings, query, count=options.count)
    return _show(*_rows(images.assign(rank=range(1, len(images) + 1)), "similarity"), as_json=options.as_json)


@contextlib.contextmanager
def _ingested(options: NextOptions | SimilarOptions) -> Iterator[tuple[BatchRequest, Runner]]:
    """Ingest the user's new images, without a flow."""
    shared = {field.name: getattr(options, field.name) for field in dataclasses.fields(FlowOptions)}
    request = preflight.checked_prediction(PredictOptions(**shared, data=options.data, model=options.model))
    if not request.ingest:
        raise ValueError(f"--data must be new images, got the dataset {options.data}; name a folder of images")
    console.attach(console.Narrator(Console(stderr=True), has_bar=options.workers != 0))
    with using(request.root, request.uses), session(wanted=False, workers=options.workers) as runner:
        ingest.fn(request.ingest.made_from, request.ingest.data, runner, limits=request.limits)
        yield request, runner


def _embed(request: BatchRequest, runner: Runner, **images: DatasetURI) -> EmbeddingsURI:
    model, start = backbone_of(request.predict.checkpoint)
    stage = Embed(root=request.root, **images, model=model, start=start)
    return embed.fn(stage, runner, needs=request.needs, limits=request.limits)


def _rows(images: pd.DataFrame, score: str) -> tuple[list[str], list[JSON]]:
    """Return the names of the columns, and the rows as plain values; there are rows of files only for Parquet."""
    columns = ["rank", "file", *["row"] * bool(images["row"].notna().any()), "class", score]
    rows: list[JSON] = json.loads(images[columns].to_json(orient="records", double_precision=6))
    return columns, rows


def _show(columns: Sequence[str], rows: Sequence[JSON], *, as_json: bool) -> int:
    shown = [[f"{cell:.4f}" if isinstance(cell, float) else str(cell) for cell in row.values()] for row in rows]
    return terminal.answer(rows, terminal.table([columns, *shown]), as_json=as_json)
