"""A user's procedure: called with batches, and its logged numbers collected."""

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from datarax.testing.logged_numbers import Numbers, capture, returned_numbers
from datarax.testing.rows import Rows
from datarax.testing.variations import Variation

Outcome = Numbers | Exception
"""What a call logs, or the exception that it raises."""


class Procedure:
    """Calls a procedure, and counts the calls."""

    def __init__(self, function: Callable[..., Any], sources: tuple[str, ...]):
        self._function, self._sources = function, sources
        self.calls: int = 0

    def call(self, batches: Sequence[Rows], *args: Any, **kwargs: Any) -> Numbers:
        """What the procedure logs for these batches; it gets arrays of its own each time.

        A name that is returned stays as it is. If a library logs it too, that is "library:name".
        """
        self.calls += 1
        with capture(self._sources) as captured:
            numbers = returned_numbers(
                self._function([each.tree() for each in batches], *args, **kwargs)
            )
        for source, found in captured.items():
            for name, number in found.items():
                numbers[f"{source}:{name}" if name in numbers else name] = number
        return numbers

    def try_call(self, batches: Sequence[Rows], *args: Any, **kwargs: Any) -> Outcome:
        """The same, or the exception that the procedure raises; warnings are ignored.

        Correct code may warn of garbage, such as of the logarithm of a negative number.
        """
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            try:
                return self.call(batches, *args, **kwargs)
            except Exception as error:
                return error

    def vary(self, variation: Variation) -> Outcome:
        """The numbers of a variation."""
        args, kwargs = (), {}
        if variation.kind == "micro":
            kwargs = {"micro": variation.parts}
        elif variation.kind == "devices":
            args = (Mesh(np.array(jax.local_devices()[: variation.parts]), ("data",)),)
        return self.try_call(variation.batches, *args, **kwargs)
