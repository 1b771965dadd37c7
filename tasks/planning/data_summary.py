"""Summary of the data for the user: its classes with their rows, and where the labels were read from."""

from collections import Counter
from collections.abc import Iterator, Mapping

from storage import files, manifest, s3
from storage.kinds import RAW
from storage.manifest import Manifest
from storage.terminal import count, first
from tasks.images import class_names, user_images
from tasks.images.class_names import FileLabels
from tasks.images.listing import UserFile
from tasks.images.user_images import UserImages
from tasks.learning import sources
from tasks.planning.plan import Plan

_PUBLISHED = "as published with the source"


def of_counts(counts: Mapping[str, Mapping[str, int]]) -> str:
    """Say in one line how many rows each class has: `2 classes, rows in train + test: cat 24 + 6, dog 12 + 3`.

    Args:
        counts: Rows by split and class; the split is empty if it is not known yet.
    """
    splits = sorted((split for split in counts if any(counts[split].values())), key=lambda split: split != "train")
    names = class_names.in_order({name for split in splits for name in counts[split]})
    rows = {name: [counts[split].get(name, 0) for split in splits] for name in names}
    shown = [f"{name} {' + '.join(f'{number:,}' for number in rows[name])}" for name in names]
    where = f" in {' + '.join(splits)}" if any(splits) else ""
    return f"{len(names):,} classes, rows{where}: {first(shown)}"


def of_plan(plan: Plan) -> tuple[str, str]:
    """Say before a run what its classes are, and where their labels are from."""
    if manifest.is_committed(plan.preprocess.raw):
        raw = manifest.load(plan.preprocess.raw).statistics_of(RAW)
        return of_counts(raw.class_counts), raw.labels or _PUBLISHED
    assert plan.ingest, "an existing raw dataset is committed"
    if plan.ingest.listing:
        return of_user_images(user_images.read(plan.ingest.listing))
    classes = sources.load(plan.ingest.source).classes
    return f"{len(classes)} classes: {first(classes)}; their rows are counted by the run", _PUBLISHED


def of_raw(raw: Manifest) -> Iterator[str]:
    """Yield a line on the classes of a raw dataset, and one on its labels if they are the user's own."""
    yield of_counts(raw.statistics_of(RAW).class_counts)
    if labels := raw.statistics_of(RAW).labels:
        yield f"labels: {labels}"


def of_user_images(data: UserImages) -> tuple[str, str]:
    """Summarize the user's files; raise `ValueError` if the labels of Parquet files cannot be used."""
    if data.kind == "parquet":
        return _of_parquet(data)
    rows = Counter((file.split, file.label) for file in data.files)
    splits = {split for split, _ in rows}
    counts = {split: {name: rows[split, label] for label, name in enumerate(data.classes)} for split in splits}
    return of_counts(counts), data.labels


def _of_parquet(data: UserImages) -> tuple[str, str]:
    """Read the labels of all files, and nothing else; on S3 of one file, since all would take as long as ingest."""
    if data.uri.is_s3:
        _read_labels(data, next(file for file in data.files if file.split == "train"))
        uncounted = f"counted by the run, which reads the labels of {count(len(data.files), 'file')}"
        return uncounted, data.labels
    files = [_read_labels(data, file) for file in data.files]
    classes = class_names.of_files(files)
    rows: Counter[tuple[str, str]] = Counter()
    for labels in files:
        rows.update({(labels.split, name): number for name, number in labels.counts.items()})
    counts = {split: {name: rows[split, name] for name in classes} for split in {file.split for file in files}}
    return of_counts(counts), class_names.where(data.labels, files, classes)


def _read_labels(data: UserImages, file: UserFile) -> FileLabels:
    """Read the labels of a Parquet file in place; add its name to a `ValueError`."""
    from tasks.images import parquet_files  # imports the decoders of images

    uri = data.uri.child(file.path)
    files.entry(uri)  # pyarrow calls a file missing that it must not read
    try:
        with s3.for_pyarrow().open_input_file(uri.removeprefix("s3://")) if uri.is_s3 else open(uri, "rb") as content:
            return parquet_files.read_labels(parquet_files.opened(content), file)
    except ValueError as error:
        raise ValueError(f"--data: {uri}: {error}") from None
