"""Metrics that hold other metrics."""

from datarax.wrappers.best import Best as Best
from datarax.wrappers.bootstrap import Bootstrap as Bootstrap
from datarax.wrappers.classwise import Classwise as Classwise
from datarax.wrappers.collection import Collection as Collection
from datarax.wrappers.compare import Compare as Compare
from datarax.wrappers.interval import Interval as Interval
from datarax.wrappers.multi_output import MultiOutput as MultiOutput
from datarax.wrappers.multi_task import MultiTask as MultiTask
from datarax.wrappers.per_device import per_device as per_device
from datarax.wrappers.run_health import health as health
from datarax.wrappers.sliced import Sliced as Sliced
from datarax.wrappers.transformed import Transformed as Transformed
from datarax.wrappers.window import Decayed as Decayed
from datarax.wrappers.window import Window as Window
