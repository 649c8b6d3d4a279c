"""Curves over all thresholds, the areas under them, and points on them."""
