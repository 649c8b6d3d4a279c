"""For tests: the laws that every metric must obey, and comparison in units in the last place."""

from datarax.testing.laws import check_metric as check_metric
from datarax.testing.ulps import assert_within_ulps as assert_within_ulps
