"""Predicted probabilities: how good they are, and whether they are calibrated."""
