"""Arithmetic that does not drift."""

from datarax.numerics.double_float import *  # noqa: F403
