"""Export of a model to a file that other programs run: its forms, the proof on every test row, and the model card."""

from typing import Literal, get_args

Format = Literal["onnx", "torch"]
FORMATS: tuple[Format, ...] = get_args(Format)
