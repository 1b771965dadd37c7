"""Comparing: the results of a run, what its model gets wrong, and what is different in another run."""
