"""Evaluating predictions that are in files: on this machine, or on the workers of an executor."""
