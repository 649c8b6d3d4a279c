"""With x64 enabled, by the environment or after the import, everything is natively 64 bits."""

import os
import subprocess
import sys

import pytest

PROGRAM = """
import jax
import numpy as np
import datarax
from datarax.metrics import Accuracy, Max, Mean, Std, Sum
from datarax.statistics import Moments

class Ratio(datarax.Metric):
    hits = datarax.MetricAccumulator(0)
    spread = Moments()
    def update(self, x):
        return self.replace(hits=self.hits.update(x), spread=self.spread.update(x))
    def compute(self):
        return self.hits.value / self.spread.count

before = datarax.MetricAccumulator(0).update(2**40)
SWITCH
import jax.numpy as jnp
assert jnp.zeros(()).dtype == np.float64

acc = datarax.MetricAccumulator(0).update(jnp.asarray([2**62, 2**61])).update(-5)
assert acc.value.dtype == np.int64 and int(acc.value) == 2**62 + 2**61 - 5
assert len(jax.tree.leaves(acc)) == 1
assert int(datarax.MetricAccumulator(2**62).update(1).value) == 2**62 + 1
peak = datarax.MetricAccumulator(np.int64(0), "max").update(2**40)
assert peak.value.dtype == np.int64 and int(peak.value) == 2**40
# One made before the switch holds two words, and is as exact.
assert int(before.update(np.asarray([2**41, 7])).value) == 2**40 + 2**41 + 7

x = np.random.default_rng(0).standard_normal((100, 50)) + 1e6
mean, std, total, peak = Mean(), Std(), Sum(), Max()
for row in x:
    mean, std, total, peak = (m.update(row) for m in (mean, std, total, peak))
for metric, want, ulps in ((mean, x.mean(), 2), (total, x.sum(), 2), (peak, x.max(), 0)):
    value = metric.compute()
    assert value.dtype == np.float64, value.dtype
    assert abs(float(value) - want) <= ulps * np.spacing(want), (metric, float(value), want)
    assert metric.results() == float(value)
    assert metric.merge(metric.reset()).compute() == value
    assert int(metric.invalid_count()) == 0
assert abs(float(std.compute()) - x.std()) < 1e-12
assert std.compute().dtype == np.float64

ones = jax.lax.scan(lambda m, _: (m.update(0.1), None), Mean(), None, length=1000)[0].compute()
assert float(ones) == 0.1
labels = np.asarray([0, 1, 2, 2**40])
accuracy = Accuracy(num_classes=3).update(labels % 3, labels)
assert jax.jit(lambda m: m.replace(on_invalid="exclude").compute())(accuracy) == 1.0
assert int(accuracy.invalid_count()) == 1
ratio = Ratio().update(jnp.asarray([2**40, 4]))
assert ratio.hits.value.dtype == np.int64
assert float(ratio.compute()) == 2**39 + 2
assert Ratio().load_state_dict(ratio.state_dict()).compute() == ratio.compute()
print("done")
"""


@pytest.mark.parametrize("how", ["environment", "after import"])
def test_native_64_bit_types(how):
    switch = "jax.config.update('jax_enable_x64', True)" if how == "after import" else ""
    env = {k: v for k, v in os.environ.items() if k not in ("JAX_ENABLE_X64", "XLA_FLAGS")}
    if how == "environment":
        env["JAX_ENABLE_X64"] = "1"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", PROGRAM.replace("SWITCH", switch)],
        env=env,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
