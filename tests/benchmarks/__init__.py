"""The same work in two ways, side by side: this project's and a hand-written script's."""
