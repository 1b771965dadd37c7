"""Request for an export, resolved and checked before anything slow starts."""

import importlib.util

from storage import manifest
from storage.admin import catalog
from storage.uri import CheckpointURI, DatasetURI
from tasks.learning import user_code
from tasks.planning import model_check
from tasks.planning.make_plan import check_root
from tasks.stages import Export


def resolve(*, storage: str, model: str) -> Export:
    """Check and resolve a request; raise `ValueError` naming the option, the value and the next step."""
    root = check_root(storage)
    checkpoint = CheckpointURI(catalog.named(root, model, option="model"))
    trained = catalog.committed(checkpoint, option="model", kinds=("checkpoint",))
    prepared = DatasetURI(trained.parent("prepared", of=checkpoint))
    request = Export(root=root, checkpoint=checkpoint, prepared=prepared)
    if manifest.is_committed(request.target):
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
