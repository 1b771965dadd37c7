"""Labels from a table: a CSV or Parquet file with the path and the label of each image."""

import csv
import dataclasses
import io
import posixpath
from collections import defaultdict
from collections.abc import Mapping, Sequence

import pyarrow as pa

from storage import files, tables
from storage.terminal import count, first
from storage.uri import URI, parse_root
from tasks.images.class_names import is_missing, normal
from tasks.images.layout import VALIDATION, Layout, checked_classes, split_in

_USUAL = {"path": ("file", "filename", "file_name", "path", "image"), "label": ("label", "class"), "split": ("split",)}
"""Names of the columns, in any case, unless the user gives others."""
_MOST_PROBLEMS = 0.01
"""Largest share of rows and files that do not fit each other."""
OPTION = "--labels"


@dataclasses.dataclass(frozen=True)
class Row:
    """One row of a table, as it is written there."""

    path: str
    label: str
    split: str = ""


@dataclasses.dataclass(frozen=True)
class Table:
    """A table, and the columns with path, label and perhaps split; none: those with usual names."""

    uri: URI
    columns: tuple[str, ...] = ()

    @classmethod
    def of(cls, word: str) -> "Table":
        """Return the table that an option's value names: `labels.csv`, or `labels.csv:PATH,LABEL[,SPLIT]`."""
        file, _, columns = word.rpartition(":")
        if "," in columns and "/" not in columns:
            return cls(parse_root(file, option=OPTION), tuple(columns.split(",")))
        return cls(parse_root(word, option=OPTION))

    def __str__(self) -> str:
        return ":".join([self.uri, *[",".join(self.columns)] * bool(self.columns)])


def read(table: Table) -> list[Row]:
    """Read the rows of a table; raise `ValueError` if it is none."""
    uri = table.uri
    try:
        content = files.read(uri)
    except (FileNotFoundError, IsADirectoryError):
        raise ValueError(f"there is no such file: {uri}") from None
    try:
        values = _table(content, is_parquet=uri.endswith(".parquet"))
    except (pa.ArrowException, ValueError, csv.Error) as error:
        reason = " ".join(str(error).split())
        raise ValueError(f"it cannot be read as {uri.rpartition('.')[2]}: {reason}") from None
    columns = [_values(values[name]) for name in _columns(table, values.column_names)]
    return [Row(*values) for values in zip(*columns, strict=True)]


def layout_of(table: Table, rows: Sequence[Row], paths: Sequence[str], *, uri: URI) -> Layout:
    """Return split and class of each image by its row; `paths` are those of all images below `uri`.

    Files without a label or with two labels are left out. Raises `ValueError` if these, rows without a file and second
    rows are more than 1% of all, or if the classes cannot be learned.
    """
    path_of, problems = {normal(path): path for path in paths}, defaultdict[str, list[str]](list)
    rows_of = defaultdict[str, list[Row]](list)
    for row in rows:
        path = _relative(row.path, uri)
        if path in path_of:
            rows_of[path_of[path]].append(row)
        else:
            reason = "rows without a file" if path else "rows with a path outside of --data"
            problems[reason].append(row.path)
    for path in paths:
        labels = {row.label.strip() for row in rows_of[path]}
        if not labels or any(map(is_missing, labels)):
            problems["files without a label"].append(path)
        elif len(labels) > 1:
            problems["files with two labels"].append(path)
        elif len(rows_of[path]) > 1:
            problems["second rows with the same label"].append(path)
    if sum(map(len, problems.values())) > _MOST_PROBLEMS * max(len(rows), len(paths)):
        each = "; ".join(f"{len(names):,} {reason} ({first(names, 3)})" for reason, names in problems.items())
        raise ValueError(
            f"its {count(len(rows), 'row')} and the {count(len(paths), 'image')} below {uri} differ by more than 1%: "
            f"{each}; correct the table, whose paths are relative to --data, or name the folder that it is about"
        )
    unused = {
        path for reason in ("files without a label", "files with two labels") for path in problems.get(reason, ())
    }
    row_of = {path: rows_of[path][0] for path in paths if path not in unused}
    return _layout(table, row_of, problems)


def _layout(table: Table, row_of: Mapping[str, Row], left_out: dict[str, list[str]]) -> Layout:
    names = {row.split.strip() for row in row_of.values()}
    split_of = {name: (split_in(name) or ("", ""))[1] for name in names}
    if names != {""} and (unknown := sorted(name for name, split in split_of.items() if not split)):
        raise ValueError(f"column split must name train or test in every row, got {first(map(repr, unknown))}")
    splits = {path: split_of[row.split.strip()] for path, row in row_of.items()}
    if validation := [path for path, split in splits.items() if split == "validation"]:
        left_out[VALIDATION] = validation
        splits = {path: split for path, split in splits.items() if split != "validation"}
    if names != {""} and (missing := {"train", "test"} - set(splits.values())):
        raise ValueError(f"column split names {first(sorted(missing))} in no row; or omit the column")
    class_of = {path: normal(row_of[path].label.strip()) for path in splits}
    folders = dict.fromkeys(("train", "test") if names != {""} else ("",), str(table))
    classes = checked_classes(splits, class_of, folders)
    return Layout(splits=splits, class_of=class_of, classes=classes, where=f"the table {table}", left_out=left_out)


def _relative(path: str, uri: URI) -> str | None:
    """Return the normal form of a path in a table, relative to `uri`; None if it is outside."""
    plain = normal(path.strip().replace("\\", "/")).removeprefix(f"{uri}/")
    inside = posixpath.normpath(plain)
    return None if inside.startswith(("../", "/")) or inside == ".." or "://" in plain else inside


def _table(content: bytes, *, is_parquet: bool) -> pa.Table:
    if is_parquet:
        return tables.open_parquet(pa.BufferReader(content)).read()
    import pandas  # takes a second

    text = io.StringIO(content.decode("utf-8-sig"))
    return pa.Table.from_pandas(pandas.read_csv(text, sep=None, engine="python", dtype=str, keep_default_na=False))


def _values(column: pa.ChunkedArray) -> list[str]:
    return [value or "" for value in column.cast(pa.string()).to_pylist()]


def _columns(table: Table, present: Sequence[str]) -> list[str]:
    """Return the columns with path, label and, if there is one, split."""
    if names := table.columns:
        if len(names) > len(_USUAL) or not {*names} <= {*present}:
            raise ValueError(f"the columns are {', '.join(present)}, got {', '.join(names)}")
        return list(names)
    found = []
    for what, usual in _USUAL.items():
        its = [name for name in present if name.strip().lower() in usual]
        if len(its) > 1 or (not its and what != "split"):
            raise ValueError(
                f"there must be one column with the {what}, such as {usual[0]}, got "
                f"{', '.join(its or present)}; name the columns: {OPTION} {table.uri}:PATH,LABEL"
            )
        found += its
    return found
