"""The model card of an export: use, data, metrics, proof, limits, lineage, and the fields that a person fills in."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jinja2
import numpy as np

from storage import manifest, reference
from storage.manifest import Manifest
from storage.uri import URI, CheckpointURI
from tasks.exporting import Format
from tasks.exporting.formats import FILE_NAMES
from tasks.exporting.proof import TOLERANCE, Proof
from tasks.learning import metrics

_MODES = {1: "L", 3: "RGB"}
"""Pillow's names for the pixels that `preprocess.py` makes, by number of channels."""


def summary(proof: Proof) -> dict[str, float]:
    """Return the metrics of the exported file on the test rows."""
    counts = proof.confusion
    scores = metrics.scores_of_counts(np.diag(counts), counts.sum(1), counts.sum(0))
    return {name: float(value) for name, value in scores.items()}


def render(checkpoint: CheckpointURI, form: Format, proof: Proof, versions: Mapping[str, str]) -> str:
    """Return the card, in Markdown."""
    trained = manifest.load(checkpoint)
    prepared = manifest.load(trained.parent("prepared", of=checkpoint))
    lineage = list(dict.fromkeys(_lineage("checkpoint", checkpoint, trained.digest)))
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    return environment.get_template("README.md.j2").render(
        name=checkpoint.name,
        form=form,
        file=FILE_NAMES[form],
        model=trained.statistics["model"],
        resolved=trained.statistics["resolved"],
        has_preprocess=preprocess(trained.statistics["model"]["image_shape"]) is not None,
        data=prepared.statistics,
        summary=summary(proof),
        per_class=metrics.per_class(proof.confusion, trained.statistics["model"]["classes"]),
        proof=proof,
        tolerance=TOLERANCE,
        versions=", ".join(f"{name} {version}" for name, version in versions.items()),
        lineage=lineage,
    )


def preprocess(image_shape: tuple[int, int, int]) -> str | None:
    """Return the code of `preprocess.py` for images of this shape; none if photos have no such channels."""
    height, width, channels = image_shape
    if channels not in _MODES:
        return None
    code, usual = Path(__file__).with_name("preprocess.py").read_text(), '"RGB", (64, 64)'
    assert code.count(usual) == 1
    return code.replace(usual, f'"{_MODES[channels]}", ({width}, {height})')


def _lineage(role: str, uri: URI, digest: str) -> Iterator[str]:
    """Yield a line for a result and each of its ancestors, and for each file at the root, with their SHA-256."""
    yield f"{role}  {reference.of(uri, root=reference.root_of(uri))}  {digest}"
    try:
        recorded = manifest.load(uri)
    except (FileNotFoundError, PermissionError, ValueError, manifest.Damaged):  # deleted
        return
    for parent_role, parent in sorted(recorded.parents.items()):
        yield from _lineage(parent_role, recorded.parent(parent_role, of=uri), parent.digest)
    if not recorded.parents:
        yield from (f"file  {name}  {sha256}" for name, sha256 in _files(recorded))


def _files(recorded: Manifest) -> Iterator[tuple[str, Any]]:
    """Yield name and SHA-256 of the files that everything comes from."""
    if sources := recorded.statistics.get("sources"):
        yield from ((source["name"], source.get("sha256")) for source in sources)
    else:
        yield from ((file.path, file.sha256) for file in recorded.files)
