"""Declared configuration: constructors, signatures, `repr`, checks, `replace`."""

import inspect
import math
from typing import ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import datarax
from datarax import metrics
from datarax.statistics import ClassCounts, LeafState, State


class Clipped(datarax.Metric):
    """The mean of values clipped to a limit, times a factor."""

    limit: float = datarax.field(kw_only=False)
    factor: float = 1.0
    side: Literal["above", "below"] | None = "above"
    strict: bool = False

    total = datarax.MetricAccumulator(0.0)
    count = datarax.MetricAccumulator(0)
    invalid = datarax.MetricAccumulator(0)

    def __post_init__(self):
        if not self.limit > 0:
            raise ValueError("limit must be positive")

    def update(self, values):
        fine = jnp.isfinite(values)
        clipped = jnp.where(fine, jnp.minimum(values, self.limit), 0)
        return self.replace(
            total=self.total.update(clipped),
            count=self.count.update(fine),
            invalid=self.invalid.update(~fine),
        )

    def compute(self):
        return self.factor * self.total.value / self.count.value.to_float()


class Doubled(Clipped):
    factor = 2.0
    side: ClassVar[None] = None  # type: ignore[reportIncompatibleVariableOverride]

    def compute(self):
        return super().compute() + 0


EVERY = [x for x in vars(metrics).values() if isinstance(x, type) and issubclass(x, datarax.Metric)]


def test_fields_are_the_arguments_and_the_attributes():
    given = inspect.signature(Clipped).parameters
    assert list(given) == ["limit", "factor", "side", "strict", "on_invalid"]
    assert given["limit"].kind is inspect.Parameter.POSITIONAL_OR_KEYWORD
    assert {p.kind for p in list(given.values())[1:]} == {inspect.Parameter.KEYWORD_ONLY}
    assert given["limit"].default is inspect.Parameter.empty
    assert (given["factor"].default, given["factor"].annotation) == (1.0, float)
    metric = Clipped(3.0, factor=0.5)
    assert (metric.limit, metric.factor, metric.side, metric.strict) == (3.0, 0.5, "above", False)
    assert Clipped(limit=3.0, factor=0.5).merge(metric).limit == 3.0


def test_a_subclass_changes_a_default_and_fixes_a_field():
    assert Doubled(1.0).factor == 2.0
    assert "side" not in inspect.signature(Doubled).parameters
    with pytest.raises(datarax.MetricTypeError, match=r"Doubled: .*'side'.*it takes: limit, "):
        Doubled(1.0, side="below")
    assert Doubled(1.0).update(jnp.array([0.5, 4.0])).compute() == 1.5


def test_repr_shows_what_differs_from_the_default():
    assert repr(Clipped(3.0)) == "Clipped(limit=3.0)"
    assert repr(Clipped(3.0, strict=True, on_invalid="raise")) == (
        "Clipped(limit=3.0, strict=True, on_invalid='raise')"
    )
    assert repr(metrics.Accuracy(num_classes=7)) == "Accuracy(num_classes=7)"
    assert (
        repr(ClassCounts(num_labels=2, threshold=0.1)) == "ClassCounts(num_labels=2, threshold=0.1)"
    )


@pytest.mark.parametrize(
    ("arguments", "error", "match"),
    [
        ({}, datarax.MetricTypeError, "Clipped: missing a required argument: 'limit'"),
        ({"limit": 1.0, "factr": 2}, datarax.MetricTypeError, "'factr'; it takes: limit, factor="),
        ({"limit": -1.0}, ValueError, "positive"),
        ({"limit": 1.0, "side": "left"}, datarax.MetricInputError, "side='left'; expected one of"),
        ({"limit": 1.0, "strict": "no"}, datarax.MetricInputError, "strict='no'"),
        ({"limit": 1.0, "on_invalid": "ignore"}, datarax.MetricInputError, "on_invalid='ignore'"),
        ({"limit": 1.0, "factor": [1.0]}, datarax.MetricTypeError, "factor is a list"),
        ({"limit": 1.0, "factor": np.ones(2)}, datarax.MetricTypeError, "factor is an array"),
    ],
)
def test_a_wrong_argument_is_refused_by_name(arguments, error, match):
    with pytest.raises(error, match=match):
        Clipped(**arguments)


def test_an_argument_by_position_is_refused_with_what_is_given_by_name():
    with pytest.raises(datarax.MetricTypeError, match=r"too many .* it takes: limit, factor=, "):
        Clipped(1.0, 2.0)


def test_replace_changes_how_a_state_is_read_and_not_what_it_was_collected_under():
    metric = Clipped(2.0, on_invalid="exclude").update(jnp.array([1.0, 4.0, jnp.nan]))
    for changes, want in (({}, 1.5), ({"factor": 2.0}, 3.0), ({"on_invalid": "propagate"}, np.nan)):
        with pytest.warns(datarax.InvalidValuesWarning, match="Clipped: 1 values"):
            np.testing.assert_equal(float(metric.replace(**changes).compute()), want)
    with pytest.raises(datarax.InvalidValuesError, match="Clipped: 1 "):
        metric.replace(on_invalid="raise").compute()
    with pytest.raises(datarax.MetricInputError, match="on_invalid='never'"):
        metric.replace(on_invalid="never")
    counts = metrics.Accuracy(num_classes=3, average="weighted")
    assert counts.replace(average="macro").average == "macro"
    with pytest.raises(datarax.MetricInputError, match=r"Accuracy\.replace\(num_classes=4\)"):
        counts.replace(num_classes=4)
    with pytest.raises(AttributeError, match="no attribute 'averag'"):
        counts.replace(averag="macro")


def test_a_formula_may_give_numbers_of_python():
    class Two(Clipped):
        def compute(self):
            return {"two": 2, "half": 0.5}

    seen = Two(1.0).update(jnp.array([1.0]))
    assert seen.compute() == {"two": 2, "half": 0.5}
    with pytest.warns(datarax.InvalidValuesWarning):
        got = seen.update(jnp.inf).results()
    np.testing.assert_equal(got, {"two": 2, "half": np.nan, "invalid": 1})


def test_nan_equals_itself_in_a_configuration():
    a, b = (metrics.F1(zero_division=float(x)) for x in ("nan", "NaN"))
    assert math.isnan(a.zero_division)
    assert jax.tree.structure(a) == jax.tree.structure(b)
    a.merge(b).load_state_dict(b.state_dict())


def test_each_instance_makes_the_states_of_its_class_body():
    assert Clipped(1.0).total is not Clipped(1.0).total
    # And their empty arrays are the same objects, by which members of a collection share.
    assert all(
        a is b for a, b in zip(*map(jax.tree.leaves, (Clipped(1.0), Clipped(2.0))), strict=True)
    )


def test_every_metric_declares_its_configuration():
    for cls in EVERY:
        check_declaration(cls)


def check_declaration(cls):
    given = inspect.signature(cls).parameters.values()
    kinds = {p.kind for p in given}
    assert inspect.Parameter.VAR_KEYWORD not in kinds
    assert inspect.Parameter.VAR_POSITIONAL not in kinds
    assert (
        "__init__"
        not in {name for base in cls.__mro__[:-3] for name in vars(base)} - vars(State).keys()
    )
    assert {p.name for p in given} == {name for name, f in cls.fields.items() if f.init}
    update = inspect.signature(cls.update).parameters.values()
    assert not {p.kind for p in update} & {
        inspect.Parameter.VAR_POSITIONAL,
        inspect.Parameter.VAR_KEYWORD,
    }


def test_a_leaf_state_that_lacks_a_method_is_refused_by_name():
    with pytest.raises(TypeError, match=r"Half is a LeafState.*canonical, to_mesh, from_mesh"):

        class Half(LeafState):
            def empty(self):
                return {"value": np.zeros(())}

            def combine(self, other):
                return self


def test_numpy_scalars_are_configuration():
    labels = np.array([0, 1, 2])
    for size in (labels.max() + 1, np.array(3), np.uint8(3), jnp.asarray(labels).max() + 1):
        metric = metrics.F1(num_classes=size, zero_division=np.float32(1))
        assert repr(metric) == "F1(zero_division=1.0, num_classes=3)"
        assert type(metric.num_classes) is int
        metric.merge(metrics.F1(num_classes=3, zero_division=1.0))  # one configuration
    assert type(metrics.LogLoss(from_logits=np.bool_(True)).from_logits) is bool
    assert metrics.Quantile(np.float32([0.5])[0]).q == 0.5
    assert metrics.Quantile((np.float64(0.5), np.float64(0.25))).q == (0.5, 0.25)
    assert metrics.Accuracy(average=np.str_("macro")).average == "macro"
    # Where the dtype is part of the configuration, it stays.
    assert datarax.MetricAccumulator(np.float32(-1), "max").dtype == np.float32
    with pytest.raises(datarax.MetricInputError, match="num_classes"):
        jax.jit(lambda n: metrics.F1(num_classes=n).compute())(3)
