"""Means, sums, extremes and variances against exact sums and NumPy; distinct counts."""

import functools
import warnings
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import datarax
from datarax import InvalidValuesWarning, MetricInputError, Sliced
from datarax.metric.base import read
from datarax.metrics import (
    Cardinality,
    LastValue,
    Max,
    MaxError,
    Mean,
    Min,
    MinMax,
    Norm,
    Std,
    Sum,
    Variance,
    WeightedMean,
)
from datarax.numerics.hashing import hashed
from tests.helpers import (
    DTYPES,
    assert_same,
    draw,
    fsum,
    make_mesh,
    mean,
    optimized,
    over_shards,
    place,
    update,
    update_all,
    wide,
    x64,
)

ALL = (Mean, Sum, Max, Min, Variance, Std)


def within_one_ulp(got, exact):
    """Whether a float32 is the nearest to an exact number, or that one's neighbour."""
    got = np.float32(got)
    return abs(Fraction(float(got)) - exact) <= Fraction(float(np.spacing(np.abs(got))))


# The proofs.


def test_20_million_updates_of_one_float():
    # Three other libraries give a mean of 0.839, and by sevens 1.023.
    for value, want in ((1.0, 1.0), (0.1, np.float32(0.1))):
        step = lambda m, _, v=value: (m.update(v), None)  # noqa: E731
        metric = optimized(lambda s=step: lax.scan(s, Mean(), None, length=20_000_000)[0])()
        assert_same(metric.compute(), want, np.float32)
        assert float(metric.statistic.weight.exact) == 20_000_000
    sevens = lambda m, _: (m.update(jnp.ones((7,))), None)  # noqa: E731
    metric = optimized(lambda: lax.scan(sevens, Mean(), None, length=3_000_000)[0])()
    assert_same(metric.compute(), 1, np.float32)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_256_000_halves(dtype):
    # Two other libraries give a mean of 3.905 and of 0.512 for bfloat16.
    ones = jnp.ones((256_000,), dtype)
    assert_same(Mean().update(ones).compute(), 1, np.float32)
    assert_same(
        Mean().update(ones.reshape(1000, 256), weights=ones[:1000]).compute(), 1, np.float32
    )
    assert Sum().update(ones).results() == 256_000
    assert_same(Variance().update(ones).compute(), 0, np.float32)


def test_2_point_2e9_elements():
    # Three other libraries give a mean of -1.052: their int32 counts wrap.
    step = lambda m, _: (m.update(jnp.ones((20_000_000,), bool)), None)  # noqa: E731
    metric = optimized(lambda: lax.scan(step, Mean(), None, length=110)[0])()
    assert_same(metric.compute(), 1, np.float32)
    assert float(metric.statistic.weight.exact) == 2_200_000_000
    total = Sum().update(np.full(3, 2**31 - 1)).update(np.uint32(2**32 - 1))
    assert total.results() == 3 * (2**31 - 1) + 2**32 - 1


def test_the_mean_of_1e9_floats():
    # The i-th value is (i * ODD mod 2**24) / 2**24, exact in float32 and of 24 random bits. 2**24
    # in a row are a permutation of all multiples of 2**-24 below one: their sum is known.
    size, batches, odd = 1_000_000, 1000, 0x9E3779

    def values(i, xp):
        return (i * xp.uint32(odd)) & xp.uint32(2**24 - 1)

    def step(metric, b):
        i = jnp.arange(size, dtype=jnp.uint32) + b * jnp.uint32(size)
        return metric.update(values(i, jnp).astype(jnp.float32) / jnp.float32(2**24)), None

    index = jnp.arange(batches, dtype=jnp.uint32)
    metric = optimized(lambda: lax.scan(step, Mean(), index)[0])()
    whole, rest = divmod(size * batches, 2**24)
    last = np.arange(size * batches - rest, size * batches, dtype=np.uint32)
    total = whole * (2**24 * (2**24 - 1) // 2) + int(values(last, np).sum(dtype=np.uint64))
    exact = Fraction(total, 2**24 * size * batches)
    assert float(metric.statistic.weight.exact) == size * batches
    assert within_one_ulp(metric.compute(), exact)


@pytest.mark.parametrize("value", [0.1, 1 / 3])
def test_the_mean_of_1e9_equal_floats(value):
    # A plain float32 sum of each thousand errs by the same five units of 2**-24 every time.
    batch = jnp.full((1000,), value, jnp.float32)
    step = lambda m, _: (m.update(batch), None)  # noqa: E731
    metric = optimized(lambda: lax.scan(step, Mean(), None, length=1_000_000)[0])()
    assert_same(metric.compute(), value, np.float32)
    assert float(metric.statistic.weight.exact) == 1e9


def test_a_mean_that_cancels(rng):
    # Half a million values of size 1e6, their negations, and values that add up to 12.5.
    half = (rng.standard_normal(500_000) * 1e6).astype(np.float32)
    x = rng.permutation(np.concatenate([half, -half, np.full(1000, 0.0125, np.float32)]))
    metric = optimized(lambda x: lax.scan(lambda m, v: (m.update(v), None), Mean(), x)[0])(x)
    # Each of a million additions may lose 2**-46 of the running total, which reaches 1e9.
    lost = np.abs(np.cumsum(x, dtype=np.float64)).sum() * 2.0**-46
    assert abs(float(metric.statistic.total.exact) - fsum(x)) <= lost
    assert abs(float(metric.compute()) - fsum(x) / x.size) <= 1e-3 * fsum(x) / x.size


@pytest.mark.parametrize("offset", [1e4, -1e4, 1e6])
def test_the_spread_around_a_large_mean(rng, offset):
    # Other libraries give a standard deviation of 0.0 around a mean of 1e4.
    x = (rng.standard_normal((20, 500)) + offset).astype(np.float32)
    var, std, unbiased = Variance(), Std(), Variance(ddof=1)
    for row in x:
        var, std, unbiased = (update(m, row) for m in (var, std, unbiased))
    exact = x.astype(np.float64)
    np.testing.assert_allclose(var.compute(), exact.var(), 2e-6)
    np.testing.assert_allclose(std.compute(), exact.std(), 1e-6)
    np.testing.assert_allclose(unbiased.compute(), exact.var(ddof=1), 2e-6)


# Against the definition.


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("weighting", ["none", "mask", "floats"])
def test_every_dtype_and_weight(rng, dtype, weighting):
    x = draw(rng, (40, 3), dtype)
    w = {
        "none": None,
        "mask": rng.random(40) < 0.5,
        "floats": rng.integers(0, 4, 40) / np.float32(4),
    }[weighting]
    full = np.ones(40) if w is None else wide(w)
    each = np.repeat(full[:, None], 3, 1)
    values = wide(x)
    centre = mean(values, full)
    square = (each * (values - centre) ** 2).sum() / each.sum()
    used = values[full > 0]
    want = {Mean: centre, Sum: (values * each).sum(), Max: used.max(), Min: used.min()}
    metrics = [make() for make in ALL]
    for rows in (slice(20), slice(20, 40)):
        metrics = update_all(metrics, x[rows], weights=None if w is None else w[rows])
    for make, metric in zip(ALL, metrics, strict=True):
        if make in want:
            assert_same(metric.compute(), want[make], np.float32, ulps=int(make is Mean))
        else:
            root = np.sqrt(square) if make is Std else square
            np.testing.assert_allclose(metric.compute(), root, 1e-5)
        assert int(metric.invalid_count()) == 0


def test_padded_rows_of_nan():
    # Other libraries give NaN for padded rows that hold NaN with weight 0.
    x = jnp.asarray([[1.0, 3.0], [jnp.nan, jnp.inf], [5.0, 7.0]])
    w = jnp.asarray([1.0, 0.0, 1.0])
    for make, want in zip(ALL, (4.0, 16.0, 7.0, 1.0, 5.0, np.sqrt(5.0)), strict=True):
        metric = make().update(x, weights=w)
        assert_same(metric.compute(), want, np.float32, ulps=1)
        assert int(metric.invalid_count()) == 0
        assert_same(make().update(x, weights=w > 0).compute(), want, np.float32, ulps=1)


def test_negative_and_absurd_weights_are_excluded_and_counted():
    x = jnp.asarray([1.0, 2.0, 3.0, 4.0])
    w = jnp.asarray([-1.0, 1.0, jnp.nan, jnp.inf])
    for make, want in zip(ALL, (2, 2, 2, 2, 0, 0), strict=True):
        metric = make(on_invalid="exclude").update(x, weights=w)
        with pytest.warns(InvalidValuesWarning, match="3 with weights that are NaN, infinite or n"):
            assert_same(metric.compute(), want, np.float32)
        assert int(metric.invalid_count()) == 3
    with pytest.raises(MetricInputError, match=r"weights of shape \(3,\)"):
        Mean().update(x, weights=w[:3])


def test_shards_of_unequal_weight():
    # Where shards weigh unequally, the mean of their means is 3.375, not 3.0.
    x = np.float32([1, 2, 3, 4, 5, 6, 7, 8])
    w = np.float32([3, 1, 1, 1, 1, 1, 0, 0])
    mesh = make_mesh("auto", {"data": 4, "model": 2})
    run = over_shards(
        lambda x, w: Mean().update(x, weights=w).sync("data").compute(), mesh, P("data"), P()
    )
    got = jax.block_until_ready(run(*place((x, w), mesh, P("data"))))
    assert_same(got, mean(x, w), np.float32, ulps=1)
    spread = datarax.per_device(Mean(), mesh, "data").update(x, weights=w)
    assert_same(jax.block_until_ready(spread.compute()), mean(x, w), np.float32, ulps=1)


def test_ragged_batches_give_what_one_batch_gives(rng):
    # Other libraries give a perplexity of 346.9 for 90.48 over two ragged batches.
    nll = (rng.integers(20, 60, 100) / np.float32(8)).astype(np.float32)
    ragged = update(update(Mean(), nll[:97]), nll[97:])
    assert_same(ragged.compute(), update(Mean(), nll).compute(), np.float32)
    # Merging gives what updating gives.
    assert_same(
        update(Mean(), nll[:97]).merge(update(Mean(), nll[97:])).compute(), ragged.compute()
    )


# Integers, which float32 rounds above 2**24.


def some_integers(rng, dtype, size=500):
    info = np.iinfo(dtype)
    ends = [info.min, info.min + 1, info.max - 1, info.max]
    return np.concatenate([ends, rng.integers(info.min, info.max, size, endpoint=True)]).astype(
        dtype
    )


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "uint32"])
def test_sums_of_integers_are_exact_ints(rng, dtype):
    x = some_integers(rng, dtype)
    weights = {
        "none": None,
        "mask": rng.random(x.size) < 0.5,
        "floats": rng.integers(0, 2**20, x.size).astype(np.float32),
        "signed": some_integers(rng, "int32", x.size - 4),
        "unsigned": some_integers(rng, "uint32", x.size - 4),
    }
    for name, w in weights.items():
        counted = np.ones(x.size, int) if w is None else np.maximum(w.astype(object), 0)
        want = sum(int(a) * int(b) for a, b in zip(x, counted, strict=True))
        metric = Sum(on_invalid="exclude")
        for rows in np.split(np.arange(x.size), 2):  # of one shape, so that one program does both
            metric = update(metric, x[rows], weights=None if w is None else w[rows])
        got = read(metric).value
        if abs(want) < 2**63:
            assert np.asarray(got).dtype == np.int64
            assert int(got) == want, name
        else:  # 500 products of 64 bits may add up to more than 64 bits
            assert float(got) == pytest.approx(want, rel=1e-12), name


def test_a_sum_is_a_float_once_a_float_was_added():
    whole = Sum().update(np.int32([2**30, 2**30, 1]))
    assert repr(whole.results()) == "2147483649"
    assert repr(Sum().results()) == "0"
    for metric in (whole.update(0.5), Sum().update(0.5).merge(whole)):
        assert repr(metric.results()) == "2147483649.5"
    assert (
        repr(whole.update(np.int32([3, 4]), weights=np.float32([0.5, 0])).results())
        == "2147483650.5"
    )
    assert isinstance(whole.update(3.0).results(), float)
    assert whole.reset().update(2).results() == 2
    assert_same(whole.compute(), 2**31, np.float32)


def test_a_sum_of_integers_under_propagate():
    bad = Sum(on_invalid="propagate").update(np.int32([1, 2]), weights=np.int32([1, -1]))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", InvalidValuesWarning)
        assert np.isnan(bad.results())
        assert np.isnan(bad.compute())
    assert Sum(on_invalid="propagate").update(np.int32([1, 2])).results() == 3


@pytest.mark.parametrize("dtype", ["int32", "uint32"])
def test_extremes_of_integers_are_exact(rng, dtype):
    x = rng.integers(np.iinfo(dtype).min, np.iinfo(dtype).max, 300, endpoint=True).astype(dtype)
    x[:2] = 20000001, 20000000
    on = rng.random(300) < 0.5
    on[0] = True
    for used, w in ((x, None), (x[on], on), (x[:2], np.arange(300) < 2)):
        metric = update(update(MinMax(), x[:2]), x, weights=w)
        assert read(metric).on_host() == {
            "min": min(used.min(), 20000000),
            "max": max(used.max(), 20000001),
        }
    # Beside a float, which is compared without rounding.
    assert Max().update(20000001).update(20000000.0).results() == 20000001
    assert Min().update(20000000.0).update(np.int32(19999999)).results() == 19999999


def test_numbers_of_few_digits_are_read_as_they_were_given(rng):
    """A state keeps 48 bits of a float64, which are those of one number of up to 14 digits."""
    digits = rng.integers(1, 15, 200)
    size = rng.integers(-20, 20, 200)
    decimals = [
        float(f"{rng.uniform(1, 10):.{n - 1}f}e{k}") for n, k in zip(digits, size, strict=True)
    ]
    halves = rng.integers(1, 2**24, 50) * 2.0 ** rng.integers(-40, 40, 50)  # of float32
    whole = rng.integers(2**30, 2**31, 50)
    full = rng.uniform(1, 10, 50)  # of 53 bits

    def readings(x):
        given = np.asarray(x)
        yield given, Max().update(given).results()
        yield given, Min().update(given).results()
        yield given, MinMax().update(given).update(given).results()["max"]
        yield given, LastValue().update(given).results()
        yield given, Norm(ord=np.inf).update(given).results()
        yield given, MaxError().update(given, np.zeros_like(given)).results()
        yield given, Sliced(Max(), 2).update(given, slices=1).results()["1"]
        yield -given, Max().update(-given).results()

    for x in (*decimals, *halves, *whole.tolist(), 0.1):
        for want, got in readings(x):
            assert got == want, (x, got)
    for x in (*full, 1 / 3):
        for want, got in readings(x):
            assert abs(got - want) <= 2**-48 * abs(want)
    both = np.array([[0.1, 1.7], [0.3, 0.2]])
    error = MaxError(num_outputs=2, multioutput="raw_values").update(both, np.zeros((2, 2)))
    np.testing.assert_array_equal(error.results(), [0.3, 1.7])
    assert Max().update(0.1).compute() == np.float32(0.1)
    on_devices = jax.jit(lambda m: m.compute())(Max().update(0.1))
    assert on_devices == np.float32(0.1)


def test_the_mean_of_integers_with_weights_rounds_once(rng):
    x, w = np.int32([20000001, 20000003, -40000002]), np.float32([0.5, 0.5, 0.5])
    assert float(Mean().update(x, weights=w).compute()) == pytest.approx(2 / 3, rel=1e-6)


# Extremes.


@pytest.mark.filterwarnings("ignore::datarax.InvalidValuesWarning")
def test_max_and_min_exclude_nan_and_infinities():
    x = jnp.asarray([jnp.nan, 2.0, -jnp.inf, -3.0, jnp.inf])
    for make, want in ((Max, 2.0), (Min, -3.0)):
        metric = make(on_invalid="exclude").update(x)
        assert_same(metric.compute(), want, np.float32)
        assert int(metric.invalid_count()) == 3
        for nothing in (x[:1], x[2:3], x[:0]):
            with np.errstate(all="ignore"):
                empty = make(on_invalid="exclude").update(nothing)
            assert np.isnan(empty.compute())
            assert_same(metric.merge(empty).compute(), want, np.float32)
        some = make(on_invalid="exclude").update(x, weights=[0.0, 0.0, 1.0, 1.0, 1.0])
        assert_same(some.compute(), -3, np.float32)
    assert Max().update(jnp.asarray([-5, -7])).results() == -5
    assert Min().update(jnp.asarray([200, 255], jnp.uint8)).results() == 200
    ends = jnp.asarray([np.finfo(np.float32).max, np.finfo(np.float32).min])
    assert_same(Max().update(ends).compute(), ends[0])
    assert_same(Min().update(ends).compute(), ends[1])


def test_too_large_for_float32_is_never_a_wrong_number():
    big = jnp.asarray([3e38, 3e38])
    assert_same(Mean().update(big).compute(), 3e38, np.float32, ulps=1)
    assert np.isinf(Sum().update(big[:1]).update(big[:1]).compute())
    assert float(Std().update(jnp.full((3,), 1e20)).compute()) == 0
    assert np.isinf(Variance().update(jnp.asarray([1e30, -1e30])).compute())
    assert_same(Std().update(jnp.asarray([1e30, -1e30])).compute(), 1e30, np.float32)


# Results.


def test_sums_are_exact_to_48_bits(rng):
    x = rng.integers(0, 2**31, 1000)
    metric = update(update(Sum(), x), x[:7])
    assert metric.results() == int(x.sum() + x[:7].sum())
    assert_same(metric.compute(), x.sum() + x[:7].sum(), np.float32)
    halves = functools.reduce(lambda m, v: m.update(v), (2.0**30, 0.5, 0.25), Sum())
    assert halves.results() == 2**30 + 0.75
    assert Sum(on_invalid="propagate").update(np.asarray([5, 6])).results() == 11
    with pytest.warns(InvalidValuesWarning):
        assert np.isnan(Sum(on_invalid="propagate").update(jnp.nan).results())


@pytest.mark.parametrize("dtype", ["int64", "uint64"])
def test_sums_of_64_bits_that_leave_64_bits(rng, dtype):
    # Nanoseconds since 1970: eleven of them exceed 2**64.
    x = (1_700_000_000_000_000_000 + rng.integers(0, 10**9, 16)).astype(dtype)
    mean, total = Fraction(sum(map(int, x)), 16), sum(map(int, x))
    mesh = make_mesh("auto", {"data": 8})
    with x64():
        metrics = datarax.Collection(
            {
                "mean": Mean(),
                "sum": Sum(),
                "window": datarax.Window(Sum(), 3),
                "interval": datarax.Interval(Mean()),
                "slices": datarax.Sliced(Mean(), 1),
            }
        )
        given = {"values": x, "slices": np.zeros(16, np.int32)}
        states = [
            metrics.update(**given),
            jax.jit(lambda m, given: m.update(**given))(metrics, given),
            metrics.update(values=x[:6], slices=given["slices"][:6]).merge(
                metrics.update(values=x[6:], slices=given["slices"][6:])
            ),
            datarax.per_device(metrics, mesh, "data").update(**place(given, mesh, P("data"))),
        ]
        for state in states:
            found = state.results()
            for name in ("mean", "interval/value", "slices/0", "slices/overall"):
                assert abs(Fraction(float(found[name])) / mean - 1) < 1e-15, name
            for name in ("sum", "window"):
                assert abs(Fraction(float(found[name])) / total - 1) < 1e-15, name
        weighted = Sum().update(x, weights=np.full(16, 2, dtype)).results()
        assert abs(Fraction(float(weighted)) / (2 * total) - 1) < 1e-15
        assert Sum().update(x[:4]).results() == sum(map(int, x[:4]))


def test_a_sum_of_integers_that_leaves_64_bits_is_a_float():
    x, w = np.full(4, 2**31 - 1, np.int32), np.full(4, 2**31 - 1, np.int32)
    products = 4 * (2**31 - 1) ** 2
    for step in (lambda m: m.update(x, weights=w), jax.jit(lambda m: m.update(x, weights=w))):
        metric = functools.reduce(lambda m, _: step(m), range(3), Sum())
        assert metric.results() == pytest.approx(3 * products, rel=1e-9)  # of float32 weights
        assert isinstance(metric.results(), float)


def test_ddof():
    x = jnp.asarray([1.0, 2.0, 4.0])
    for ddof in (0, 1, 2, 0.5):
        want = ((np.asarray(x) - 7 / 3) ** 2).sum() / (3 - ddof)
        np.testing.assert_allclose(Variance(ddof=ddof).update(x).compute(), want, 1e-6)
        np.testing.assert_allclose(Std(ddof=ddof).update(x).compute(), np.sqrt(want), 1e-6)
    for metric in (Variance(ddof=3), Std(ddof=3), Std(ddof=4), Variance(ddof=1)):
        few = metric.update(x if metric.ddof > 1 else x[:1])
        assert np.isnan(few.compute())


def test_any_shape_of_values(rng):
    x = draw(rng, (2, 3, 4))
    for values in (x, x.reshape(-1), x.reshape(24, 1), jnp.asarray(x), x.tolist()):
        assert_same(Mean().update(values).compute(), wide(x).mean(), np.float32, ulps=1)
    assert_same(Mean().update(3).update(np.float64(4)).update([5]).compute(), 4, np.float32)
    w = rng.integers(0, 3, (2, 3))
    assert_same(Mean().update(x, weights=w).compute(), mean(x, w), np.float32, ulps=1)


def test_names():
    assert WeightedMean is Mean is datarax.metrics.WeightedMean
    assert repr(Variance(ddof=1)) == "Variance(ddof=1)"
    assert repr(Std(ddof=1, on_invalid="raise")) == "Std(ddof=1, on_invalid='raise')"


SIZE = 250_000
KINDS = {
    "in sequence": lambda rng: rng.integers(-(2**31), 2**30) + np.arange(SIZE),
    "in steps of 1024": lambda rng: rng.integers(-(2**31), -(2**30)) + 1024 * np.arange(SIZE),
    "at random": lambda rng: rng.permutation(2 * SIZE)[:SIZE] - SIZE,
    "thousandths": lambda rng: np.arange(SIZE) / 1024 - rng.integers(100),
}


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("precision", [10, 14])
def test_errors_are_within_the_standard_error(kind, precision, rng):
    values = kind(rng)
    values = values.astype(np.int32 if values.dtype == np.int64 else np.float32)
    metric = Cardinality(precision=precision)
    for count in (1, 7, 100, 3_000, 40_000, 100_000, SIZE):
        first = rng.integers(SIZE - count + 1)
        used = (np.arange(SIZE) >= first) & (np.arange(SIZE) < first + count)
        assert np.unique(values[used]).size == count
        got = float(update(metric, values, weights=used).compute())
        # Beyond 4.5 standard errors once in 150,000. Two of a few values may share a register.
        assert abs(got - count) <= 4.5 * metric.standard_error * count + (count > 1)


def test_the_standard_error_is_the_one_documented(rng):
    metric = Cardinality(precision=6)
    assert metric.standard_error == 1.04 / 8
    trials, count = 300, 4096
    values = rng.integers(-(2**31), 2**31, (trials, count)).astype(np.int32)
    states = jax.vmap(lambda x: metric.update(x))(values)
    got = np.asarray(jax.jit(jax.vmap(lambda m: m.compute()))(states)) / count - 1
    # From 300 trials, the standard deviation is known to 4 %, and the mean to 0.75 %.
    assert 0.8 < got.std() / metric.standard_error < 1.25
    assert abs(got.mean()) < 0.04


def test_repetition_and_order_do_not_matter(rng):
    values = np.arange(5000, dtype=np.int32)
    once = Cardinality().update(values).compute()
    assert Cardinality().update(np.tile(rng.permutation(values), 3)).compute() == once
    halves = Cardinality().update(values[:3000]).merge(Cardinality().update(values[2000:]))
    assert halves.compute() == once


def test_equal_values_of_any_dtype_count_once():
    integers = [
        jnp.array([0, 1, 3, 100]).astype(dtype)
        for dtype in ("int32", "uint8", "int16", "uint32", "float32", "bfloat16", "float16")
    ]
    metric = Cardinality()
    for values in integers:
        metric = metric.update(values)
    assert round(float(metric.compute())) == 4
    metric = metric.update(jnp.array([-0.0, 0.0])).update(jnp.array([True, False]))
    assert round(float(metric.compute())) == 4
    metric = metric.update(jnp.array([-1, -3])).update(jnp.array([-1.0, -3.0]))
    assert round(float(metric.compute())) == 6
    large = Cardinality().update(np.array([3_000_000_000], np.uint32)).update(jnp.array([3e9]))
    assert round(float(large.compute())) == 1


def test_equal_values_with_x64_and_without():
    values = np.float32([0.5, -3.0, 3e9, 1e30, 0.1, -0.0])
    narrow = [np.asarray(x) for x in hashed(jnp.asarray(values))]
    with x64():
        wide = [np.asarray(x) for x in hashed(jnp.asarray(values, jnp.float64))]
        whole = [np.asarray(x) for x in hashed(jnp.array([-3, 3_000_000_000], jnp.int64))]
        apart = hashed(jnp.array([0.1, float(np.float32(0.1)), 2**40, 2**40 + 1]))
        assert np.unique(np.asarray(apart[0])).size == 4
    np.testing.assert_array_equal(narrow, wide)
    np.testing.assert_array_equal(np.array(narrow)[:, 1:3], whole)


def test_distinct_values_have_distinct_hashes(rng):
    values = np.unique(rng.integers(-(2**31), 2**31, 200_000).astype(np.int32))
    high, low = (np.asarray(x).astype(np.uint64) for x in jax.jit(hashed)(values))
    assert np.unique(high << np.uint64(32) | low).size == values.size
    # Every bit is set in half of them: 5 standard deviations are 5 / (2 sqrt(n)).
    for word in (high, low):
        for bit in range(32):
            share = (word >> np.uint64(bit) & np.uint64(1)).mean()
            assert abs(share - 0.5) < 2.5 / np.sqrt(values.size)


@pytest.mark.filterwarnings("ignore::datarax.InvalidValuesWarning")
def test_invalid_values_are_excluded_and_counted():
    seen = Cardinality().update(jnp.array([1.0, jnp.nan, jnp.inf, -jnp.inf, 1.0]))
    assert round(float(seen.compute())) == 1
    assert int(seen.invalid_count()) == 3
    absent = Cardinality().update(jnp.array([1.0, jnp.nan]), weights=jnp.array([0.0, 0.0]))
    assert (float(absent.compute()), int(absent.invalid_count())) == (0, 0)


@pytest.mark.parametrize("precision", [3, 17, 14.0, True])
def test_the_precision_is_checked(precision):
    with pytest.raises(datarax.MetricInputError, match="precision="):
        Cardinality(precision=precision)
