"""Metrics that hold other metrics."""

from datarax.wrappers.bootstrap import Bootstrap as Bootstrap
from datarax.wrappers.collection import Collection as Collection
from datarax.wrappers.compare import Compare as Compare
from datarax.wrappers.per_device import per_device as per_device
from datarax.wrappers.sliced import Sliced as Sliced
