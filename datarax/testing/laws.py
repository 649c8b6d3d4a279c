"""The laws that every metric must obey, as checks of one metric on a few batches."""

import copy
import math
import pickle
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from datarax._errors import ConfigurationMismatchError
from datarax._typing import PyTree
from datarax.algebra.state import walk
from datarax.metric.base import Metric
from datarax.statistics.invalid_counts import with_invalid_of
from datarax.testing import subject
from datarax.testing.subject import (
    Subject,
    Tolerance,
    apply,
    described,
    fold,
    numbers,
    on_host,
    read,
)
from datarax.testing.ulps import Unequal, assert_within_ulps, flatten


def check_metric(
    metric: Metric,
    batches: Iterable[PyTree],
    *,
    ulps: Tolerance = 4,
    atol: Tolerance = 0.0,
    state_atol: float = 0.0,
    empty: PyTree = math.nan,
    compare_states: bool = True,
    rows: bool = True,
    on_host: bool = False,
) -> None:
    """Raises unless `metric` obeys the laws of metrics on these batches.

    The laws are:

    - Merging is associative and commutative, and an empty metric is its identity.
    - The result does not depend on the order of the examples, on how they are split into batches,
      or on how they are sharded over devices.
    - If `update` takes `weights`: an integer weight is the same as repeating the example (unless
      the class sets `weights_repeat = False`), and an example of weight zero does not count,
      whatever it holds: NaN, an infinity, a large number, or the values of another row, in one
      argument or in all.
    - The state keeps its shapes and dtypes, is traced once, may be donated, and can be the carry of
      `lax.scan` and `lax.while_loop`.
    - The metric works with `vmap`, `shard_map`, `per_device`, `state_dict()`, copies and pickles.
    - The result of no data is `empty`.

    Integers are compared exactly. Floats of results and states must agree within `ulps` units in
    the last place; whole numbers below `2**23 / ulps` must then be equal. NaN equals only NaN.

    Args:
        metric: a metric without data.
        batches: at least three batches of valid data, with the same shapes and dtypes. A batch is a
            dict of keyword arguments of `update`, a tuple of positional arguments, or one array.
            All arrays of a batch share one leading axis, with at least two examples.
        ulps: the largest accepted difference of two floats, in units in the last place. For a
            collection, it may be a dict with one number for each member.
        atol: an absolute difference that is accepted too, for results in which terms cancel; a
            number or a dict, as for `ulps`.
        state_atol: an absolute difference that is accepted too for the numbers of the state.
        empty: the expected result of no data: a number for every part of it, or a pytree with the
            structure of the result.
        compare_states: False if the state may hold the same data in another order, as a `Buffer`
            does; then only results are compared.
        rows: False if a batch is one step of a run, and not rows of examples: then the laws of
            rows, of the order of batches and of shards are left out, and the arrays of a batch need
            no common axis.
        on_host: True to check a metric whose updates run in NumPy without compiling anything: the
            laws of states, and whether an update, a scan of updates and a sync can be traced.

    Raises:
        AssertionError: a law is broken; the error names the metric, the law and the difference.
        MetricInputError: the laws cannot be checked on such batches.
        MetricTypeError: `metric` is not a plain metric.

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
        MeanOfMeans breaks a law: the split of examples into batches does not matter
    """
    subject = Subject(metric, batches, ulps, atol, state_atol, empty, compare_states, rows, on_host)
    for law, check in LAWS.items():
        if (not rows and law in OF_ROWS) or (on_host and law in OF_PROGRAMS):
            continue
        try:
            check(subject)
        except Exception as error:
            what = str(error)
            if not isinstance(error, Unequal):
                what = f"it raised {type(error).__name__}: {error}"
            name = getattr(error, "member", None) or type(metric).__name__
            raise AssertionError(f"{name} breaks a law: {law}\n{what}") from error


# The laws in the order in which they are checked. A check relies only on the laws before it.
Check = Callable[[Subject], None]
LAWS: dict[str, Check] = {}
OF_ROWS: set[str] = set()
"""The laws of metrics whose batches hold rows, in any order."""
OF_PROGRAMS: set[str] = set()
"""The laws that compile a program, also where the others run on the host."""


def _law(
    name: str, *, of_rows: bool = False, of_programs: bool = False
) -> Callable[[Check], Check]:
    def register(check: Check) -> Check:
        LAWS[name] = check
        if of_rows:
            OF_ROWS.add(name)
        if of_programs:
            OF_PROGRAMS.add(name)
        return check

    return register


@_law("an update keeps the configuration, and the state's shapes and dtypes")
def _keeps_its_type(s: Subject) -> None:
    before = jax.tree.map(np.array, s.metric)
    updated = apply(s.metric, s.calls[0])
    # The structure of a metric holds its configuration.
    was, now = jax.tree.structure(s.metric), jax.tree.structure(updated)
    if was != now:
        raise Unequal(f"before the update it was {was}, after it {now}")
    assert_within_ulps(numbers(s.metric), numbers(before), name="the metric that was updated")
    leaves = jax.tree_util.tree_leaves_with_path(s.metric)
    for (path, x), y in zip(leaves, jax.tree.leaves(updated), strict=True):
        x, y = described(x), described(jnp.asarray(y))
        if x != y:
            raise Unequal(f"before the update {jax.tree_util.keystr(path)} was {x}, after it {y}")


@_law("jit equals eager", of_programs=True)
def _jit(s: Subject) -> None:
    eager = s.metric
    for call in s.calls:
        eager = apply(eager, call)
    # The host computes in float64, so sums in which terms cancel differ by more than their ulps.
    s.same(s.used, eager, states=False)


@_law("reset() gives an empty metric, whose result is the documented one")
def _empties(s: Subject) -> None:
    empty = numbers(s.metric.reset())
    assert_within_ulps(numbers(s.metric), empty, name="the given metric")
    assert_within_ulps(numbers(s.used.reset()), empty, name="the state after reset()")
    value, want = read(s.metric)[0], s.empty
    leaves, structure = flatten(value)
    # `empty` is one number for all parts of the result, or has its structure.
    each = [x for _, x in flatten(want)[0]] if flatten(want)[1] == structure else [want]
    each *= len(leaves) // len(each)
    full = [np.full(np.shape(x), y) for (_, x), y in zip(leaves, each, strict=True)]
    assert_within_ulps(value, structure.unflatten(full), name="the result of no data")


@_law("reset() is the identity of merge, on both sides")
def _identity(s: Subject) -> None:
    used = s.used
    s.same(s.merge(used, used.reset()), used, exactly=True)
    s.same(s.merge(used.reset(), used), used, exactly=True)


@_law("merge is commutative")
def _commutative(s: Subject) -> None:
    a, b = s.fold(s.calls[:1]), s.fold(s.calls[1:])
    s.same(s.merge(a, b), s.merge(b, a))


@_law("merge is associative")
def _associative(s: Subject) -> None:
    a, b, c = s.fold(s.calls[:1]), s.fold(s.calls[1:2]), s.fold(s.calls[2:])
    s.same(s.merge(s.merge(a, b), c), s.merge(a, s.merge(b, c)))


@_law("two merged metrics equal one metric that was updated with all batches", of_rows=True)
def _one_stream(s: Subject) -> None:
    s.same(s.merge(s.fold(s.calls[:1]), s.fold(s.calls[1:])), s.used)


@_law("the split of examples into batches does not matter", of_rows=True)
def _batching(s: Subject) -> None:
    rest = on_host(lambda *xs: np.concatenate(xs), *s.calls[1:])
    s.same(s.fold([s.calls[0], rest]), s.used)


@_law("the order of examples does not matter", of_rows=True)
def _order(s: Subject) -> None:
    s.same(s.fold(on_host(lambda x: x[::-1], s.calls[::-1])), s.used)


@_law("a state may be donated", of_programs=True)
def _donation(s: Subject) -> None:
    given = jax.device_put(apply(s.metric, s.calls[0]))
    s.same(fold(given, s.calls[1:]), s.used, states=False)
    s.same(fold(given.reset(), s.calls), s.used, exactly=True)  # reset after donation


@_law("batches of one shape are traced once")
def _one_trace(s: Subject) -> None:
    traces = 0

    @jax.jit
    def update(metric: Metric, call: PyTree) -> Metric:
        nonlocal traces
        traces += 1
        return apply(metric, call)

    used = s.used
    states = {
        "empty": s.metric,
        "updated": used,
        "reset": used.reset(),
        "restored": used.load_state_dict(used.state_dict()),
        "merged": s.merge(used, used),
    }
    # The first call of all traces; no other may, as each state has the same type.
    for name, state in states.items():
        before = traces
        for call in s.calls:
            jax.eval_shape(update, state, call)  # traces like a call, but does not compile
        if before and traces != before:
            types = ", ".join(str(jax.typeof(leaf)) for leaf in jax.tree.leaves(state))
            raise Unequal(f"the {name} state is traced again: {types}")


@_law("the empty state can be the carry of lax.scan and lax.while_loop", of_programs=True)
def _carry(s: Subject) -> None:
    s.same(subject.scanned(s.metric, s.stacked), s.used)
    jax.eval_shape(subject.looped, s.metric, s.stacked)


@_law("vmap over states equals updating one state at a time", of_programs=True)
def _vmap(s: Subject) -> None:
    states = [s.fold([call]) for call in s.calls]
    after = [*s.calls[1:], s.calls[0]]  # none twice: a metric of steps takes each once
    stacked, others = (on_host(lambda *xs: np.stack(xs), *each) for each in (states, after))
    mapped = subject.vmapped(stacked, others)
    for i, (call, other) in enumerate(zip(s.calls, after, strict=True)):
        state, value = on_host(lambda x, i=i: x[i], mapped)
        s.same(state, s.fold([call, other]))
        s.same_value(value, read(state)[0])


@_law("state_dict() is plain and can be loaded, but not into another configuration")
def _saving(s: Subject) -> None:
    saved = s.used.state_dict()
    _check_plain(saved, "state_dict()")
    s.same(s.metric.load_state_dict(saved), s.used, exactly=True)
    # These are no part of the data, such as the names of outputs.
    fields = (each.fields.items() for each in walk(s.metric))
    free = {name for own in fields for name, field in own if not field.restored}
    tried = set()
    for kind, field, other in _altered(saved):
        if field in free or (kind, field) in tried:
            continue  # its class refuses it, wherever else it is
        tried.add((kind, field))
        try:
            s.metric.load_state_dict(other)
        except ConfigurationMismatchError:
            continue
        raise Unequal(f"a state_dict() in which {field} of {kind} differs was accepted")


def _check_plain(node: object, path: str) -> None:
    if isinstance(node, dict | list):
        for key, value in node.items() if isinstance(node, dict) else enumerate(node):
            _check_plain(value, f"{path}[{key!r}]")
    elif node is not None and type(node) not in (bool, int, float, str, np.ndarray):
        raise Unequal(f"{path} is a {type(node).__name__}")


def _altered(node: PyTree) -> Iterator[tuple[PyTree, ...]]:
    """For each field of a state dict's configuration: the class, and a copy with another value."""
    for key, value in node.items() if isinstance(node, dict) else ():
        if key == "type":
            yield value, key, {**node, key: "another"}
        elif key == "config":
            yield from (
                (node["type"], name, {**node, key: {**value, name: "another"}}) for name in value
            )
        else:
            yield from ((*what, {**node, key: x}) for *what, x in _altered(value))


@_law("a copy and a pickle equal the original")
def _copies(s: Subject) -> None:
    used = s.used
    copies = [copy.copy(used), copy.deepcopy(used)]
    # A pickle stores a class by its name, so a class defined in a function cannot be pickled.
    if all(_is_importable(type(state)) for state in walk(used)):
        copies.append(pickle.loads(pickle.dumps(used)))
    for each in copies:
        if jax.tree.structure(each) != jax.tree.structure(used):
            raise Unequal(f"the copy is {each!r}, the original {used!r}")
        s.same(each, used, exactly=True)


def _is_importable(cls: type) -> bool:
    found: object = sys.modules.get(cls.__module__)
    for name in cls.__qualname__.split("."):
        found = getattr(found, name, None)
    return found is cls


@_law("an integer weight equals a repetition", of_rows=True)
def _repetition(s: Subject) -> None:
    if s.takes_weights:
        weights, repeated = s.repeats()
        # Weights of one are no weights.
        s.same(s.fold(s.weighted(np.ones(s.size), s.calls)), s.used)
        if not all(getattr(part, "weights_repeat", True) for part in walk(s.metric)):
            return
        # How many rows could not be used, or are doubtful, is a count of rows, whatever they weigh.
        weighted, repeated = s.fold(s.weighted(weights, s.calls)), s.fold(repeated)
        s.same(with_invalid_of(repeated, weighted), repeated)


@_law("an example of weight zero does not count, whatever it holds", of_rows=True)
def _absence(s: Subject) -> None:
    if s.takes_weights:
        weights, _ = s.repeats()
        weighted = s.fold(s.weighted(weights, s.calls))
        leaves, structure = jax.tree.flatten(s.calls)
        each = len(leaves) // len(s.calls)
        # Each argument alone, as one that is spoilt may hide another: `one_hot` of a label that is
        # out of range is 0. And all at once, as padding may be.
        for places, kinds in [*(({i}, _GARBAGE) for i in range(each)), (set(range(each)), ["NaN"])]:
            for kind in kinds:
                spoilt = [
                    _GARBAGE[kind](x, weights == 0) if i % each in places else x
                    for i, x in enumerate(leaves)
                ]
                given = structure.unflatten(spoilt)
                try:
                    s.same(s.fold(s.weighted(weights, given)), weighted)
                except Unequal as error:
                    raise Unequal(f"with {kind} in rows of weight zero: {error}") from None


def _filled(x: np.ndarray, absent: np.ndarray, of_floats: float, of_integers: str) -> np.ndarray:
    """An array with an extreme value in some rows; booleans stay."""
    if x.dtype == np.bool_:
        return x
    if jnp.issubdtype(x.dtype, jnp.inexact):
        value = of_floats if not np.isfinite(of_floats) else float(jnp.finfo(x.dtype).max) / 2
    else:
        value = getattr(jnp.iinfo(x.dtype), of_integers)
    rows = absent.reshape(-1, *[1] * (x.ndim - 1))
    return np.where(rows, np.asarray(value).astype(x.dtype), x)


_GARBAGE: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "NaN": partial(_filled, of_floats=math.nan, of_integers="min"),
    "infinity": partial(_filled, of_floats=math.inf, of_integers="max"),
    "a large number": partial(_filled, of_floats=1.0, of_integers="max"),
    "values of other rows": lambda x, absent: np.where(
        absent.reshape(-1, *[1] * (x.ndim - 1)), np.roll(x, 1, 0), x
    ),
}
"""What padding may hold, by its name in errors."""


@_law(
    "inside shard_map, varying() gives the type of a carry, and sync() a replicated type",
    of_rows=True,
)
def _shard_map(s: Subject) -> None:
    # Only types are checked. The law of `per_device`, which syncs inside shard_map, checks values.
    jax.eval_shape(partial(subject.synced, devices=s.devices()), s.metric, s.stacked)


@_law("per_device equals one device", of_rows=True, of_programs=True)
def _per_device(s: Subject) -> None:
    # If `update` takes weights, `per_device` pads the batch, so any number of devices will do.
    devices = jax.local_device_count() if s.takes_weights else s.devices()
    s.same(subject.shard(s.metric, s.calls, devices), s.used)
