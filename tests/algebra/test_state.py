"""States as values: immutable, merged with their like, saved and loaded whole or not at all."""

import copy
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from datarax import (
    Bootstrap,
    ConfigurationMismatchError,
    DataraxError,
    Metric,
    MetricAccumulator,
    MetricInputError,
    MetricTypeError,
    Sliced,
)
from datarax.algebra.fields import state
from datarax.algebra.pytrees import children_of
from datarax.algebra.saving import FORMAT
from datarax.algebra.state import is_untouched
from datarax.distributed.merge_ops import MetricReduceOp, identity
from datarax.metrics import Accuracy, Max, Mean, Min, Std, Sum, Variance
from datarax.statistics import Buffer, ClassCounts, Moments, WeightedTotal


class Nested(Metric):
    """Configuration of every kind; states in a tuple, in a dict, and within a metric."""

    def __init__(self, names=("a", "b"), size=2, label=None):
        self.names, self.label = names, label
        self.parts = tuple(MetricAccumulator(np.zeros(i + 1)) for i in range(size))
        self.table = {"count": MetricAccumulator(0), "peak": MetricAccumulator(-np.inf, "max")}
        self.inner = Std(ddof=1)

    def update(self, values):
        return self.replace(
            parts=tuple(
                part.update(jnp.sum(values) + jnp.zeros(part.shape)) for part in self.parts
            ),
            table={
                "count": self.table["count"].update(1),
                "peak": self.table["peak"].update(values),
            },
            inner=self.inner.update(values),
        )

    def compute(self):
        return {"parts": [p.value for p in self.parts], "std": self.inner.compute()} | {
            name: acc.value for name, acc in self.table.items()
        }


VALUES = jnp.asarray([1.0, 2.0, 4.0])
LABELS = jnp.asarray([0, 1, 1])
STATES = {
    "accumulator": (MetricAccumulator(0.0), (VALUES,)),
    "count": (MetricAccumulator(5), (LABELS,)),
    "peak": (MetricAccumulator(np.int8(-5), "max"), (jnp.int8(3),)),
    "weighted": (WeightedTotal(), (VALUES,)),
    "moments": (Moments(order=4), (VALUES,)),
    "buffer": (Buffer(2), (VALUES,)),
    "class counts": (ClassCounts(num_classes=3), (LABELS, LABELS)),
    "mean": (Mean(), (VALUES,)),
    "sum": (Sum(), (VALUES,)),
    "max": (Max(), (VALUES,)),
    "min": (Min(), (VALUES,)),
    "variance": (Variance(ddof=1), (VALUES,)),
    "accuracy": (Accuracy(num_classes=3, average=None), (LABELS, LABELS)),
    "nested": (Nested(), (VALUES,)),
}


@pytest.fixture(params=STATES, scope="module")
def case(request):
    """A state, empty, and the same after one update."""
    empty, args = STATES[request.param]
    return empty, empty.update(*args)


def assert_equal(a, b):
    """The same class, configuration and arrays, bit for bit."""
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        assert x.dtype == y.dtype
        np.testing.assert_array_equal(x, y)


# Values.


def test_a_state_cannot_be_changed(case):
    _, state = case
    before = copy.deepcopy(state)
    name = state._children[0]
    with pytest.raises(AttributeError, match=rf"immutable: \.replace\({name}=\.\.\.\)"):
        setattr(state, name, None)
    with pytest.raises(AttributeError, match="immutable"):
        state.new = 1
    with pytest.raises(AttributeError, match="immutable"):
        delattr(state, name)
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        state.replace(nonsense=1)
    assert_equal(state, before)


def test_fresh_arrays_cannot_be_written_to(case):
    for leaf in jax.tree.leaves(case[0]):
        assert isinstance(leaf, np.ndarray)
        with pytest.raises(ValueError, match="read-only"):
            leaf[...] = 7


def test_update_leaves_the_old_state_alone(case):
    empty, state = case
    assert_equal(empty, copy.deepcopy(STATES[_name(empty)][0]))
    assert_equal(state.reset(), empty)
    assert_equal(state.reset().merge(state), state)


@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("cls", [Accuracy, Mean, Std])
def test_a_reset_says_that_x64_has_changed(cls, first):
    with jax.enable_x64(first):
        state = cls()
    said = f"it was made {'with' if first else 'without'} jax_enable_x64"
    with jax.enable_x64(not first), pytest.raises(MetricTypeError, match=said):
        state.reset()


def _name(state):
    return next(name for name, (empty, _) in STATES.items() if empty is state)


def test_a_state_is_a_pytree_with_named_leaves(case):
    _, state = case
    leaves, structure = jax.tree.flatten(state)
    assert_equal(structure.unflatten(leaves), state)
    paths = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(state)]
    assert len(set(paths)) == len(leaves)
    assert paths[0].startswith("." + state._children[0])
    assert_equal(jax.jit(lambda s: s)(state), state)
    for round_trip in (copy.copy, copy.deepcopy, lambda s: pickle.loads(pickle.dumps(s))):
        again = round_trip(state)
        assert_equal(again, state)
        with pytest.raises(AttributeError, match="immutable"):
            again.new = 1
    assert type(state).__name__ in repr(state)


# Configuration.


@pytest.mark.parametrize(
    ("value", "what"),
    [([1, 2], "a list"), ({}, "a dict"), (np.zeros(2), "an array"), ({1}, "a set")],
)
def test_configuration_must_be_hashable(value, what):
    class Threshold(Metric):
        def __init__(self, cuts):
            self.cuts = cuts

    with pytest.raises(MetricTypeError, match=f"Threshold.cuts is {what}: .*hashable"):
        Threshold(value)
    with pytest.raises(MetricTypeError, match=f"Threshold.cuts is {what}"):
        Threshold((1, 2)).replace(cuts=value)
    with pytest.raises(MetricTypeError, match=r"Threshold\.cuts is an array"):
        Threshold(jnp.zeros(()))
    assert Threshold((1, 2)).cuts == (1, 2)


# Merging.


@pytest.mark.parametrize(
    ("a", "b", "field"),
    [
        # In another library, merging thresholds 0.5 and 0.9 gives a number.
        (Accuracy(threshold=0.5), Accuracy(threshold=0.9), "threshold is 0.5 in one and 0.9"),
        (Accuracy(num_classes=3), Accuracy(num_classes=4), "num_classes is 3 in one and 4"),
        (Accuracy(average=None), Accuracy(), "average is None in one and 'micro'"),
        (Mean(), Mean(on_invalid="raise"), "on_invalid is 'propagate' in one and 'raise'"),
        (Mean(), Sum(), "Mean is a Mean in one and a Sum"),
        (Mean(), WeightedTotal(), "Mean is a Mean in one and a WeightedTotal"),
        (Mean(), 3.0, "Mean is a Mean in one and a float"),
        (Mean(), None, "Mean is a Mean in one and a NoneType"),
        (Variance(), Variance(ddof=1), "ddof is 0 in one and 1"),
        (Mean(), Mean().from_outputs(values="loss"), "outputs is "),
        (Buffer(3), Buffer(4), "capacity is 3 in one and 4"),
        (Moments(order=2), Moments(order=3), "order is 2 in one and 3"),
        (Moments((2,)), Moments((3,)), r"shape is \(2,\) in one and \(3,\)"),
        (MetricAccumulator(0), MetricAccumulator(0, "max"), "op is .*sum.* in one and .*max"),
        (MetricAccumulator(0), MetricAccumulator(1), "initial_value is "),
        (MetricAccumulator(0), MetricAccumulator(0.0), "dtype is "),
        (MetricAccumulator(0.0), MetricAccumulator(np.zeros(2)), "initial_value is "),
        (Nested(), Nested(names=("a", "c")), r"names is \('a', 'b'\) in one and \('a', 'c'\)"),
        (Nested(), Nested(size=3), r"parts holds \['0', '1'\] in one and \['0', '1', '2'\]"),
        (Nested(label=1), Nested(), "label is 1 in one and None"),
    ],
    ids=repr,
)
def test_what_differs_does_not_merge(a, b, field):
    with pytest.raises(ConfigurationMismatchError, match=f"cannot merge: .*{field}") as error:
        a.merge(b)
    assert isinstance(error.value, DataraxError | ValueError)
    # The names of outputs are no state.
    if isinstance(b, Metric) and type(a) is type(b) and field != "outputs is ":
        with pytest.raises(ConfigurationMismatchError, match=r"\.load_state_dict|saved state"):
            a.load_state_dict(b.state_dict())


def test_states_of_other_shapes_do_not_merge():
    stacked = jax.tree.map(lambda x: jnp.broadcast_to(x, (3, *x.shape)), Mean())
    with pytest.raises(MetricInputError, match=r"Mean: its arrays have a leading axis of 3"):
        Mean().merge(stacked)
    assert stacked.merge(stacked).statistic.sums.parts[0].shape == (3, 2)
    np.testing.assert_array_equal(stacked.reset().statistic.sums.parts[0], np.zeros((3, 2)))


# Saving.


def arrays_of(state_dict):
    """The arrays in a state dict, in order, by where they are."""
    if isinstance(state_dict, np.ndarray):
        return [state_dict]
    assert type(state_dict) is dict
    if "type" in state_dict:
        assert type(state_dict["type"]) is str
        assert all(_plain(value) for value in state_dict["config"].values())
        state_dict = state_dict["state"]
    return [array for key in sorted(state_dict) for array in arrays_of(state_dict[key])]


def _plain(value):
    if type(value) is list:
        return all(map(_plain, value))
    return value is None or type(value) in (bool, int, float, str)


def test_a_state_dict_is_plain_and_comes_back(case):
    empty, state = case
    saved = state.state_dict()
    assert set(saved) == {"format", "type", "config", "state"}
    assert len(arrays_of(saved)) == len(jax.tree.leaves(state))
    assert_equal(empty.load_state_dict(saved), state)
    assert_equal(state.load_state_dict(empty.state_dict()), empty)
    # Through a pickle, and with arrays that came back as JAX's.
    saved = jax.tree.map(lambda x: jnp.asarray(x) if isinstance(x, np.ndarray) else x, saved)
    assert_equal(empty.load_state_dict(pickle.loads(pickle.dumps(saved))), state)
    # What is loaded goes on as the original would.
    again = state.load_state_dict(saved)
    assert_equal(
        jax.jit(lambda a, b: a.merge(b))(again, state),
        jax.jit(lambda a, b: a.merge(b))(state, state),
    )


def test_a_saved_state_is_a_copy(case):
    empty, state = case
    saved = state.state_dict()
    before = copy.deepcopy(saved)
    loaded = empty.load_state_dict(saved)
    for array in arrays_of(saved):
        array[...] = 1
    assert_equal(loaded, empty.load_state_dict(before))
    assert_equal(loaded, state)


def damaged(saved):
    """Ways to spoil a state dict: each with what the error must name."""

    def change(path, value):
        other = copy.deepcopy(saved)
        place = other
        for key in path[:-1]:
            place = place[key]
        if value is None:
            del place[path[-1]]
        else:
            place[path[-1]] = value
        return other

    def first_array(at, path):
        if isinstance(at, np.ndarray):
            return path
        at, path = (at["state"], (*path, "state")) if "state" in at else (at, path)
        key = sorted(at)[-1]
        return first_array(at[key], (*path, key))

    path = first_array(saved, ())
    array = saved
    for key in path:
        array = array[key]
    child = sorted(saved["state"])[-1]
    yield "shape", change(path, np.zeros((*array.shape, 3), array.dtype)), r"expected .*\["
    yield "dtype", change(path, array.astype(np.float64)), "float64"
    yield "no array", change(path, "x"), "expected"
    yield "a missing array", change(path, None), "expected|holds"
    yield "a missing child", change(("state", child), None), "holds|expected"
    yield "another child", change(("state", "spare"), np.zeros(3)), "spare"
    yield "the old layout, which has no format", change(("format",), None), "format 1"
    yield "a newer format", change(("format",), FORMAT + 1), f"format {FORMAT + 1}"
    yield "no type", change(("type",), None), "'type'"
    yield "no config", change(("config",), None), "'config'"
    yield "no state", change(("state",), None), "'state'"
    yield "another class", change(("type",), "datarax.metrics.Other"), "datarax.metrics.Other"
    yield "another field", change(("config", "spare"), 7), "spare is 7"
    yield "a broken config", change(("config",), [1]), "expected|config"
    yield "a broken state", change(("state",), 3), "expected|state|holds"
    yield "a number", 3, "expected a dict"
    yield "nothing", None, "expected a dict"
    yield "an empty dict", {}, "expected a dict"
    yield "the state alone", saved["state"], "expected a dict"


def test_a_damaged_state_dict_is_refused_whole(case):
    empty, state = case
    before = copy.deepcopy(state)
    for what, saved, match in damaged(empty.state_dict()):
        with pytest.raises(ConfigurationMismatchError, match=match) as error:
            state.load_state_dict(saved)
        assert type(state).__name__ in str(error.value), what
        assert_equal(state, before)


def test_another_metric_or_configuration_is_refused_by_name():
    saved = Accuracy(threshold=0.5).state_dict()
    with pytest.raises(ConfigurationMismatchError, match=r"threshold is 0\.5 in the saved .* 0\.9"):
        Accuracy(threshold=0.9).load_state_dict(saved)
    with pytest.raises(ConfigurationMismatchError, match=r"datarax\.Mean.*datarax\.Accuracy"):
        Mean().load_state_dict(saved)
    with pytest.raises(ConfigurationMismatchError, match="on_invalid"):
        Accuracy(on_invalid="raise").load_state_dict(saved)
    nested = Nested().update(VALUES).state_dict()
    with pytest.raises(ConfigurationMismatchError, match="names is"):
        Nested(names=("x",)).load_state_dict(nested)
    with pytest.raises(ConfigurationMismatchError, match="parts"):
        Nested(size=3).load_state_dict(nested)


def test_a_saved_state_names_no_module_and_one_that_does_is_read():
    accuracy = Accuracy().update(np.float32([0.9, 0.1]), np.int32([1, 1]))
    saved = accuracy.state_dict()
    assert saved["type"] == "datarax.Accuracy"
    saved["type"] = "datarax.metrics.Accuracy"
    assert accuracy.reset().load_state_dict(saved).results() == 0.5


def test_a_new_metric_stays_new_however_many_others_are_made():
    stacked, single = Sliced(Max(), 2), ClassCounts(num_classes=3)
    for size in range(5000):  # more than what is kept for its own sake
        identity(MetricReduceOp.max, (0, size), np.dtype("float32"))
        identity(MetricReduceOp.sum, (0, size), np.dtype("float32"))
    for size in range(3, 300):
        Sliced(Max(), size)
    assert is_untouched(stacked)
    assert is_untouched(single)
    Bootstrap(Sliced(Mean(), 2))


class Halves(Metric):
    """Of one value, or of two."""

    two: bool = False
    first: WeightedTotal = state()
    second: WeightedTotal | None = state(optional=True)

    def __post_init__(self):
        self.first = WeightedTotal()
        if self.two:
            self.second = WeightedTotal()


class Third(Halves):
    """The same by inheritance."""


@pytest.mark.parametrize("cls", [Halves, Third])
def test_an_optional_state_is_none_where_there_is_none(cls):
    assert cls.second is None
    assert list(cls.fields) == ["two", "on_invalid", "outputs"]
    for two, names in ((False, {"first"}), (True, {"first", "second"})):
        metric = cls(two=two)
        copies = (
            metric,
            jax.tree.map(np.asarray, metric),  # a flat state, without its children yet
            pickle.loads(pickle.dumps(metric)),
            metric.replace(on_invalid="raise"),
            metric.load_state_dict(metric.state_dict()),
            metric.merge(metric),
        )
        for each in copies:
            assert (each.second is None) != two
            assert children_of(each).keys() == names
        assert metric.state_dict()["state"].keys() == names
        assert metric.state_dict()["config"].keys() == {"two", "on_invalid", "outputs"}
