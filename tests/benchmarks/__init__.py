"""Three ways to do the same work, side by side: this project's, a hand-written script's, and a notebook's."""
