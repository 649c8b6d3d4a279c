"""`engine`: an executor by its name, on this machine or on a cluster."""

import multiprocessing
from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import contextmanager

from datarax._errors import MetricInputError

ENGINES = ("processes", "dask", "ray")


@contextmanager
def engine(name: str, address: str | None = None, workers: int | None = None) -> Iterator[Executor]:
    """An executor whose workers evaluate parts of files."""
    if name not in ENGINES:
        raise MetricInputError(f"engine={name!r}; expected one of {', '.join(map(repr, ENGINES))}")
    with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn")) as pool:
        yield pool
