"""The registration of states with `flax.serialization`, without loading Flax.

Flax looks up the functions for a type in a registry of its own. Classes that are defined while Flax
is loaded are registered at once, and all others right after Flax has executed that module. So a
state that was made before Flax was loaded is serialized too.
"""

import sys
from collections.abc import Iterator
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from datarax.algebra.state_dicts import Saveable

_FLAX = "flax.serialization"


def register_with_flax(cls: type[Saveable]) -> None:
    """Registers a class, if Flax is loaded; if it is not, all classes are registered later."""
    flax: Any = sys.modules.get(_FLAX)
    if flax is not None and not flax.is_serializable(cls):  # a user may have registered it
        flax.register_serialization_state(
            cls, lambda state: state.state_dict(), lambda state, saved: state.load_state_dict(saved)
        )


class _RegisterAll(MetaPathFinder):
    """Finds the module of Flax as Python does, and registers all classes when it is executed."""

    searching = False

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> ModuleSpec | None:
        if fullname != _FLAX or self.searching:
            return None
        self.searching = True
        try:
            spec = find_spec(fullname)
        finally:
            self.searching = False
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def execute_and_register(module: ModuleType) -> None:
            execute(module)
            sys.meta_path.remove(self)
            for cls in _subclasses(Saveable):
                register_with_flax(cls)

        spec.loader.exec_module = execute_and_register
        return spec


def _subclasses(cls: type[Saveable]) -> Iterator[type[Saveable]]:
    for each in cls.__subclasses__():
        yield each
        yield from _subclasses(each)


if _FLAX not in sys.modules:
    sys.meta_path.insert(0, _RegisterAll())
