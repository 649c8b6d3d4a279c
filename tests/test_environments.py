"""Every metric and every wrapper in every environment that the documentation promises.

What an environment does depends on the states and the operations of a metric alone. So `make test`
runs the representatives of the registry, which hold all of these, and all wrappers: each in the
environments in which it matters (`OF_OPERATIONS`, `OF_STATES`, `OF_WRAPPERS`). What has no rows of
numbers runs in all of them, and `DATARAX_TEST_EVERYWHERE=1` runs every metric in all.

Many metrics are in one collection, so that an environment costs one program of each kind for all of
them. If that fails, each metric is run alone, and the failure names those at fault. The values are
compared with the oracles of the registry, and with what the same metrics give outside `jit`: equal
counts, and floats within the tolerance of the laws.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Any

import jax
import numpy as np
import pytest

import datarax
from datarax.algebra.pytrees import children_of
from datarax.metric.arguments import arguments
from datarax.testing import assert_within_ulps
from tests.conftest import seed
from tests.environments import (
    ENVIRONMENTS,
    OF_OPERATIONS,
    OF_STATES,
    OF_WRAPPERS,
    PAIR,
    TRACED,
    Environment,
    Members,
    Read,
    outside_jit,
)
from tests.operations import how_states_travel, representatives
from tests.registry import BATCH, CASES, EVERYWHERE, REPRESENTATIVES, Case
from tests.registry.case import widened
from tests.registry.entries import WRAPPERS
from tests.registry.entry import WEIGHTS, Entry
from tests.test_laws import assert_values, weights_of

TOGETHER = 40
"""How many cases of the registry are in one collection."""
UPDATES = 3

# A metric that refuses environments, and one without rows, are not put together with others.
ALONE = ("Best", "health")
# It is an environment here.
LAYOUT = "per_device"

# What a metric refuses, with an error that names it: a part of the names of environments.
REFUSED = {"Best": ("per_device", "two processes", "checkpoint, 8", "shard_map")}


@dataclass
class Chunk:
    """Cases or wrappers that are run together, and what they are updated with."""

    cases: list[Case] = field(default_factory=list)
    entries: list[Entry] = field(default_factory=list)
    seed: int = 0

    def prepare(self, rng: np.random.Generator) -> None:
        """Draws the data of all environments."""
        if self.entries:
            self.prepare_entries(rng)
            return
        self.drawn: list[dict[str, dict[str, Any]]] = []
        batches = []
        for _ in range(UPDATES):
            draws = {case.inputs.id: case.inputs.draw for case in self.cases}
            drawn = {source: draw(rng, BATCH) for source, draw in draws.items()}
            outputs = {f"{s}.{name}": x for s, given in drawn.items() for name, x in given.items()}
            if self.rows:
                outputs["weights"] = rng.choice(WEIGHTS, BATCH)
                outputs["weights"][0] = 1
            if self.host:
                outputs = {k: x if k == "weights" else x.tolist() for k, x in outputs.items()}
            batches.append(outputs)
            self.drawn.append(drawn)
        self.members = self.of(self.made, batches)

    def prepare_entries(self, rng: np.random.Generator) -> None:
        """One wrapper by itself, or several as tasks, each with its own data."""
        self.each_entry = {
            entry.name: Members(entry.metric, entry.batches(rng, UPDATES), entry.rows)
            for entry in self.entries
        }
        if len(self.entries) == 1:
            (self.members,) = self.each_entry.values()
            return
        each = self.each_entry.items()
        self.members = Members(
            lambda: datarax.MultiTask({name: members.make() for name, members in each}),
            [{name: members.batches[i] for name, members in each} for i in range(UPDATES)],
        )

    @cached_property
    def made(self) -> dict[str, Callable[[], datarax.Metric]]:
        """What makes each metric, fed from the outputs of its own source."""

        def routed(make: Callable[[], datarax.Metric], source: str) -> datarax.Metric:
            metric = make()
            given = [r.argument for r in metric.routes() if r.argument in self.drawn[0][source]]
            return metric.from_outputs(**{name: f"{source}.{name}" for name in given})

        made = {case.id: (case.make, case.inputs.id) for case in self.cases}
        return {name: lambda of=of: routed(*of) for name, of in made.items()}

    def of(self, made: Mapping[str, Callable[[], datarax.Metric]], batches: Any) -> Members:
        cases = [case for case in self.cases if case.id in made]
        counted = self.counted(cases, batches) if self.host else None
        return Members(lambda: together(made), batches, self.rows, counted)

    def counted(self, cases: list[Case], batches: list[dict[str, Any]]) -> Members:
        """The metrics of what these cases count of strings."""
        made = {case.id: case.traceable for case in cases}
        counts = [
            {name: x for case in cases for name, x in case.arrays(drawn[case.inputs.id]).items()}
            | {"weights": batch["weights"]}
            for drawn, batch in zip(self.drawn, batches, strict=True)
        ]
        return Members(lambda: together(made), counts)

    @property
    def rows(self) -> bool:
        """Whether the examples are rows, which can be sharded."""
        return all(case.inputs.rows for case in self.cases)

    @property
    def host(self) -> bool:
        """Whether the arguments are strings."""
        return any(case.host for case in self.cases)

    @property
    def names(self) -> list[str]:
        return [case.id for case in self.cases] + [entry.name for entry in self.entries]

    def each(self) -> Iterator[tuple[str, Members]]:
        """Each metric by itself, with the same data."""
        if self.entries:
            yield from self.each_entry.items()
            return
        for name, make in self.made.items():
            yield name, self.of({name: make}, self.members.batches)

    @cached_property
    def expected(self) -> Read:
        """What the metrics give outside `jit`: what their oracles say."""
        expected = outside_jit(self.members)
        for case in self.cases if self.rows else ():  # other oracles are in the tests of families
            assert_values([case], expected["compute"], self.batches_of(case), "outside jit")
        return expected

    def batches_of(self, case: Case) -> list[dict[str, Any]]:
        """The arguments of each update of a case."""
        takes_weights = "weights" in dict(arguments(case.make()))
        return [
            drawn[case.inputs.id] | ({"weights": batch["weights"]} if takes_weights else {})
            for drawn, batch in zip(self.drawn, self.members.batches, strict=True)
        ]

    def tolerances(self, *, without_float64: bool) -> dict[str, tuple[float, float]]:
        """By member, how far two values may be apart: in units in the last place, and absolutely.

        Each of the two may be that far from the exact value. The values of wrappers are those of
        numbers around 3, so 1e-5 is a few units of their spreads and differences.
        """
        found: dict[str, tuple[float, float]] = dict.fromkeys(self.names, (8, 1e-5))
        for case in self.cases if self.rows else ():
            batches = self.batches_of(case)
            w = np.concatenate([weights_of(case, batch) for batch in batches])
            wide = [widened(batch) for batch in batches]
            stream = {name: np.concatenate([batch[name] for batch in wide]) for name in wide[0]}
            case = case.on_tpus() if without_float64 else case
            found[case.id] = 2 * case.ulps, 2 * case.atol(w, **stream)
        return found

    def differences(self, got: Read, environment: str) -> list[str]:
        """Sentences about the members whose values differ from what they give outside `jit`."""
        found = []
        tolerances = self.tolerances(without_float64="without float64" in environment)
        for method, values in got.items():
            want = self.expected[method]
            for name, (ulps, atol) in tolerances.items():
                both = (
                    (values, want) if len(self.names) == 1 else (of(name, values), of(name, want))
                )
                try:
                    assert_same(*both, ulps, atol, f"{name}, {method}()")
                except AssertionError as error:
                    found.append(str(error))
        return found


def together(made: Mapping[str, Callable[[], datarax.Metric]]) -> datarax.Metric:
    return datarax.Collection({name: make() for name, make in made.items()})


def of(name: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """The values of one member of a collection."""
    return {key: x for key, x in values.items() if key == name or key.startswith(f"{name}/")}


def assert_same(got: Any, want: Any, ulps: float, atol: float, name: str) -> None:
    """Equal strings, None, types and integers; numbers of floats within the tolerance."""

    def number(x: Any) -> Any:
        return np.asarray(x, np.float32) if np.asarray(x).dtype.kind == "f" else np.asarray(x)

    def is_leaf(x: Any) -> bool:
        return x is None

    text = [str(x) for x in jax.tree.leaves((got, want), is_leaf=is_leaf) if not is_number(x)]
    assert text[: len(text) // 2] == text[len(text) // 2 :], name
    numbers = [
        jax.tree.map(lambda x: number(x) if is_number(x) else 0, tree, is_leaf=is_leaf)
        for tree in (got, want)
    ]
    assert_within_ulps(*numbers, ulps, atol=atol, name=name)


def is_number(x: Any) -> bool:
    return x is not None and not isinstance(x, str)


def of_each_metric_and_statistic() -> list[Case]:
    """The first case of each class, and of each statistic of one kind of inputs.

    The others differ from one of them in a formula alone, which reads the same state.
    `make test-everywhere` runs these; `make test` the representatives of the registry.
    """
    if not EVERYWHERE:
        return [case for case in CASES if case.id in REPRESENTATIVES]
    found, classes, statistics = [], set(), set()
    for case in CASES:
        metric = case.make()
        statistic = children_of(metric).get("statistic", metric)
        kind = jax.tree.structure(statistic), case.inputs.id
        if case.cls not in classes or kind not in statistics:
            found.append(case)
        classes.add(case.cls)
        statistics.add(kind)
    return found


FIRST = of_each_metric_and_statistic()


def chunks() -> dict[str, Chunk]:
    """All metrics and all wrappers, those of one kind of inputs side by side."""
    cases = sorted((c for c in FIRST if c.inputs.rows and not c.host), key=lambda c: c.inputs.id)
    parts = [cases[i : i + TOGETHER] for i in range(0, len(cases), TOGETHER)]
    holding = [] if EVERYWHERE else representatives({c.id: how_states_travel(c) for c in cases})
    tasks = [x for name, x in WRAPPERS.items() if name not in (*ALONE, LAYOUT)]
    return (
        {f"catalogue {i}": Chunk(cases=part) for i, part in enumerate(parts)}
        | {"states": Chunk(cases=[case for case in cases if case.id in holding])}
        | {"texts": Chunk(cases=[case for case in FIRST if case.host])}
        | {"steps": Chunk(cases=[case for case in FIRST if not case.inputs.rows])}
        | {"wrappers": Chunk(entries=tasks)}
        | {name: Chunk(entries=[WRAPPERS[name]]) for name in ALONE}
    )


CHUNKS = chunks()


def environments_of(name: str) -> Iterable[str]:
    """Where the metrics of a chunk run: each operation is in "catalogue", each state in "states".

    So no state and no operation is left out of an environment in which it matters.
    """
    if EVERYWHERE:
        return () if name == "states" else ENVIRONMENTS
    kind = "catalogue" if name.startswith("catalogue") else name
    few = {"catalogue": OF_OPERATIONS, "states": OF_STATES, "wrappers": OF_WRAPPERS}
    return few.get(kind, ENVIRONMENTS)


@pytest.fixture(scope="module", autouse=True)
def pair():
    """Closes the processes of the environment of two."""
    yield
    PAIR.close()


@cache
def prepared(name: str) -> Chunk:
    """The metrics of one chunk, with the same data in all environments."""
    chunk = CHUNKS[name]
    chunk.seed = seed()
    chunk.prepare(np.random.default_rng(chunk.seed))
    return chunk


@pytest.mark.parametrize(
    ("name", "environment"),
    [(name, environment) for name in CHUNKS for environment in environments_of(name)],
)
def test_everywhere(name, environment):
    chunk = prepared(name)
    print(f"to repeat the data: DATARAX_TEST_SEED={chunk.seed}")
    run = ENVIRONMENTS.get(environment) or TRACED[environment]
    if any(part in environment for name in chunk.names for part in REFUSED.get(name, ())):
        with pytest.raises(
            (datarax.MetricTypeError, datarax.MetricInputError), match="|".join(chunk.names)
        ):
            run(chunk.members)
        return
    try:
        got = run(chunk.members)
    except Exception as error:
        found = list(failures(chunk, run)) or [f"only together: {type(error).__name__}: {error}"]
        raise AssertionError("\n".join([f"{environment}:", *found])) from error
    found = chunk.differences(got, environment)
    assert not found, "\n".join([f"{environment}:", *found])


def failures(chunk: Chunk, run: Environment) -> Iterator[str]:
    """Which members of a chunk fail alone, and how."""
    for name, members in chunk.each():
        try:
            run(members)
        except Exception as error:
            yield f"{name}: {type(error).__name__}: {error}"


def test_no_metric_is_missing():
    public = {x for x in vars(datarax.metrics).values() if isinstance(x, type)}
    names = {name for chunk in CHUNKS.values() for name in chunk.names}
    if EVERYWHERE:
        assert {case.cls for case in CASES if case.id in names} >= {
            x for x in public if issubclass(x, datarax.Metric)
        }
    assert names >= (REPRESENTATIVES & {case.id for case in FIRST}) | {*WRAPPERS} - {LAYOUT}


def test_inputs_of_one_name_are_the_same():
    inputs = {case.inputs.id: case.inputs for case in CASES}
    assert all(case.inputs == inputs[case.inputs.id] for case in CASES)
