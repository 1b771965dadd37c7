"""Results that no stage made: any files, with statistics such as the stage records."""

from collections.abc import Mapping, Sequence
from typing import Any

from storage import commits
from storage.kinds import KINDS
from storage.manifest import File, Manifest, Parent
from storage.statistics import Resolved, SplitRule, Statistics
from storage.uri import URI
from tasks.learning import recipes

HARDWARE = "fp32 on cpu: EPYC, AVX2, avx, torch 2.14.1"
SOURCE = {"name": "images.gz", "sha256": "ab" * 32, "md5": "cd" * 16, "url": "https://mirror.example/images.gz"}
_SPLIT: dict[str, Any] = {"split_seed": 0, "validation_fraction": 0.1, "group": "none", "store": "pixels"}
MODEL = {
    "model": "small-cnn",
    "image_shape": (28, 28, 1),
    "classes": tuple("0123456789"),
    "mean": (0.0,),
    "std": (1.0,),
}
RESOLVED = Resolved(batch_size=128, class_weights="none", device="cpu", precision="fp32", threads=1, workers=1)
ENDED: dict[str, Any] = {"split": SplitRule(**_SPLIT), "loader": "resident", "seconds": 7.5}
"""What `attempts.commit` is told besides the checkpoints."""
_IMAGES: dict[str, Any] = {"notice": None, "seconds": 3.4}
_RAN: dict[str, Any] = {"temperature": 1.0, "hardware": (HARDWARE,), "is_reproducible": True, "seconds": 7.5}
_SCORES = {"test_accuracy": 0.987654321, "balanced_accuracy": 0.876543211, "macro_f1": 0.765432111}
_USUAL: dict[str, dict[str, Any]] = {
    "files": {"sources": (SOURCE,), "seconds": 1.2},
    "raw": _IMAGES | {"sources": (SOURCE,), "labels": "", "class_counts": {}},
    "prepared": _IMAGES
    | {
        "class_counts": {},
        "mean": (0.0,),
        "std": (1.0,),
        "quarantined": {},
        "split": _SPLIT,
        "test_rows_in_train": {"count": 0, "ids": ()},
        "images_in_two_classes": {"count": 0, "rows": 0, "named": ()},
        "near_duplicates": None,
    },
    "checkpoint": _RAN
    | {
        "best_epoch": 1,
        "history": (),
        "model": MODEL,
        "stopped_early": False,
        "resolved": vars(RESOLVED),
        "recipe": recipes.load("mnist-sample-resnet18").to_dict(),
        "split": _SPLIT,
        "loader": "resident",
    },
    "predictions": _RAN | {"predicted": {}, "unpredicted": 0, "reused_parts": 0, "notice": None},
    "evaluation": _SCORES | {"test_loss": 1.0, "expected_calibration_error": 0.0, "num_rows": 100, "notice": None},
    "report": {
        "registered_model": "digits",
        "recipe": "digits-resnet18",
        "data": "digits",
        "dataset": "digits",
        "changes": {},
        "settings": {"epochs": 3},
        "seconds": 75.0,
    },
    "export": _SCORES | {"proof": {"rows": 100, "largest_difference": 1e-7}, "notice": None},
    "audit": {"rows": 100, "notice": None},
}


def statistics(kind: str, **changes: Any) -> Statistics:
    """Statistics of a result of `kind`, with `changes`."""
    usual = _USUAL[kind]
    merged = {name: usual[name] | value for name, value in changes.items() if isinstance(value, dict) and name in usual}
    made: Statistics = KINDS[kind].statistics.model_validate(usual | changes | merged)
    return made


def commit(
    uri: URI,
    kind: str,
    listed: Sequence[File] = (),
    *,
    parents: Mapping[str, URI | Parent] | None = None,
    parameters: Mapping[str, Any] | None = None,
    schema: Mapping[str, Any] | None = None,
    **changes: Any,
) -> Manifest:
    """Commit `uri` with these files, and with `changes` of its usual statistics."""
    return commits.commit(
        uri,
        kind=kind,
        parents=parents or {},
        parameters=parameters or {},
        listed=listed,
        schema=schema,
        statistics=statistics(kind, **changes),
    )
