"""`Call`: the arguments of one update of one metric, which a wrapper may change."""

from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Call:
    """The arguments of `update` for one metric that is not a wrapper: a pytree of arrays."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    metric: str = field(metadata={"static": True})
    """The name of the class of the metric."""
    takes: tuple[str, ...] = field(metadata={"static": True})
    """The names of the arguments of its `update`."""
    broadcast: tuple[str, ...] = field(metadata={"static": True})
    """The `broadcast_arguments` of the metric."""
    path: str = field(default="", metadata={"static": True})
    """The name of the metric in a collection."""
    rows: bool = field(default=True, metadata={"static": True})
    """Whether the arrays share a leading axis of examples. If not, all devices get all of them, and
    the metric counts them once."""

    @property
    def by_name(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments, all by name if the names of all positional ones are known."""
        if len(self.args) > len(self.takes):
            return self.args, self.kwargs
        return (), dict(zip(self.takes, self.args, strict=False)) | self.kwargs


def is_numbers(x: Any) -> bool:
    """Whether `x` is a list of numbers or of such lists, which becomes an array."""
    return isinstance(x, list | tuple) and all(
        is_numbers(item) or isinstance(item, bool | int | float | np.generic) for item in x
    )
