"""What to do with several p-values, and how large a difference an evaluation can find."""

from datarax.uncertainty.significance import adjust as adjust
from datarax.uncertainty.significance import detectable_difference as detectable_difference
