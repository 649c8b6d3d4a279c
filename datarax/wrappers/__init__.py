"""Metrics that hold other metrics."""

from datarax.wrappers.collection import Collection as Collection
from datarax.wrappers.decayed import Decayed as Decayed
from datarax.wrappers.multi_output import MultiOutput as MultiOutput
from datarax.wrappers.per_device import per_device as per_device
from datarax.wrappers.sliced import Sliced as Sliced
from datarax.wrappers.window import Window as Window
