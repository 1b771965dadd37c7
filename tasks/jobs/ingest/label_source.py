"""Where the labels of a Parquet file are: in a column with a usual name, or in a folder such as `label=cat`."""

import dataclasses
from urllib.parse import unquote

import pyarrow as pa

_NAMES = ("label", "labels", "class", "target", "fine_label")
"""Names of columns and folders with labels, first the one that counts if there are several columns."""
_NULL = "__HIVE_DEFAULT_PARTITION__"
"""Value of a folder for rows without a label, as Hive and Spark write it."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class LabelSource:
    """Labels of one file; neither column nor folder if it has none, as images to predict may."""

    column: str | None = None
    folder: str | None = None
    """Key of the folder, such as `label`."""
    value: str | None = None
    """Label of all rows, as that folder says it; None for rows without a label."""
    unused: tuple[str, ...] = ()
    """Other columns with a usual name."""

    def __str__(self) -> str:
        if not self.column:
            return f"folder {self.folder}="
        return f"column {self.column}" + (f" ({', '.join(self.unused)} not used)" if self.unused else "")

    @property
    def is_known(self) -> bool:
        """Whether the file has labels at all."""
        return bool(self.column or self.folder)


def find(schema: pa.Schema, path: str, *, is_required: bool) -> LabelSource:
    """Return where a file has its labels; raise `ValueError` if that is ambiguous, or it has none but must have."""
    folders = dict(folder.split("=", 1) for folder in path.split("/")[:-1] if "=" in folder)
    keys = [key for key in folders if key.lower() in _NAMES]
    columns = [name for name in _NAMES if name in schema.names and _is_label(schema.field(name).type)]
    if len(keys) + bool(columns) > 1:
        places = [*(f"column {name}" for name in columns[:1]), *(f"folder {key}=" for key in keys)]
        raise ValueError(f"labels are in {' and in '.join(places)}; keep one, and rename the other")
    if columns:
        return LabelSource(column=columns[0], unused=tuple(columns[1:]))
    if keys:
        value = unquote(folders[keys[0]])
        return LabelSource(folder=keys[0], value=None if value == _NULL else value)
    if not is_required:
        return LabelSource()
    if unusable := next((name for name in _NAMES if name in schema.names), None):
        raise ValueError(
            f"column {unusable} has neither whole numbers nor text, but {schema.field(unusable).type}; convert it"
        )
    others = f" and the folders {', '.join(f'{key}=' for key in folders)}" if folders else ""
    raise ValueError(
        f"there must be a column of labels (whole numbers or text) called {', '.join(_NAMES[:-1])} or {_NAMES[-1]}, or "
        f"folders label=<class>; the columns are {describe(schema)}{others}: rename the one with the labels to label"
    )


def describe(schema: pa.Schema) -> str:
    """List the columns and their types."""
    return ", ".join(f"{field.name} ({field.type})" for field in schema)


def _is_label(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return any(is_one(kind) for is_one in (pa.types.is_integer, pa.types.is_string, pa.types.is_large_string))
