"""The fault suite: real runs, struck at exact points, and a checker that compares them with one that was not."""
