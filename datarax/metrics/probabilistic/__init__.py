"""Predicted probabilities and distributions: how good they are, and how well calibrated."""
