"""Export of a model to ONNX, which other programs run: its file, the proof on every test row, and a README."""
