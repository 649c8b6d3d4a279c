"""Names for the types that signatures use."""

from typing import TYPE_CHECKING, Any, Literal, NewType

import jax
import numpy as np

if TYPE_CHECKING:
    ArrayLike = jax.Array | np.ndarray[Any, Any] | np.generic | bool | int | float
else:  # one name, as `help` spells out a union
    ArrayLike = NewType("ArrayLike", object)
"""What `jax.numpy` takes for an array of numbers; lists of numbers are accepted too."""

Array = jax.Array | np.ndarray
"""An array of NumPy or JAX. Formulas, which take either, say `jax.Array`; this is for code that
one of the two alone would not type."""

Weights = ArrayLike | None
"""The weight of each example: booleans or numbers that broadcast against the leading axes."""

PyTree = Any
"""Arrays in nested tuples, lists, dicts and registered classes."""

Structure = Any
"""The result of `jax.tree.structure`; JAX has no type for it."""

Average = Literal["micro", "macro", "weighted"] | None
"""The average of the values by class; `None` keeps them apart."""

TaskAverage = Literal["auto", "micro", "macro", "weighted"] | None
"""An `Average`; "auto" is "macro", and in a binary task, which has no average, one value."""

ZeroDivision = float | Literal["warn"]
"""The value of a ratio that is 0/0; "warn" is 0 with a warning, as if it were not given."""

LabelAverage = Literal["auto", "micro", "macro", "weighted", "samples"] | None
"""A `TaskAverage`; or "samples", the mean over rows of labels."""

OnInvalid = Literal["exclude", "propagate", "raise"]
"""The policy where some of the data could not be used."""
