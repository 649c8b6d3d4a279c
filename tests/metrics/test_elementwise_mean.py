"""The public base of elementwise means, as users write theirs."""

from typing import Any

import jax
import numpy as np
import pytest

import datarax
from datarax import ElementwiseMean, Interval, MetricInputError, Sliced
from datarax.metrics import JensenShannonDivergence, KLDivergence, Mean
from datarax.metrics.probabilistic.divergence import Divergence

P, T = np.array([1.0, 2.0, 4.0]), np.array([1.5, 2.0, 2.0])


class Pinball(ElementwiseMean):
    q: float = 0.9

    def score(self, preds, target):
        error = target - preds
        return (abs(error) + (2 * self.q - 1) * error) / 2


class Near(ElementwiseMean):
    is_proportion = True

    def score(self, preds, target):
        return abs(preds - target) < 1


class Rows(ElementwiseMean):
    element_axes = 1

    def score(self, preds, target):
        return abs(preds - target).max(-1)


class Wrong(ElementwiseMean):
    def score(self, preds, target):
        return abs(preds - target).mean()


def test_ours_use_it():
    assert issubclass(Divergence, ElementwiseMean)
    assert issubclass(datarax.metrics.KLDivergence, ElementwiseMean)


def test_shapes_are_checked():
    for preds, target in ((P[:, None], T), (P, T[:, None]), (P, T[:1]), (P[None], T)):
        with pytest.raises(
            MetricInputError, match=r"^Pinball: preds of shape .* expected the same"
        ):
            Pinball().update(preds, target)
    with pytest.raises(
        MetricInputError, match=r"^Wrong.score: it returned the shape \(\) for preds"
    ):
        Wrong().update(P, T)
    for bad in (np.float64(1.0), np.ones((3, 0))):
        with pytest.raises(MetricInputError, match=r"^Rows: preds of shape"):
            Rows().update(bad, bad)
    with pytest.raises(TypeError, match="Plain does not define score"):
        type("Plain", (ElementwiseMean,), {})().update(P, T)


def test_values_weights_and_what_cannot_be_used():
    each = np.array([0.45, 0.0, 0.2])
    np.testing.assert_allclose(Pinball().update(P, T).results(), each.mean())
    weighted = Pinball().update(P, T, weights=np.array([1, 0, 3]))
    np.testing.assert_allclose(weighted.results(), (each[0] + 3 * each[2]) / 4)
    assert Rows().update(P[None], T[None]).results() == 2.0
    # Comparisons of NaN are false, but such elements are no data.
    metric = Near(on_invalid="exclude").update(np.array([np.nan, *P]), np.array([1.0, *T]))
    assert metric.invalid_count() == 1
    with pytest.warns(datarax.InvalidValuesWarning, match="1 NaN"):
        assert metric.results() == 2 / 3
    # Unsigned integers do not wrap.
    small = np.array([1, 2], np.uint8)
    assert Rows().update(small, small[::-1]).results() == 1.0


def test_wrappers_take_it():
    found, known = Interval(Pinball()).update(P, T), Interval(Mean()).update([0.45, 0.0, 0.2])
    for name, value in known.results().items():
        np.testing.assert_allclose(found.results()[name], value, rtol=1e-6)
    wilson = Interval(Near())
    assert wilson.method == "wilson"
    assert 0 < wilson.update(P, T).results()["lower"] < 2 / 3
    slices = Sliced(Near(), 2).update(P, T, slices=np.array([0, 0, 1])).results()
    assert slices == {"overall": 2 / 3, "0": 1.0, "1": 0.0}
    jitted = jax.jit(lambda m, *x: m.update(*x))(Pinball(), P, T)
    np.testing.assert_allclose(jitted.results(), Pinball().update(P, T).results(), rtol=1e-6)


def test_the_interval_of_a_divergence_is_in_its_unit():
    p, q = np.random.default_rng(0).dirichlet(np.ones(3), (2, 5))
    for cls in (KLDivergence, JensenShannonDivergence):
        nats, bits = (Interval(cls(base=base)).update(p, q).results() for base in (None, 2))
        for name, value in nats.items():
            np.testing.assert_allclose(bits[name], value / np.log(2), rtol=1e-6)


def test_a_score_may_be_a_python_number():
    class One(datarax.ElementwiseMean):
        def score(self, preds, target) -> Any:
            return 1.0

    assert One().update(2.0, 3.0).results() == 1
    with pytest.raises(datarax.MetricInputError, match=r"One.score: it returned the shape \(\)"):
        One().update([2.0], [3.0])
