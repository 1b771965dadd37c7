"""Export: a model as a file that other programs run, with the proof that it gives what the model gives."""

import json

import torch
from prefect import task

from storage import commits, manifest
from storage.kinds import PREPARED, ExportURI
from storage.statistics import ExportStatistics, Proof
from tasks.exporting import card, onnx_file
from tasks.exporting.proof import prove
from tasks.learning.inference import Inference
from tasks.orchestration.prefect_options import task_options
from tasks.orchestration.stage import logger, make_once
from tasks.stages import Export


@task(name="export", **task_options)
def export(stage: Export) -> ExportURI:
    """Export a checkpoint unless that is done; raise `NotExportable` or `NotEqual`, with nothing committed."""
    return make_once(stage, lambda: _write(stage))


def _write(stage: Export) -> None:
    checkpoint, prepared, target = stage.checkpoint, stage.prepared, stage.target
    trained, dataset = manifest.load(checkpoint), manifest.load(prepared)
    reference = Inference(checkpoint, threads=torch.get_num_threads(), device=torch.device("cpu"), precision="fp32")
    model = reference.model.requires_grad_(False)
    outputs = onnx_file.Outputs(model)
    content = onnx_file.write(outputs, {"classes": json.dumps(model.classes), "checkpoint": checkpoint.name})
    logger().info("comparing the exported file with the model on %s test rows", f"{dataset.num_rows('test'):,}")
    in_fp32 = lambda images: [output.numpy() for output in outputs(images)]  # noqa: E731
    proof = prove(onnx_file.load(content), in_fp32, prepared, classes=model.classes)
    texts = {"README.md": card.render(checkpoint, proof)}
    if code := card.preprocess(model.image_shape):
        texts["preprocess.py"] = code
    files = {onnx_file.FILE: content} | {path: text.encode() for path, text in texts.items()}
    commits.commit(
        target,
        kind="export",
        parents={"checkpoint": trained.as_parent(checkpoint), "prepared": dataset.as_parent(prepared)},
        parameters={},
        listed=[commits.write_file(target, path, content, fixed_name=True) for path, content in files.items()],
        statistics=ExportStatistics(
            **proof.scores,
            notice=dataset.statistics_of(PREPARED).notice,
            proof=Proof(rows=proof.rows, largest_difference=proof.largest_difference),
        ),
    )
