"""The laws that any metric must obey."""

import copy
import math
import pickle
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from datarax._errors import ConfigurationMismatchError
from datarax.metrics.base import Metric
from datarax.statistics.state import walk
from datarax.testing import subject
from datarax.testing.subject import Subject, Tolerance, apply, described, fold, merge, numbers, read
from datarax.testing.ulps import Unequal, assert_within_ulps, flatten


def check_metric(
    metric: Metric,
    batches: Iterable[Any],
    *,
    ulps: Tolerance = 4,
    atol: Tolerance = 0.0,
    state_atol: float = 0.0,
    empty: Any = math.nan,
    compare_states: bool = True,
) -> None:
    """Raises unless `metric` obeys the laws that every metric must obey, on these batches.

    Merging is associative and commutative, and `reset()` its identity; how examples are ordered,
    cut into batches and spread over devices is of no matter; an integer weight is a repetition,
    and weight zero an absence, even of NaN, where `update` takes `weights`; the state keeps its
    shapes and dtypes, is traced once, may be donated, is a carry of `lax.scan` and
    `lax.while_loop`, and passes through `vmap`, `shard_map`, `state_dict()`, copies and pickles;
    no data gives `empty`.

    Integers are compared exactly. Floats, of results and of states, agree within `ulps` units in
    the last place, so that whole numbers agree exactly below `2**23 / ulps`. NaN equals only NaN.

    Args:
        metric: with no data yet.
        batches: at least three, alike in shapes and dtypes, of valid data. Each is what `update`
            takes: a dict of keyword arguments, a tuple of positional ones, or an array. The arrays
            of a batch have one leading axis, of at least two examples.
        ulps: how many units in the last place two floats may be apart; of a collection, one number
            for all its members, or a dict with one for each.
        atol: a distance at which they are equal all the same, for results that cancel.
        state_atol: the same for the numbers of the state.
        empty: the result where there is no data: a number, for all of it, or a pytree like it.
        compare_states: False for a state that may hold the same data in another order, as a
            `Buffer`'s: then only results are compared.

    Raises:
        AssertionError: a law is broken; names the metric, the law, and what differs.
        MetricInputError: batches on which the laws cannot be checked.
        MetricTypeError: something that is not a metric.

    Example:
        >>> import jax
        >>> import datarax
        >>> from datarax.testing import check_metric
        >>> class MeanOfMeans(datarax.Metric):
        ...     total = datarax.MetricAccumulator(0.0)
        ...     count = datarax.MetricAccumulator(0)
        ...     def update(self, values):
        ...         total = self.total.update(values.mean())
        ...         return self.replace(total=total, count=self.count.update(1))
        ...     def compute(self):
        ...         return self.total.value / self.count.value
        >>> losses = jax.random.uniform(jax.random.key(0), (3, 8))
        >>> check_metric(datarax.metrics.Mean(), losses)
        >>> try:
        ...     check_metric(MeanOfMeans(), losses)
        ... except AssertionError as error:
        ...     print(str(error).splitlines()[0])
        MeanOfMeans breaks a law: how examples are cut into batches is of no matter
    """
    subject = Subject(metric, batches, ulps, atol, state_atol, empty, compare_states)
    for law, check in LAWS.items():
        try:
            check(subject)
        except Exception as error:
            what = str(error)
            if not isinstance(error, Unequal):
                what = f"it raised {type(error).__name__}: {error}"
            name = getattr(error, "member", None) or type(metric).__name__
            raise AssertionError(f"{name} breaks a law: {law}\n{what}") from error


# In the order in which they are checked: a law leans only on those above it.
LAWS: dict[str, Callable[[Subject], None]] = {}


def _law(name: str) -> Callable[[Callable[[Subject], None]], Callable[[Subject], None]]:
    def register(check: Callable[[Subject], None]) -> Callable[[Subject], None]:
        LAWS[name] = check
        return check

    return register


@_law("an update keeps the configuration, and the state's shapes and dtypes")
def _keeps_its_type(s: Subject) -> None:
    before = jax.tree.map(np.array, s.metric)
    updated = apply(s.metric, s.calls[0])
    was, now = jax.tree.structure(s.metric), jax.tree.structure(updated)
    if was != now:
        raise Unequal(f"it was {was}, and after an update it is {now}")
    assert_within_ulps(numbers(s.metric), numbers(before), name="the metric that was updated")
    leaves = jax.tree_util.tree_leaves_with_path(s.metric)
    for (path, x), y in zip(leaves, jax.tree.leaves(updated), strict=True):
        x, y = described(x), described(jnp.asarray(y))
        if x != y:
            raise Unequal(f"{jax.tree_util.keystr(path)} was {x}, and after an update it is {y}")


@_law("jit equals eager")
def _jit(s: Subject) -> None:
    eager = s.metric
    for call in s.calls:
        eager = apply(eager, call)
    s.same(s.used, eager)
    s.same_value(read(eager)[0], eager.compute())


@_law("reset() goes back to no data, whose result is the documented one")
def _empties(s: Subject) -> None:
    empty = numbers(s.metric.reset())
    assert_within_ulps(numbers(s.metric), empty, name="the metric handed in")
    assert_within_ulps(numbers(s.used.reset()), empty, name="the state after reset()")
    value, want = read(s.metric)[0], s.empty
    leaves, structure = flatten(value)
    each = [x for _, x in flatten(want)[0]] if flatten(want)[1] == structure else [want]
    each *= len(leaves) // len(each)
    full = [np.full(np.shape(x), y) for (_, x), y in zip(leaves, each, strict=True)]
    assert_within_ulps(value, structure.unflatten(full), name="the result of no data")


@_law("reset() is the identity of merge, on both sides")
def _identity(s: Subject) -> None:
    used = s.used
    s.same(merge(used, used.reset()), used, exactly=True)
    s.same(merge(used.reset(), used), used, exactly=True)


@_law("merge is commutative")
def _commutative(s: Subject) -> None:
    a, b = s.fold(s.calls[:1]), s.fold(s.calls[1:])
    s.same(merge(a, b), merge(b, a))


@_law("merge is associative")
def _associative(s: Subject) -> None:
    a, b, c = s.fold(s.calls[:1]), s.fold(s.calls[1:2]), s.fold(s.calls[2:])
    s.same(merge(merge(a, b), c), merge(a, merge(b, c)))


@_law("two that are merged equal one that saw both streams")
def _one_stream(s: Subject) -> None:
    s.same(merge(s.fold(s.calls[:1]), s.fold(s.calls[1:])), s.used)


@_law("how examples are cut into batches is of no matter")
def _batching(s: Subject) -> None:
    rest = jax.tree.map(lambda *xs: jnp.concatenate(xs), *s.calls[1:])
    s.same(s.fold([s.calls[0], rest]), s.used)


@_law("the order of examples is of no matter")
def _order(s: Subject) -> None:
    s.same(s.fold(jax.tree.map(lambda x: x[::-1], s.calls[::-1])), s.used)


@_law("a state may be donated")
def _donation(s: Subject) -> None:
    eager = apply(s.metric, s.calls[0])
    s.same(fold(eager, s.calls[1:]), s.used)
    s.same(fold(eager.reset(), s.calls), s.used, exactly=True)  # of a state that is gone


@_law("batches of one shape are traced once")
def _one_trace(s: Subject) -> None:
    traces = 0

    @jax.jit
    def update(metric: Metric, call: Any) -> Metric:
        nonlocal traces
        traces += 1
        return apply(metric, call)

    used = s.used
    states = {
        "empty": s.metric,
        "updated": used,
        "reset": used.reset(),
        "restored": used.load_state_dict(used.state_dict()),
        "merged": merge(used, used),
    }
    for name, state in states.items():
        before = traces
        for call in s.calls:
            jax.eval_shape(update, state, call)  # traces as a call would, and compiles nothing
        if before and traces != before:
            types = ", ".join(str(jax.typeof(leaf)) for leaf in jax.tree.leaves(state))
            raise Unequal(f"a state that is {name} is traced anew: {types}")


@_law("the empty state is a carry of lax.scan and lax.while_loop")
def _carry(s: Subject) -> None:
    s.same(subject.scanned(s.metric, s.stacked), s.used)
    jax.eval_shape(subject.looped, s.metric, s.stacked)


@_law("vmap over states equals one at a time")
def _vmap(s: Subject) -> None:
    states = [s.fold([call]) for call in s.calls]
    stacked = jax.tree.map(lambda *xs: jnp.stack(xs), *states)
    mapped = subject.vmapped(stacked, s.stacked)
    for i, call in enumerate(s.calls):
        state, value = jax.tree.map(lambda x, i=i: x[i], mapped)
        s.same(state, s.fold([call, call]))
        s.same_value(value, read(state)[0])


@_law("state_dict() is plain, restores, and refuses another configuration")
def _saving(s: Subject) -> None:
    saved = s.used.state_dict()
    _check_plain(saved, "state_dict()")
    s.same(s.metric.load_state_dict(saved), s.used, exactly=True)
    for field, other in _altered(saved):
        try:
            s.metric.load_state_dict(other)
        except ConfigurationMismatchError:
            continue
        raise Unequal(f"a state_dict() in which {field} differs was accepted")


def _check_plain(node: Any, path: str) -> None:
    if isinstance(node, dict | list):
        for key, value in node.items() if isinstance(node, dict) else enumerate(node):
            _check_plain(value, f"{path}[{key!r}]")
    elif node is not None and type(node) not in (bool, int, float, str, np.ndarray):
        raise Unequal(f"{path} is a {type(node).__name__}")


def _altered(saved: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Copies of a state dict, each with another value in one field of its configuration."""

    def fields(node: Any, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
        for key, value in node.items() if isinstance(node, dict) else ():
            if key == "type":
                yield (*path, key)
            elif key == "config":
                yield from ((*path, key, name) for name in value)
            else:
                yield from fields(value, (*path, key))

    for *path, last in fields(saved, ()):
        other = node = copy.deepcopy(saved)
        for key in path:
            node = node[key]
        node[last] = "another"
        yield ".".join((*path, last)), other


@_law("a copy and a pickle equal the original")
def _copies(s: Subject) -> None:
    used = s.used
    copies = [copy.copy(used), copy.deepcopy(used)]
    # Python pickles a class by its name; one that is defined within a function cannot be.
    if all(_is_importable(type(state)) for state in walk(used)):
        copies.append(pickle.loads(pickle.dumps(used)))
    for each in copies:
        if jax.tree.structure(each) != jax.tree.structure(used):
            raise Unequal(f"the copy is {each!r}, the original {used!r}")
        s.same(each, used, exactly=True)


def _is_importable(cls: type) -> bool:
    found: Any = sys.modules.get(cls.__module__)
    for name in cls.__qualname__.split("."):
        found = getattr(found, name, None)
    return found is cls


@_law("an integer weight is a repetition")
def _repetition(s: Subject) -> None:
    if s.takes_weights:
        weights, repeated = s.repeats()
        s.same(s.fold(s.weighted(np.ones(s.size), s.calls)), s.used)
        s.same(s.fold(s.weighted(weights, s.calls)), s.fold(repeated))


@_law("weight zero is an absence, whatever the example holds")
def _absence(s: Subject) -> None:
    if s.takes_weights:
        weights, repeated = s.repeats()

        def spoilt(x: jax.Array) -> jax.Array:
            if x.dtype == jnp.bool_:
                return x
            is_float = jnp.issubdtype(x.dtype, jnp.floating)
            return x.at[weights == 0].set(jnp.nan if is_float else jnp.iinfo(x.dtype).min)

        s.same(s.fold(s.weighted(weights, jax.tree.map(spoilt, s.calls))), s.fold(repeated))


@_law("inside shard_map, varying() makes it a carry, and sync() replicates it")
def _shard_map(s: Subject) -> None:
    # Types only: the numbers are those of `per_device`, which syncs inside shard_map too.
    jax.eval_shape(partial(subject.synced, devices=s.devices()), s.metric, s.stacked)


@_law("per_device equals one device")
def _per_device(s: Subject) -> None:
    # Weights pad what does not divide.
    devices = jax.local_device_count() if s.takes_weights else s.devices()
    s.same(subject.shard(s.metric, s.calls, devices), s.used)
