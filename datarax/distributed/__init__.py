"""Reductions of arrays: over global arrays, or over the devices along a bound axis."""

from datarax.distributed.comparison import check_same as check_same
from datarax.distributed.metrics import all_gather as all_gather
from datarax.distributed.metrics import collect_from_devices as collect_from_devices
from datarax.distributed.metrics import reduce_custom as reduce_custom
from datarax.distributed.metrics import reduce_custom_collective as reduce_custom_collective
from datarax.distributed.metrics import reduce_max as reduce_max
from datarax.distributed.metrics import reduce_max_collective as reduce_max_collective
from datarax.distributed.metrics import reduce_mean as reduce_mean
from datarax.distributed.metrics import reduce_mean_collective as reduce_mean_collective
from datarax.distributed.metrics import reduce_min as reduce_min
from datarax.distributed.metrics import reduce_min_collective as reduce_min_collective
from datarax.distributed.metrics import reduce_sum as reduce_sum
from datarax.distributed.metrics import reduce_sum_collective as reduce_sum_collective
from datarax.distributed.placement import global_batch as global_batch
