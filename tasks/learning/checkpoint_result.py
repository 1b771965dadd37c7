"""The result of a training: its best epoch, committed as a checkpoint."""

import csv
import io
import json
import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa

from storage import commits, manifest, tables
from storage.manifest import Parent
from storage.uri import URI, CheckpointURI
from tasks.learning import checkpoint, hardware


def training_images(uri: CheckpointURI, committed: manifest.Manifest) -> pa.Table | None:
    """Return the first training images of a committed checkpoint; none if it has none."""
    file = next((file for file in committed.files if file.path.startswith(checkpoint.TRAINING_IMAGES)), None)
    return tables.read_part(uri, file) if file else None


def commit(
    scratch: URI,
    target: CheckpointURI,
    *,
    prepared: URI | Parent,
    initial: URI | None = None,
    num_rows: int,
    statistics: dict[str, Any],
) -> manifest.Manifest:
    """Commit the best epoch at `target`, with the whole history; the last epoch must have a checkpoint in `scratch`.

    `num_rows` is the number of training rows. Raises `RuntimeError` if one of the two is damaged; running the job again
    trains the missing epochs.
    """
    last = next(checkpoint.described(scratch), None)
    assert last is not None, "training ended without a checkpoint"
    _, final = last
    if final.epoch != final.recipe["epochs"]:
        raise RuntimeError(f"the checkpoints after epoch {final.epoch} are damaged; run again to resume from there")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        best = checkpoint.fetch_best(scratch, final, folder)
        if best is None:
            raise RuntimeError(f"the checkpoint of epoch {final.best_epoch}, the best, is damaged; run again to resume")
        content = {name: (folder / name).read_bytes() for name in (checkpoint.WEIGHTS, checkpoint.TRAINING)}
    meta = best.model_copy(update={"history": final.history, "hardware": final.hardware}).signed()
    content |= {
        checkpoint.META: meta.model_dump_json(indent=1).encode(),
        "history.json": json.dumps(final.history, indent=1).encode(),
        "history.csv": _csv(final.history),
    }
    steps = final.step // final.epoch
    if found := checkpoint.find_training_images(scratch):
        content[f"{checkpoint.TRAINING_IMAGES}.parquet"] = manifest.read_file(*found)
    return commits.commit(
        target,
        kind="checkpoint",
        parents={"prepared": prepared, **({"initial": initial} if initial else {})},
        parameters=final.parameters,
        listed=[commits.write_file(target, name, data) for name, data in content.items()],
        statistics={
            "best_epoch": final.best_epoch,
            "history": final.history,
            "model": final.model,
            "resolved": final.resolved,
            "recipe": final.recipe,
            "steps_per_epoch": steps,
            "training_rows": num_rows,
            **statistics,
            **hardware.recorded(final.hardware),
        },
    )


def _csv(history: list[dict[str, float]]) -> bytes:
    """Format `history` as CSV (RFC 4180): a header, then one line per epoch, each ended by CRLF."""
    sink = io.StringIO(newline="")
    writer = csv.DictWriter(sink, fieldnames=list(history[0]))
    writer.writeheader()
    writer.writerows(row | {name: int(row[name]) for name in ("epoch", "step")} for row in history)
    return sink.getvalue().encode()
