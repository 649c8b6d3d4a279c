"""`TreeHealth` on one device: values, steps, laws, and what it refuses."""

import copy
import pickle
import warnings
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import datarax
from datarax import InvalidValuesWarning, MetricInputError, MetricTypeError
from datarax.metrics import TreeHealth
from datarax.testing import assert_within_ulps, subject
from tests.helpers import x64
from tests.metrics.health.trees import assert_results, drawn, expected, greatest, norm

GROUPS = {"kernels": "kernel$", "layers": "^layers/"}


@pytest.fixture
def trees(rng):
    return drawn(rng), drawn(rng, 1e-3, zeros=0.3), drawn(rng, 1e-5)


def parts(tree: Any) -> dict[str, Any]:
    kernels = [layer["kernel"] for layer in tree["layers"]]
    return {"": tree, "kernels/": kernels, "layers/": tree["layers"]}


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_values_overall_and_by_group(wrap, trees):
    metric = TreeHealth(like=trees[0], groups=GROUPS)
    results = wrap(lambda m, p, g, u: m.update(p, g, u, step=3))(metric, *trees).results()
    for prefix in ("", "kernels/", "layers/"):
        assert_results(results, expected(*(parts(tree)[prefix] for tree in trees)), prefix)
        assert results[f"{prefix}nonfinite"] == 0
    for name, tree in zip(("param", "grad", "update"), trees, strict=True):
        want = float(optax.tree.norm(tree))
        np.testing.assert_allclose(results[f"{name}_norm"], want, rtol=1e-6)
    assert results["first_nonfinite"] is None
    assert results["first_nonfinite_step"] is None
    assert type(results["nonfinite"]) is int


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_is_accumulated_in_float32(dtype, rng):
    tree = jax.tree.map(lambda x: jnp.asarray(x, dtype), drawn(rng))
    ones = {"x": jnp.ones((1 << 20,), dtype)}
    assert_results(TreeHealth(like=tree).update(tree).results(), {"param_norm": norm(tree)})
    assert TreeHealth(like=ones).update(ones).results()["param_norm"] == 1024.0


@pytest.mark.parametrize("scale", [1e30, 1e38, 1e-30])
def test_squares_neither_overflow_nor_underflow(scale, rng):
    tree = jax.tree.map(lambda x: np.clip(x, -3, 3) * np.float32(scale), drawn(rng))
    results = TreeHealth(like=tree).update(tree, step=0).results()
    want = {"param_norm": norm(tree), "param_max": greatest(tree)}
    if norm(tree) > 3e38:
        assert TreeHealth(like=tree).update(tree).compute()["param_norm"] == np.inf  # a float32
    assert_results(results, want)
    assert results["nonfinite"] == 0
    # The ratio is right where a norm is not.
    assert TreeHealth(like=tree).update(tree, updates=tree).results()["update_ratio"] == 1.0


def test_values_of_very_different_size():
    tree = {"large": jnp.full((3, 3), 1e30), "small": jnp.full((4,), 1e-30)}
    results = TreeHealth(like=tree, groups=1).update(tree).results()
    np.testing.assert_allclose(results["param_norm"], 3e30, rtol=1e-6)
    np.testing.assert_allclose(results["small/param_norm"], 2e-30, rtol=1e-6)


def test_with_x64(rng):
    with x64():
        tree = {"a": rng.normal(size=(64, 3)), "b": rng.normal(size=3).astype(np.float32)}
        results = TreeHealth(like=tree).update(tree, step=1).results()
        np.testing.assert_allclose(results["param_norm"], norm(tree), rtol=1e-15)


def test_millions_of_equal_entries():
    tree = {"x": jnp.full((3, 1 << 22), 0.1), "y": jnp.full((7,), 0.1)}
    results = TreeHealth(like=tree).update(tree, tree).results()
    assert_results(results, {"param_norm": norm(tree), "grad_zeros": 0.0})


@pytest.mark.parametrize(("bad", "wanted"), [(np.nan, np.nan), (np.inf, np.inf), (-np.inf, np.inf)])
def test_a_planted_value_is_found(bad, wanted, trees):
    params, grads, updates = trees
    metric = TreeHealth(like=params, groups=1)
    spoilt = copy.deepcopy(grads)
    spoilt["layers"][1]["kernel"][3, 1] = bad
    later = copy.deepcopy(params)
    later["embed"]["table"][:2] = np.nan
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        seen = metric.update(params, grads, updates, step=5)
        seen = seen.update(later, step=9).update(params, spoilt, updates, step=7)
        results = seen.results()
    assert results["first_nonfinite"] == "layers/1/kernel"
    assert results["first_nonfinite_step"] == 7
    assert results["nonfinite"] == 49
    assert [results[f"{name}/nonfinite"] for name in ("embed", "layers", "scale")] == [48, 1, 0]
    np.testing.assert_equal(results["grad_norm"], wanted)
    np.testing.assert_equal(results["grad_max"], wanted)
    np.testing.assert_equal(results["layers/grad_norm"], wanted)
    assert np.isfinite(results["embed/grad_norm"])
    assert np.isnan(results["param_norm"])  # of step 9
    assert seen.compute()["first_nonfinite"] == 4
    assert seen.compute()["first_nonfinite_step"] == 7


def test_ties_go_to_the_first_leaf_in_the_order_of_the_tree(trees):
    params, grads, _ = trees
    grads["layers"][0]["bias"][2] = np.inf
    params["layers"][0]["kernel"][0, 0] = np.nan
    params["scale"] = np.float32(np.nan)
    results = TreeHealth(like=params).update(params, grads).results()
    assert results["first_nonfinite"] == "layers/0/bias"
    assert results["nonfinite"] == 3


def test_each_tree_has_the_value_of_its_newest_step(rng):
    first, second, third = (drawn(rng) for _ in range(3))
    metric = TreeHealth(like=first)
    seen = metric.update(first, second, step=4).update(grads=third, step=9)
    seen = seen.update(second, first, step=-2)
    assert_results(seen.results(), {"param_norm": norm(first), "grad_norm": norm(third)})
    assert np.isnan(seen.results()["update_norm"])
    assert np.isnan(seen.results()["update_ratio"])


def test_updates_without_a_step_count_themselves(rng):
    first, second = drawn(rng), drawn(rng)
    bad = jax.tree.map(lambda x: x * np.float32(np.nan), first)
    seen = TreeHealth(like=first).update(first).update(second).update(grads=bad)
    assert_results(seen.results(), {"param_norm": norm(second)})
    assert seen.results()["first_nonfinite_step"] == 2
    assert seen.reset().update(bad).results()["first_nonfinite_step"] == 0
    after = seen.update(first)
    assert_results(after.results(), {"param_norm": norm(first)})
    assert_results(after.merge(after.reset()).results(), {"param_norm": norm(first)})


def assert_refused(metric: Any, match: str) -> None:
    """No norm is read as if it were right; what was counted still is."""
    with pytest.warns(InvalidValuesWarning, match=match):
        results = metric.results()
    assert np.isnan(results["param_norm"])
    assert results["nonfinite"] == 0


def test_what_has_no_order_or_was_folded_twice_gives_nan(rng):
    tree = drawn(rng)
    empty = TreeHealth(like=tree)
    by_itself, numbered = empty.update(tree), empty.update(tree, step=7)
    assert_refused(by_itself.merge(empty.update(tree)), "without a step")
    assert_refused(by_itself.merge(numbered), "without a step")
    assert_refused(numbered.merge(by_itself), "without a step")
    assert_refused(numbered.update(tree, step=7), "more than once")
    assert_refused(numbered.merge(numbered), "more than once")
    with pytest.raises(datarax.InvalidValuesError, match="more than once"):
        numbered.merge(numbered).replace(on_invalid="raise").results()
    after = numbered.merge(numbered).update(tree, step=8)  # the newest step is in order again
    assert_results(after.results(), {"param_norm": norm(tree)})


# The laws. A batch is a step; all have one structure.


def steps(rng: np.random.Generator, count: int = 4) -> list[Any]:
    order = rng.permutation(count).tolist()
    return [
        ((), {"params": drawn(rng), "grads": drawn(rng, zeros=0.5), "step": np.int32(step)})
        for step in order
    ]


def same(a: Any, b: Any, ulps: float = 0) -> None:
    assert_within_ulps(subject.read(a)[0], subject.read(b)[0], ulps, name="the value")
    assert_within_ulps(subject.numbers(a), subject.numbers(b), ulps, name="the state")


@pytest.fixture
def folded(rng):
    calls = steps(rng)
    calls[2][1]["grads"]["layers"][0]["bias"][1] = np.nan
    metric = TreeHealth(like=calls[0][1]["params"], groups=1)
    return metric, calls, subject.fold(metric, calls)


def test_merging_obeys_the_laws(folded):
    metric, calls, used = folded
    a, b, c = (subject.fold(metric, part) for part in (calls[:1], calls[1:2], calls[2:]))
    same(subject.merge(used, used.reset()), used)
    same(subject.merge(used.reset(), used), used)
    same(subject.merge(a, b), subject.merge(b, a))
    same(subject.merge(subject.merge(a, b), c), subject.merge(a, subject.merge(b, c)))
    same(subject.merge(subject.merge(a, b), c), used)
    same(subject.fold(metric, calls[::-1]), used)
    assert (used.results()["first_nonfinite"], used.results()["nonfinite"]) == ("layers/0/bias", 1)


def test_jit_eager_donated_scanned_mapped_and_copied_are_equal(folded):
    metric, calls, used = folded
    eager = metric
    for call in calls:
        eager = subject.apply(eager, call)
    same(eager, used, ulps=1)
    stacked = subject.on_host(lambda *xs: np.stack(xs), *calls)
    same(subject.scanned(metric, stacked), used)
    jax.eval_shape(subject.looped, metric, stacked)
    same(subject.fold(jax.tree.map(jnp.array, metric), calls), used)  # each step donates
    same(metric.load_state_dict(used.state_dict()), used)
    for each in (copy.copy(used), copy.deepcopy(used), pickle.loads(pickle.dumps(used))):
        assert jax.tree.structure(each) == jax.tree.structure(used)
        same(each, used)
    states = subject.on_host(lambda *xs: np.stack(xs), *(subject.fold(metric, [c]) for c in calls))
    mapped, values = subject.vmapped(states, subject.on_host(lambda x: x[::-1], stacked))
    first = jax.tree.map(lambda x: x[0], mapped)
    same(first, subject.fold(metric, [calls[0], calls[-1]]))
    assert_within_ulps(
        jax.tree.map(lambda x: x[0], values), subject.read(first)[0], 1, name="the value"
    )


def test_all_steps_are_one_program(folded):
    metric, calls, used = folded
    traces = 0

    @jax.jit
    def update(metric, call):
        nonlocal traces
        traces += 1
        return subject.apply(metric, call)

    states = metric, used, used.reset(), metric.load_state_dict(used.state_dict())
    for state in states:
        for call in calls:
            jax.eval_shape(update, state, call)
    assert traces == 1


def test_a_reset_state_is_empty(folded):
    metric, _, used = folded
    values = used.reset().compute()
    assert values.pop("first_nonfinite") == values.pop("first_nonfinite_step") == -1
    for name, value in values.items():
        np.testing.assert_equal(np.asarray(value), 0 if name.endswith("nonfinite") else np.nan)
    assert used.reset().results()["nonfinite"] == 0
    same(used.reset(), metric)


# What it takes for `like` and refuses.


class Model(nnx.Module):
    def __init__(self, rngs: nnx.Rngs):
        self.layers = nnx.List([nnx.Linear(2, 3, rngs=rngs), nnx.Linear(3, 2, rngs=rngs)])
        self.dropout = nnx.Dropout(0.5, rngs=rngs)


def test_flax_variables_have_the_names_of_the_model():
    model = Model(nnx.Rngs(0))
    params, everything = nnx.state(model, nnx.Param), nnx.state(model)
    bad = jax.tree.map(lambda x: x * jnp.nan, params)
    for like in (params, everything, nnx.to_pure_dict(params)):
        seen = TreeHealth(like=like, groups=2).update(params, grads=bad)
        assert seen.results()["first_nonfinite"] == "layers/0/bias"
        assert_results(seen.results(), {"param_norm": norm(params)})
        assert "layers/1/grad_norm" in seen.results()


def test_leaves_without_floats_are_left_out():
    model = eqx.nn.MLP(2, 3, 4, 1, key=jax.random.key(0))  # holds functions and sizes
    arrays = eqx.filter(model, eqx.is_inexact_array)
    tree = {"model": model, "key": jax.random.key(1), "count": jnp.arange(3)}
    metric = TreeHealth(like=tree)
    assert_results(metric.update(tree, {"model": arrays}).results(), {"grad_norm": norm(arrays)})


def test_shapes_are_enough(rng):
    tree = drawn(rng)
    shapes = jax.eval_shape(lambda: jax.tree.map(jnp.asarray, tree))
    assert jax.tree.structure(TreeHealth(like=shapes)) == jax.tree.structure(TreeHealth(like=tree))
    bare = TreeHealth(like=jnp.ones(3), groups=1).update(jnp.full(3, jnp.nan))
    assert bare.results()["first_nonfinite"] == ""


def test_another_tree_is_refused_by_the_name_of_the_leaf(rng):
    tree = drawn(rng)
    metric = TreeHealth(like=tree)
    missing, more, other = (copy.deepcopy(tree) for _ in range(3))
    del missing["layers"][1]["kernel"]
    more["head"] = np.zeros(3, np.float32)
    other["layers"][0]["kernel"] = other["layers"][0]["kernel"].T
    for update in (metric.update, jax.jit(metric.update)):
        with pytest.raises(MetricInputError, match=r"grads has no .* 'layers/1/kernel'"):
            update(tree, missing)
        with pytest.raises(MetricInputError, match="params has an array at 'head'"):
            update(more)
        with pytest.raises(MetricInputError, match=r"'layers/0/kernel' has shape \(8, 24\)"):
            update(updates=other)
    with pytest.raises(datarax.ConfigurationMismatchError, match="like"):
        metric.merge(TreeHealth(like=more))


def test_misuse_is_refused(rng):
    tree = drawn(rng)
    metric = TreeHealth(like=tree)
    with pytest.raises(MetricInputError, match="at least one of params, grads, updates"):
        metric.update()
    with pytest.raises(MetricTypeError, match="step has dtype float64"):
        metric.update(tree, step=1.0)
    with pytest.raises(MetricInputError, match="one integer"):
        metric.update(tree, step=jnp.arange(2))
    with pytest.raises(TypeError, match="gradients"):
        metric.update(tree, gradients=tree)
    with pytest.raises(MetricInputError, match="no array of floats"):
        TreeHealth(like={"count": jnp.arange(3)})
    with pytest.raises(MetricTypeError, match="'z' has dtype complex64"):
        TreeHealth(like={"z": jnp.zeros(2, jnp.complex64)})
    with pytest.raises(MetricInputError, match=r"'attention', .* matches no leaf.*'embed/table'"):
        TreeHealth(like=tree, groups={"heads": "attention"})
    for groups in (0, 1.5, "layers", {"": "layers"}, {"layers": "("}, {"a": 1}, True):
        with pytest.raises(MetricInputError, match="groups"):
            TreeHealth(like=tree, groups=groups)


def test_a_copy_with_another_policy_reads_the_same_state(rng):
    tree = drawn(rng)
    twice = TreeHealth(like=tree, groups=GROUPS).update(tree, step=0).update(tree, step=0)
    with pytest.warns(InvalidValuesWarning):
        results = twice.replace(on_invalid="exclude").results()
    np.testing.assert_allclose(results["param_norm"], norm(tree) * 2**0.5, rtol=1e-6)
