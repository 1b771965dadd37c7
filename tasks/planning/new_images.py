"""New pictures to predict: find them, and name the raw dataset of the model's image size that they become."""

import os
import re
from collections.abc import Sequence
from typing import Any

from storage import access, files, kinds, manifest
from storage.admin import champions
from storage.uri import URI, CheckpointURI, DatasetURI, Root
from tasks.jobs.spec import NEW
from tasks.planning import file_kinds, listing, user_images
from tasks.planning.class_folders import class_name, class_of
from tasks.planning.result_uris import result_uri
from tasks.planning.user_images import UserImages

_LAYOUT = "expected images, Parquet, or folders with either"


def are_at(uri: DatasetURI) -> bool:
    """Return whether `uri` is pictures, not a committed or unfinished dataset; raise `ValueError` if nothing exists."""
    if re.search(r"/datasets/(raw|prepared)/[^/]+-[0-9a-f]{12}$", uri):  # if not committed, an unfinished dataset
        return False
    if not uri.is_s3 and os.path.isfile(uri):
        return _is_picture(uri)
    try:
        access.check_readable(uri, option="--data")
    except FileNotFoundError:
        if uri.is_s3 and files.exists(uri):
            return _is_picture(uri)
        expected = f"{_LAYOUT}, or the URI of a dataset"
        raise user_images.nothing_at(uri, option="--data", expected=expected) from None
    return not manifest.is_committed(uri)


def _is_picture(file: URI) -> bool:
    """Return True for an image or Parquet, by its name; raise `ValueError` for another file."""
    if not file.lower().endswith((*file_kinds.IMAGES, file_kinds.PARQUET)):
        raise ValueError(f"--data: {file} must be an image (.png, .jpg, ...) or .parquet, by its name; rename it")
    return True


def find(root: Root, uri: DatasetURI, checkpoint: CheckpointURI, *, split: str | None) -> UserImages:
    """List the new pictures at `uri`; raise `ValueError` if the model of `checkpoint` cannot use them."""
    if split is not None:
        raise ValueError(
            f"--split applies to datasets, got {split!r} for new pictures; use their folder instead: {uri}/{split}"
        )
    user_images.check_apart(root, uri, option="--data")
    model = manifest.load(checkpoint).statistics["model"]
    height, width, _ = model["image_shape"]
    if height != width:
        raise ValueError(
            f"--model expects images of {height} x {width} pixels; new pictures can only be resized to squares"
        )
    return listed(URI(uri), classes=model["classes"])


def listed(uri: URI, *, classes: Sequence[str], option: str = "--data") -> UserImages:
    """List the images or Parquet at or below `uri`; an image below a folder named after a class has its label."""
    single = files.entry(uri) if files.exists(uri) else None
    folder = uri if single is None else uri.parent
    there = listing.below(folder, option=option, single=single, layout=_LAYOUT)
    number = {class_name(name): label for label, name in enumerate(classes)}
    labels = {entry.path: number[name] for entry in there.images if (name := class_of(entry.path, number))}
    entries = [*there.parquet, *there.images]
    if single is None:
        file_kinds.check_shards((entry.path for entry in there.parquet), option=option)
    splits = dict.fromkeys((entry.path for entry in entries), NEW)
    listed = listing.source_entries(folder, entries, splits=splits, labels=labels, option=option)
    return UserImages(
        uri=folder,
        kind="images" if there.images else "parquet",
        classes=tuple(classes),
        files=tuple(sorted(listed, key=lambda file: file.path)),
        left_out=there.left_out(),
        notes=tuple(file_kinds.describe_unread(there.skipped, num_read=len(entries))),
    )


def parameters(found: UserImages, checkpoint: CheckpointURI) -> dict[str, Any]:
    """Return what determines the raw dataset of new pictures besides their files."""
    model = manifest.load(checkpoint).statistics["model"]
    shape = {"image_size": model["image_shape"][0], "channels": model["image_shape"][2]}
    return {"data": found.name, "ingest": user_images.VERSION, "classes": list(model["classes"])} | shape


def raw_of(root: Root, found: UserImages, checkpoint: CheckpointURI) -> DatasetURI:
    """Return the URI of the pictures' raw dataset, shared by all models with the same image shape and classes."""
    made_from = parameters(found, checkpoint) | {"files": found.digest}
    return result_uri(kinds.RAW, root, name=found.name, parents=[], parameters=made_from)


def default_registered_model(root: Root, uri: DatasetURI) -> tuple[str, str | None]:
    """Return the registered model whose champion predicts the pictures at `uri`, and a line if it was one of several.

    That is the folder's own registered model if it has a champion, else the only one with a champion, else the only
    one whose champion was trained on a user's own images. Raises `ValueError` listing them if there are more.
    """
    named = champions.with_champion(root)
    of_folder = champions.default_for_user_images(user_images.name_of(uri), uri)
    if of_folder in named or not named:
        return of_folder, None
    if len(named) == 1:
        return named[0], None
    if len(own := champions.trained_on_user_images(root, named)) == 1:
        return own[0], f"predicted with champion:{own[0]}, the only one of {len(named)} champions trained on own images"
    raise ValueError(f"--model: there are several champions; choose one: champion:{', champion:'.join(named)}")
