"""Figures of metrics, from computed values."""
