"""Forms of an exported model: how each is written, and how it is run. Images in (uint8, BHWC), probabilities out."""

import contextlib
import io
from collections.abc import Callable, Iterator, Mapping
from importlib import metadata
from typing import Any

import numpy as np
import torch
from torch.export import ExportedProgram

from storage.error_policy import Permanent
from tasks.exporting import Format
from tasks.learning.inference import Model

FILE_NAMES: Mapping[Format, str] = {"onnx": "model.onnx", "torch": "model.pt2"}
INPUT, OUTPUT = "images", "probabilities"
_LARGEST = 2**31 - 2**24
"""Bytes of weights that fit into one ONNX file of 2 GiB, with room for the graph."""
_ORIGIN = ("stack_trace", "nn_module_stack", "source_fn_stack", "from_node")
"""What torch notes about a node's code, with paths of this machine."""


class NotExportable(Permanent, ValueError):
    """The model cannot be exported in this format."""


def write(model: Model, form: Format, facts: Mapping[str, str]) -> bytes:
    """Return the content of the exported file; raise `NotExportable` with the reason if that is not possible.

    Args:
        model: Exported in fp32, on the CPU, for any number of images.
        form: Format of the file.
        facts: Texts that the file carries.
    """
    size = sum(tensor.nbytes for tensor in model.state_dict().values())
    if form == "onnx" and size > _LARGEST:
        raise NotExportable(f"--format onnx holds at most 2 GiB of weights, got {size / 2**30:.1f}; use --format torch")
    program = _captured(model)
    if form == "onnx":
        return _as_onnx(program, facts)
    content = io.BytesIO()
    torch.export.save(program, content, extra_files=dict(facts))
    return content.getvalue()


def load(content: bytes, form: Format) -> Callable[[np.ndarray], np.ndarray]:
    """Return the exported model as a function from images to probabilities, on the CPU, without this project's code."""
    if form == "torch":
        module = torch.export.load(io.BytesIO(content)).module()
        return lambda images: np.asarray(module(torch.from_numpy(images.copy())).numpy())
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # torch computes in between
    session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    return lambda images: np.asarray(session.run([OUTPUT], {INPUT: images})[0])


def versions(form: Format) -> dict[str, str]:
    """Return the versions of the packages that write and run the format."""
    packages = {"onnx": ("torch", "onnx", "onnxscript", "onnxruntime"), "torch": ("torch",)}
    return {package: metadata.version(package) for package in packages[form]}


def _captured(model: Model) -> ExportedProgram:
    model.precision = "fp32"
    example = torch.zeros(2, *model.image_shape, dtype=torch.uint8)
    with _reasons("its code cannot be traced for any number of images"):
        program = torch.export.export(model, (example,), dynamic_shapes=({0: torch.export.Dim("batch")},))
    for node in program.graph.nodes:
        for key in _ORIGIN:
            node.meta.pop(key, None)
    return program


def _as_onnx(program: ExportedProgram, facts: Mapping[str, str]) -> bytes:
    import onnx

    with _reasons("ONNX cannot express its code; use --format torch"):
        exported = torch.onnx.export(
            program, dynamo=True, input_names=[INPUT], output_names=[OUTPUT], external_data=False, verbose=False
        )
    assert exported is not None  # only without dynamo
    proto: Any = exported.model_proto
    graph = proto.graph
    for part in (graph, *graph.node, *graph.input, *graph.output, *graph.initializer):
        del part.metadata_props[:]  # paths and code of this machine
    del graph.value_info[:]
    for value in (*graph.input, *graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = "batch"
    onnx.helper.set_model_props(proto, dict(facts))
    return bytes(proto.SerializeToString(deterministic=True))


@contextlib.contextmanager
def _reasons(what: str) -> Iterator[None]:
    try:
        yield
    except (MemoryError, Permanent):
        raise
    except Exception as error:  # torch raises nearly any error for code that it cannot trace
        lines = str(error).strip().splitlines() or [""]
        raise NotExportable(f"the model cannot be exported: {what}: {type(error).__name__}: {lines[0]}") from None
