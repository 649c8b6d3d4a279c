"""Metrics that hold other metrics."""

from datarax.wrappers.collection import Collection as Collection
from datarax.wrappers.per_device import per_device as per_device
from datarax.wrappers.run_health import health as health
