"""Reports of what no small run has: many classes, many rows, slices, and any text."""

import dataclasses
from typing import Any

import numpy as np
import pandas as pd
from pydantic import BaseModel

from storage.uri import URI
from tasks.learning import metrics, slices
from tasks.report_page import ReportData


def of_classes(data: ReportData, classes: tuple[str, ...], *, channels: int = 1) -> ReportData:
    """`data` with 10,000 test rows of `classes`, of which most are right, and pictures and training rows of them."""
    generator, side = np.random.default_rng(0), 28 if channels == 1 else 64
    labels, confidence = np.arange(10_000) % len(classes), 1 - 0.3 * generator.random(10_000) ** 4
    is_right = generator.random(10_000) < confidence
    answers = np.where(is_right, labels, (labels + 1) % len(classes))
    counts = metrics.confusion(labels, answers, num_classes=len(classes))
    scores = metrics.scores(labels, answers, num_classes=len(classes))
    scores |= {"test_loss": 0.0231, "expected_calibration_error": 0.0147, "num_rows": 10_000}
    pictures = list(generator.integers(0, 256, (16, side, side, channels), np.uint8))
    sizes = {name: 3000 // (number + 2) for number, name in enumerate(classes)}
    evaluated: dict[str, Any] = {
        "metrics": scores,
        "untempered": scores | {"test_loss": 0.0222, "expected_calibration_error": 0.0131},
        "per_class": metrics.per_class(counts, classes),
        "confusion": counts.tolist(),
        "calibration": metrics.calibration(is_right, confidence),
        "coverage": metrics.coverage(is_right, confidence),
        "slices": {"slices": []},
    }
    return dataclasses.replace(
        data,
        classes=classes,
        evaluated=evaluated,
        mistakes=tuple(
            {
                "image": image,
                "label": classes[number % len(classes)],
                "prediction": classes[(number + 1) % len(classes)],
                "probability": float(confidence[number]),
                "id": number,
                "name": f"test row {number}",
            }
            for number, image in enumerate(pictures)
        ),
        class_counts=dict.fromkeys(("train", "validation", "test"), sizes),
        class_samples=dict.fromkeys(classes[:96], pictures[: max(1, min(6, 96 // len(classes)))]),
    )


def with_slices(data: ReportData, camera: str) -> ReportData:
    """`data` with slices of 440 test rows; those of `camera` are worse."""
    known = pd.DataFrame({"camera": [camera] * 40 + ["none"] * 400, "folder": ["rare", *"ab" * 219, "a"]})
    found = slices.find(known, np.zeros(440, int), np.arange(440) > 20)
    return with_evaluated(data, slices={"slices": [each.model_dump() for each in found]})


def with_evaluated(data: ReportData, **changes: Any) -> ReportData:
    """`data` with other files of the evaluation."""
    return dataclasses.replace(data, evaluated=data.evaluated | changes)


def with_decision(data: ReportData, **changes: Any) -> ReportData:
    """`data` with other fields of the decision."""
    return dataclasses.replace(data, decision=data.decision.model_copy(update=changes))


def with_text(value: Any, text: str) -> Any:
    """`value` with `text` in place of every text in it, but for URIs and names of fields."""
    if isinstance(value, str):
        return value if isinstance(value, URI) else text
    if isinstance(value, tuple | list):
        return type(value)(with_text(each, text) for each in value)
    if isinstance(value, dict):
        return {name: with_text(each, text) for name, each in value.items()}
    if isinstance(value, BaseModel):
        return value.model_copy(update=with_text(vars(value), text))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.replace(value, **with_text(vars(value), text))
    return value
