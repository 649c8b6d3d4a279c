"""For tests: the laws of metrics, the audit of any procedure, comparison of last places."""

from datarax._errors import AuditError as AuditError
from datarax.testing.auditing import AuditReport as AuditReport
from datarax.testing.auditing import audit as audit
from datarax.testing.laws import check_metric as check_metric
from datarax.testing.ulps import assert_within_ulps as assert_within_ulps
