"""Clusterings compared with classes or by their own shape, and nominal association."""
