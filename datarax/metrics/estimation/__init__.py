"""Estimates that rest on a model or on an assumption: ratings, and statistics of an evaluation."""
