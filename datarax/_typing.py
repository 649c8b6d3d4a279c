"""Names for the types that signatures use."""

from typing import Any, Literal

import jax
import numpy as np

ArrayLike = jax.Array | np.ndarray[Any, Any] | np.generic | bool | int | float
"""What `jax.numpy` takes for an array of numbers; lists of numbers are accepted too."""

Array = jax.Array | np.ndarray
"""An array of NumPy or JAX. Formulas, which take either, say `jax.Array`; this is for code that
one of the two alone would not type."""

Weights = ArrayLike | None
"""How much each example counts: booleans or numbers that broadcast against the leading axes."""

PyTree = Any
"""Arrays in nested tuples, lists, dicts and registered classes."""

Average = Literal["micro", "macro", "weighted"] | None
"""How values by class become one; `None` keeps them apart."""

OnInvalid = Literal["exclude", "propagate", "raise"]
"""What a result is where some of the data could not be used."""
