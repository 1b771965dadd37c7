"""Request for an export, resolved and checked before anything slow starts."""

import dataclasses
import importlib.util

from storage import kinds, manifest
from storage.admin import catalog
from storage.uri import CheckpointURI, DatasetURI, ExportURI, Root
from tasks.learning import user_code
from tasks.planning import model_check
from tasks.planning.data_option import check_committed
from tasks.planning.make_plan import check_root
from tasks.planning.result_uris import result_of


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExportRequest:
    """A checked request for an export; the same request gives the same URIs."""

    root: Root
    checkpoint: CheckpointURI
    prepared: DatasetURI
    """The dataset of its training, on whose test rows the export is proven."""
    export: ExportURI


def resolve(*, storage: str, model: str) -> ExportRequest:
    """Check and resolve a request; raise `ValueError` naming the option, the value and the next step."""
    root = check_root(storage)
    checkpoint = CheckpointURI(catalog.named(root, model, option="model"))
    trained = check_committed("model", checkpoint, kinds=("checkpoint",))
    prepared = DatasetURI(trained.parent("prepared", of=checkpoint))
    name = checkpoint.name.rpartition("-")[0]
    export = result_of(kinds.EXPORT, root, name=name, parents=[checkpoint, prepared], parameters={})
    if not manifest.is_committed(export):
        _check_possible(checkpoint, prepared)
    return ExportRequest(root=root, checkpoint=checkpoint, prepared=prepared, export=export)


def _check_possible(checkpoint: CheckpointURI, prepared: DatasetURI) -> None:
    try:
        rows = manifest.load(prepared).split("test")
    except FileNotFoundError:
        raise ValueError(
            f"model: an export of {checkpoint} cannot be proven, since {prepared}, whose test rows are needed, was "
            "deleted; run its pipeline again"
        ) from None
    if not any(file.rows for file in rows):
        raise ValueError(f"model: an export of {checkpoint} cannot be proven, since {prepared} has no test rows")
    user_code.check_listed()
    model_check.check_code(checkpoint, option="model")
    for name in ("onnx", "onnxruntime", "onnxscript"):
        if importlib.util.find_spec(name) is None:
            raise ValueError(f'export needs {name}: pip install "data-to-model[onnx]"')
