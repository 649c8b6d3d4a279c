"""Integers of more than 32 bits: used as they are on the host, and never cut where JAX has 32."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import datarax
from datarax import MetricInputError, metrics
from datarax.distributed import global_batch
from tests.helpers import make_mesh, place
from tests.registry import BATCH, CASES

# One case for each integer argument of each class, with and without classes.
INTEGERS = {}
for case in CASES:
    if not case.host:
        drawn = case.arrays(case.inputs.draw(np.random.default_rng(0), BATCH))
        for name, x in case.make().arguments_from(drawn).items():
            if isinstance(x, np.ndarray) and x.dtype.kind in "iu" and x.size:
                size = "num_classes" in case.config, "num_labels" in case.config
                INTEGERS.setdefault((case.cls.__name__, name, *size), case)


@pytest.mark.parametrize("key", INTEGERS, ids=lambda key: "-".join(map(str, key[:2])))
def test_a_wide_integer_is_never_cut(key, rng):
    case, name = INTEGERS[key], key[1]
    metric = case.make()
    arrays = metric.arguments_from(case.arrays(case.inputs.draw(rng, BATCH)))
    wide, far = (arrays[name].astype(np.int64) for _ in range(2))
    wide.flat[0] += 2**32  # cut to 32 bits, it would be the integer as it was
    far.flat[0] = 2**31 - 1

    def state(x):
        try:
            return jax.tree.leaves(metric.update(**arrays | {name: x}))
        except MetricInputError as error:
            return type(error)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        plain, cut, other = state(arrays[name]), state(wide), state(far)
    assert not equal(cut, plain) or equal(other, plain)
    with pytest.raises(MetricInputError, match="an integer does not fit 32 bits"):
        jax.eval_shape(lambda metric: metric.update(**arrays | {name: wide}), metric)


def equal(a, b):
    if isinstance(a, type) or isinstance(b, type):
        return a is b
    return all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))


def test_values_of_64_bits_on_the_host(rng):
    x = rng.integers(2**40, 2**41, 50)
    assert metrics.Sum().update(2**40 + 1).results() == 2**40 + 1
    assert metrics.Sum().update(x).results() == x.sum()
    assert metrics.Sum().update(x, weights=np.full(50, 3)).results() == 3 * x.sum()
    assert metrics.Max().update(x).results() == x.max()
    assert metrics.Mean().update(x).results() == pytest.approx(x.mean(), rel=1e-15)
    assert metrics.Std().update(x).results() == pytest.approx(x.std(), rel=1e-12)
    with pytest.raises(MetricInputError, match="does not fit 64 bits"):
        metrics.Sum().update(np.array([2**64], object))


def test_errors_of_nanoseconds_since_1970(rng):
    # As float64 they are multiples of 256.
    target = 1_700_000_000_000_000_000 + rng.integers(0, 10**6, 50)
    late = rng.integers(-9, 10, 50)
    for dtype in (np.int64, np.uint64):
        t, p = target.astype(dtype), (target + late).astype(dtype)
        given = metrics.MeanAbsoluteError().update(p, t).results()
        assert given == pytest.approx(np.abs(late).mean(), rel=1e-12)
        given = metrics.MeanSquaredError().update(p, t).results()
        assert given == pytest.approx((late**2).mean(), rel=1e-12)
        assert metrics.MaxError().update(p, t).results() == np.abs(late).max()


def test_ranks_of_integers_beyond_53_bits_say_that_they_are_rounded():
    x, target = np.arange(40), np.arange(40) % 2
    kept = (
        metrics.SpearmanCorrCoef(),
        metrics.KendallTau(),
        metrics.AveragePrecision(exact=True, capacity=40),
    )
    for metric in (*kept, metrics.SpearmanCorrCoef(bits=8), metrics.AUROC(), metrics.ROC()):
        for dtype in (np.int64, np.uint64):
            if metric in kept:
                with warnings.catch_warnings():
                    warnings.simplefilter("error")
                    near = metric.update((x + 2**48).astype(dtype), target).results()
                assert near == metric.update(x, target).results()
            with pytest.warns(datarax.PrecisionWarning, match="preds: integers beyond"):
                metric.update((x + 2**62).astype(dtype), target)
    # What only compares integers, and differences, are exact.
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ndcg = metrics.NDCG().update((x + 2**62)[None], target[None]).results()
        assert ndcg == metrics.NDCG().update(x[None], target[None]).results()


def test_ids_of_64_bits(rng):
    ids = np.repeat([1, 2, 3], 4)
    hashes = (ids << 32) + 5  # equal, if they were cut
    scores, target = rng.random(12, np.float32), np.tile([1, 0, 1, 0], 3)
    for metric in (metrics.NDCG(), metrics.MRR(), metrics.RetrievalMAP(), metrics.HitRate(k=1)):
        due = metric.update(scores, target, query=ids).results()
        for each in (hashes, hashes.astype(np.uint64) + np.uint64(2**63)):
            assert metric.update(scores, target, query=each).results() == due
    spread = metrics.GroupSpread()
    assert spread.update(scores, hashes).results() == spread.update(scores, ids).results()
    distinct = metrics.Cardinality().update(ids + 2**32).update(ids).results()
    assert distinct == pytest.approx(6, rel=0.02)
    sliced = datarax.Sliced(metrics.Mean(), 4).update(scores, slices=ids + 2**32).results()
    assert sliced["unknown"] == 12
    assert np.isnan(sliced["1"])


def test_where_a_program_would_cut_them_it_is_an_error(rng):
    mesh = make_mesh("auto", {"data": 4})
    hashes = np.repeat([1, 2, 3], 4) << 32
    scores, target = rng.random(12, np.float32), np.tile([1, 0, 1, 0], 3)
    sharded = place(scores, mesh, P("data"))
    ndcg, mean = metrics.NDCG(), metrics.Mean()

    def update(x):
        return ndcg.update(x, target, query=hashes).compute()

    for name, call in {
        "query": lambda: jax.jit(update)(scores),
        "query ": lambda: jax.vmap(update)(scores[None]),
        "query  ": lambda: ndcg.update(sharded, target, query=hashes),
        "values": lambda: datarax.per_device(mean, mesh, "data").update(hashes),
        "weights": lambda: datarax.per_device(mean, mesh, "data").update(sharded, weights=hashes),
        "values ": lambda: jax.jit(lambda metric: metric.update(2**40))(mean),
        "values  ": lambda: jax.vmap(lambda w: mean.update(hashes, weights=w))(jnp.ones((2, 12))),
        "ids/0": lambda: global_batch({"ids": [hashes]}, mesh, "data"),
    }.items():
        with pytest.raises(MetricInputError, match=f"{name.strip()}: an integer does not fit 32"):
            call()
    # Those that fit are taken everywhere.
    narrow = np.repeat([1, 2, 3], 4)
    due = ndcg.update(scores, target, query=narrow).results()
    given = jax.jit(lambda m, x: m.update(x, target, query=narrow))(ndcg, jnp.asarray(scores))
    assert given.results() == pytest.approx(due, rel=1e-6)


@pytest.mark.parametrize("name", ["R2Score", "PearsonCorrCoef", "Std", "Variance"])
def test_moments_of_integers_that_float64_rounds_say_so(name):
    x = np.int64([2**60, 2**60 + 1, 2**60 + 2])
    metric = getattr(metrics, name)()
    given = (x,) if name in ("Std", "Variance") else (x, x[::-1])
    with pytest.warns(datarax.PrecisionWarning, match=r"integers beyond 2\*\*53"):
        metric.update(*given)
    metric.update(*(each - 2**60 for each in given))  # silent
