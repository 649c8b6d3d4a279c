"""Predictions of real numbers: errors, explained variance and correlation."""
