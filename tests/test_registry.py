"""The registry is complete: each metric in it runs the laws, each wrapper has an example.

That each public metric has a case is in `test_catalogue.py`.
"""

import itertools
from collections import Counter

import jax
import numpy as np
import pytest

from datarax import wrappers
from datarax.testing import assert_within_ulps
from tests.helpers import update
from tests.registry import BATCH, CASES
from tests.registry.entries import CATALOGUE, COUNTED, ENTRIES, WRAPPERS


def test_each_case_has_a_name_of_its_own():
    names = Counter(case.id for case in CASES)
    assert [name for name, times in names.items() if times > 1] == []


def test_every_metric_runs_the_laws():
    # `test_laws` takes the groups of cases of rows, `test_laws_of_steps` the others.
    outside = {case.cls.__name__ for case in CASES}
    for case in CASES:
        if case.laws or not case.inputs.rows:
            outside.discard(case.cls.__name__)
    assert outside == set()


def test_every_wrapper_has_an_example():
    exported = {name for name, x in vars(wrappers).items() if callable(x)}
    assert exported == {name.partition(" ")[0] for name in WRAPPERS}


def test_batches_are_of_one_shape(rng):
    every = [*ENTRIES.values(), *COUNTED.values()]
    for entry, weights in itertools.product(every, (True, False)):
        batches = entry.batches(rng, 2, weights=weights)
        assert jax.tree.structure(batches[0]) == jax.tree.structure(batches[1]), entry.name
        if entry.host:
            assert {len(x) for batch in batches for x in batch.values()} == {BATCH}, entry.name
            continue
        for x, y in zip(*map(jax.tree.leaves, batches), strict=True):
            assert (x.shape, x.dtype) == (y.shape, y.dtype), entry.name
            assert not entry.rows or len(x) == BATCH, entry.name


def test_batches_hold_what_the_update_takes(rng):
    for name, entry in CATALOGUE.items():
        (batch,) = entry.batches(rng, 1)
        routes = {route.argument: route.required for route in entry.metric().routes()}
        required = {each for each, needed in routes.items() if needed}
        assert routes.keys() >= batch.keys() >= required, name
        assert ("weights" in batch) == ("weights" in routes and entry.rows), name


@pytest.mark.parametrize("name", WRAPPERS)
def test_examples_of_wrappers_take_their_batches(name, rng):
    entry = WRAPPERS[name]
    for weights in (True, False):
        (batch,) = entry.batches(rng, 1, weights=weights)
        metric = entry.metric()
        updated = jax.eval_shape(lambda metric, batch: metric.update(**batch), metric, batch)
        assert jax.tree.structure(updated) == jax.tree.structure(metric)


@pytest.mark.parametrize("case", [x for x in CASES if not x.inputs.rows], ids=lambda x: x.id)
def test_metrics_of_steps_agree_with_the_oracle(case, rng):
    metric, seen = case.make(), []
    for _ in range(20):
        seen.append(case.inputs.draw(rng, BATCH))
        metric = update(metric, **seen[-1])
    stream = jax.tree.map(lambda *xs: np.stack(xs), *seen)
    want = case.oracle(np.ones(len(seen)), **stream)
    assert_within_ulps(metric.compute(), want, case.ulps, name=case.id)
