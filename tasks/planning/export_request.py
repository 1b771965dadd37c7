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
    request = ExportRequest(root=root, checkpoint=checkpoint, prepared=prepared, export=export)
    if manifest.is_committed(export):
        return request
    recorded = manifest.find(prepared)
    if not recorded or not any(file.rows for file in recorded.split("test")):
        raise ValueError(
            f"model: an export of {checkpoint} cannot be proven, since {prepared} "
            f"{'has no test rows' if recorded else 'was deleted'}; run its pipeline again"
        )
    user_code.check_listed()
    model_check.check_code(checkpoint, option="model")
    for name in ("onnx", "onnxruntime", "onnxscript"):
        if importlib.util.find_spec(name) is None:
            raise ValueError(f'export needs {name}: pip install "data-to-model[onnx]"')
    return request
