"""The same work in two ways, side by side: the pipeline and a hand-written script."""
