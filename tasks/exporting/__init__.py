"""Export of a model to a file that other programs run: its forms, the proof on every test row, and the model card."""
