"""Job: write one prediction part for each part of a dataset."""
