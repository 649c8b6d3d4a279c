"""`Collection.from_rules`: a metric for each name of a step's outputs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import datarax
from datarax import MetricInputError, MetricTypeError
from datarax.metrics import Accuracy, LastValue, Max, Mean, Ratio, Sum
from datarax.training import StatefulMetric

RULES = {
    "learning/moe_lb_loss": Mean(),
    "learning/*loss": Ratio().from_outputs(denominator="learning/total_weights"),
    "learning/total_weights": Sum(),
    "*grad_norm": Max(),
    "learning/current_learning_rate": LastValue(),
    "*": Mean(),
}
NAMES = (
    "learning/loss",
    "learning/moe_lb_loss",
    "learning/total_weights",
    "learning/grad_norm",
    "learning/current_learning_rate",
    "perf/step_time",
)


def outputs(rng, shape=()):
    drawn = {name: rng.uniform(0.5, 2, shape).astype(np.float32) for name in NAMES}
    return drawn | {"learning/total_weights": rng.integers(1, 4096, shape).astype(np.int32)}


def expected(steps):
    """From all outputs, (steps, micro-batches)."""
    x = {name: np.float64(value) for name, value in steps.items()}
    weights = x["learning/total_weights"]
    return {
        "learning/loss": x["learning/loss"].sum() / weights.sum(),
        "learning/moe_lb_loss": x["learning/moe_lb_loss"].mean(),
        "learning/total_weights": int(weights.sum()),
        "learning/grad_norm": x["learning/grad_norm"].max(),
        "learning/current_learning_rate": x["learning/current_learning_rate"][-1].max(),
        "perf/step_time": x["perf/step_time"].mean(),
    }


def test_the_scalars_of_steps_and_those_of_micro_batches(rng):
    data = outputs(rng, (5, 4))
    metrics = datarax.Collection.from_rules(RULES, dict.fromkeys(NAMES))
    assert list(metrics) == sorted(NAMES)

    @jax.jit
    def step(metrics, batches):
        # The aux of a scan over micro-batches has a leading axis.
        _, aux = lax.scan(lambda carry, batch: (carry, batch), None, batches)
        return metrics.update(**aux)

    stateful = StatefulMetric(metrics)
    for i in range(5):
        batches = {name: x[i] for name, x in data.items()}
        metrics = step(metrics, batches)
        stateful.update(**batches)
    want = expected(data)
    for results in (metrics.results(), stateful.results()):
        assert results == {name: pytest.approx(x, rel=1e-6) for name, x in want.items()}
    # A dict of scalars of one micro-batch.
    one = outputs(rng)
    alone = datarax.Collection.from_rules(RULES, one).update(**one).results()
    want = expected({name: x[None, None] for name, x in one.items()})
    assert alone == {name: pytest.approx(x, rel=1e-6) for name, x in want.items()}


def test_the_first_rule_that_matches_decides():
    first = datarax.Collection.from_rules({"*loss": Mean(), "a/*": Max()}, {"a/loss": 0, "a/b": 0})
    assert {name: type(metric) for name, metric in first.items()} == {"a/b": Max, "a/loss": Mean}
    other = datarax.Collection.from_rules({"a/*": Max(), "*loss": Mean()}, {"a/loss": 0})
    assert type(other["a/loss"]) is Max
    # A pattern is of letters as they are written, and need not match any name.
    chosen = datarax.Collection.from_rules(
        {"LOSS": Sum(), "[lx]oss?": Max(), "*": Mean()}, {"loss1": 0}
    )
    assert type(chosen["loss1"]) is Max


def test_members_that_are_alike_have_one_stacked_state():
    names = [f"layer_{i}/loss" for i in range(20)]
    metrics = datarax.Collection.from_rules({"*": Mean()}, dict.fromkeys(names))
    assert len(jax.tree.leaves(metrics)) == len(jax.tree.leaves(Mean()))
    update = jax.jit(lambda m, x: m.update(**x))
    got = update(metrics, {name: jnp.float32(i) for i, name in enumerate(names)}).results()
    assert got == {name: float(i) for i, name in enumerate(names)}


def test_a_rule_may_be_a_wrapper_or_a_collection():
    rules = {
        "x": datarax.Window(Mean(), 2),
        "y": datarax.Collection({"mean": Mean(), "max": Max()}),
        "z": datarax.Interval(Ratio().from_outputs(denominator="n")),
    }
    metrics = datarax.Collection.from_rules(rules, dict.fromkeys("xyz"))
    for x in (1.0, 3.0, 5.0):
        metrics = metrics.update(x=x, y=x, z=np.full(3, x), n=np.full(3, 2.0))
    got = metrics.results()
    assert (got["x"], got["y/mean"], got["y/max"], got["z/value"]) == (4, 3, 5, 1.5)


def test_names_without_a_rule_are_listed():
    with pytest.raises(MetricInputError, match=r"no rule matches 'b', 'c/d'; the rules are 'a\*'"):
        datarax.Collection.from_rules({"a*": Mean()}, {"a": 0, "b": 0, "c/d": 0})


def test_misuse():
    make = datarax.Collection.from_rules
    with pytest.raises(MetricTypeError, match=r"rules is .*; expected a dict"):
        make([("a", Mean())], {"a": 0})
    with pytest.raises(MetricTypeError, match=r"example is .*; expected a dict"):
        make({"a": Mean()}, "a")
    with pytest.raises(MetricTypeError, match=r"the rule 'a' expects a datarax\.Metric"):
        make({"a": Mean}, {"a": 0})
    with pytest.raises(MetricInputError, match="the rule 'a' expects a metric without data"):
        make({"a": Mean().update(1.0)}, {"a": 0})
    with pytest.raises(MetricInputError, match="at least one metric"):
        make({"a": Mean()}, {})
    with pytest.raises(MetricInputError, match="the Mean of the rule 'a' names an output for each"):
        make({"a": Mean().from_outputs(values="b")}, {"a": 0})
    # An argument that no rule names is an output that is missing.
    with pytest.raises(MetricInputError, match="'acc': Accuracy needs the output 'target'"):
        make({"acc": Accuracy()}, {"acc": 0}).update(acc=np.array([1, 0]))
