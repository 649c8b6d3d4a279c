"""Adjusts several p-values, and finds the difference that an evaluation can detect."""

from datarax.uncertainty.significance import adjust as adjust
from datarax.uncertainty.significance import detectable_difference as detectable_difference
