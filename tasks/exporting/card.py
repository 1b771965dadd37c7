"""The texts beside an exported model: its README, and `preprocess.py` for photos."""

from pathlib import Path

from storage import manifest
from storage.kinds import CHECKPOINT, CheckpointURI
from tasks.exporting.onnx_file import FILE
from tasks.exporting.proof import Proof

_MODES = {1: "L", 3: "RGB"}
"""Pillow's names for the pixels that `preprocess.py` makes, by number of channels."""
_README = """\
# {name}

{architecture}, trained for {num_classes} classes. Needs `pip install "onnxruntime>=1.16" "pillow>=11.3" numpy`.

```python
import json

import onnxruntime
from preprocess import preprocess  # the file beside {file}

session = onnxruntime.InferenceSession("{file}")
classes = json.loads(session.get_modelmeta().custom_metadata_map["classes"])
(probabilities,) = session.run(["probabilities"], {{"images": preprocess("photo.jpg")}})
print(classes[probabilities[0].argmax()], probabilities[0].max())
```

- Input `images`: uint8, (N, {shape}), channels last. Output `probabilities`: float32, (N, {num_classes}).
- Output `embedding`, if there is one: float32, what the last layer of the model's head is given.
- On all {rows:,} test rows: accuracy {test_accuracy:.4f}, macro F1 {macro_f1:.4f}.
- It is equal to the model computed in fp32: on these rows the largest difference of a probability is
  {difference:.1e}. Rows of another class: {others:,}, each between two classes that are nearly as likely.
- The run judged the model in {precision}. In bf16 the last digits differ, and so do classes that are nearly as likely.
- Made from the checkpoint {name} with the manifest {digest}.
"""


def render(checkpoint: CheckpointURI, proof: Proof) -> str:
    trained = manifest.load(checkpoint)
    recorded = trained.statistics_of(CHECKPOINT)
    model = recorded.model
    return _README.format(
        name=checkpoint.name,
        architecture=model.model,
        num_classes=len(model.classes),
        file=FILE,
        shape=", ".join(map(str, model.image_shape)),
        rows=proof.rows,
        difference=proof.largest_difference,
        others=proof.num_others,
        precision=recorded.resolved.precision,
        digest=trained.digest,
        **proof.scores,
    )


def preprocess(image_shape: tuple[int, int, int]) -> str | None:
    """Return the code of `preprocess.py` for images of this shape; none if photos have no such channels."""
    height, width, channels = image_shape
    if channels not in _MODES:
        return None
    code, usual = Path(__file__).with_name("preprocess.py").read_text(), '"RGB", (64, 64)'
    assert code.count(usual) == 1
    return code.replace(usual, f'"{_MODES[channels]}", ({width}, {height})')
