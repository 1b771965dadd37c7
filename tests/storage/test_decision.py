"""Difference of two models' accuracies: printed, and stored."""
