"""Features of inputs: what a network makes of them, or what is given."""

from collections.abc import Callable

import jax

from datarax._checks import kind, numeric
from datarax._errors import MetricInputError, MetricTypeError
from datarax._typing import ArrayLike

Features = Callable[[jax.Array], jax.Array] | None
"""Maps inputs (N, ...) to features (N, F), each row by itself; None if inputs are features."""


def check_function(features: object) -> None:
    """Raises unless `features` can be called and hashed."""
    if not callable(features):
        raise MetricTypeError(f"features={kind(features)}; expected a function of an array")
    try:
        hash(features)
    except TypeError as error:
        raise MetricTypeError(
            f"features={kind(features)} cannot be hashed; expected a function, for example one "
            f"defined at the top of a module that calls it"
        ) from error


def features_of(features: Features, inputs: ArrayLike, name: str) -> jax.Array:
    """The features (N, F) of a batch of inputs.

    Raises:
        MetricInputError: they do not have two axes.
    """
    given = numeric(inputs, name)
    x = given if features is None else numeric(features(given), f"features({name})")
    if x.ndim != 2 or (features is not None and x.shape[:1] != given.shape[:1]):
        made = "" if features is None else f" for {name} of shape {given.shape}"
        raise MetricInputError(
            f"features of {name} of shape {x.shape}{made}; expected (N, F)"
            + ("; give features=, a function that makes them" if features is None else "")
        )
    return x
