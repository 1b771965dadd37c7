"""The ONNX file of a model: how it is written, and how it is run. Images in (uint8, BHWC), probabilities out.

A second output is the embedding, what the last layer of the head is given; only a user's own model may have no head.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from storage.error_policy import Permanent
from tasks.learning.inference import Model
from tasks.learning.modeling import head_layer

FILE = "model.onnx"
INPUT, OUTPUTS = "images", ("probabilities", "embedding")
OPSET, IR_VERSION = 18, 8
"""Of ONNX 1.13, the oldest that torch writes. ONNX Runtime 1.16.3 and 1.20.1 have read them."""
_LARGEST = 2**31 - 2**24
"""Bytes of weights that fit into one ONNX file of 2 GiB, with room for the graph."""


class NotExportable(Permanent, ValueError):
    """The model cannot be exported."""


class Outputs(nn.Module):
    """Module from images to all outputs of `model`: (N, classes) and (N, dimensions)."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model, classifier = model, model.classifier
        self._last_layers = list[nn.Module]()
        with contextlib.suppress(ValueError):
            self._last_layers.append(head_layer(classifier.probe or classifier.backbone))

    def forward(self, images: Tensor | np.ndarray) -> tuple[Tensor, ...]:
        given = list[Tensor]()
        hooks = [
            layer.register_forward_pre_hook(lambda _, inputs: given.append(inputs[0].flatten(1)))
            for layer in self._last_layers
        ]
        probabilities = self.model(images)
        for hook in hooks:
            hook.remove()
        return probabilities, *given


def write(outputs: Outputs, facts: Mapping[str, str]) -> bytes:
    """Return the content of the exported file; raise `NotExportable` with the reason if that is not possible.

    Args:
        outputs: Of a model; exported in fp32, on the CPU, for any number of images.
        facts: Texts that the file carries.
    """
    import onnx

    size = sum(tensor.nbytes for tensor in outputs.state_dict().values())
    if size > _LARGEST:
        raise NotExportable(f"an ONNX file holds at most 2 GiB of weights, got {size / 2**30:.1f}; use a smaller model")
    example = torch.zeros(2, *outputs.model.image_shape, dtype=torch.uint8)
    with _reasons("its code cannot be traced for any number of images"):
        program = torch.export.export(outputs, (example,), dynamic_shapes=({0: torch.export.Dim("batch")},))
    with _reasons("ONNX cannot express its code; use another architecture"):
        names = OUTPUTS[: len(outputs(example))]
        exported = torch.onnx.export(
            program, input_names=[INPUT], output_names=names, dynamo=True, opset_version=OPSET, verbose=False
        )
    assert exported is not None  # only without dynamo
    proto = exported.model_proto
    proto.ir_version, graph = IR_VERSION, proto.graph
    for part in (graph, *graph.node, *graph.input, *graph.output, *graph.initializer):
        del part.metadata_props[:]  # paths and code of this machine
    del graph.value_info[:]
    for value in (*graph.input, *graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = "batch"
    onnx.helper.set_model_props(proto, dict(facts))
    return bytes(proto.SerializeToString(deterministic=True))


def load(content: bytes, *, threads: int = 0) -> Callable[[np.ndarray], Sequence[np.ndarray]]:
    """Return the exported model as a function from images to its outputs, on the CPU, without this project's code.

    It computes in so many threads; 0: one per core.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # torch computes in between
    session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    return lambda images: list(session.run(None, {INPUT: images}))


@contextlib.contextmanager
def _reasons(what: str) -> Iterator[None]:
    try:
        yield
    except (MemoryError, Permanent):
        raise
    except Exception as error:  # torch raises nearly any error for code that it cannot trace
        lines = str(error).strip().splitlines() or [""]
        raise NotExportable(f"the model cannot be exported: {what}: {type(error).__name__}: {lines[0]}") from None
