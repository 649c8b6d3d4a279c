"""Comparing, saving and loading states: by configuration, and parts by name."""

import re
from typing import Any, Self

import numpy as np

from datarax._errors import ConfigurationMismatchError

FORMAT = 2
"""The version of the layout of `state_dict()`. Version 1 had no number, and named modules."""


class Saveable:
    """What has a configuration and named parts: arrays, others of its kind, or pytrees of both."""

    def described(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """What is compared and saved: the configuration, and the parts by name."""
        raise TypeError(f"{type(self).__name__} does not define described()")

    def restored(self, parts: dict[str, Any]) -> Self:
        """A copy with parts as `described` gives them, which are not checked."""
        raise TypeError(f"{type(self).__name__} does not define restored()")

    def state_dict(self) -> dict[str, Any]:
        """A plain nested dict: format version, class, configuration, and NumPy arrays."""
        return {"format": FORMAT, **self.saved()}

    def saved(self) -> dict[str, Any]:
        """What `state_dict` gives, without the format version."""
        config, parts = self.described()
        return {
            "type": type_name(self),
            "config": {name: plain(value) for name, value in config.items()},
            "state": _saved_part(parts),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> Self:
        """This state with the arrays of `state_dict`.

        Raises:
            ConfigurationMismatchError: they are of another format, class, configuration, shape or
                dtype; names the field. Nothing is half-loaded.
        """
        where = type(self).__name__
        _check_is_saved(state_dict, where)
        found = state_dict.get("format", 1)
        if found != FORMAT:
            raise ConfigurationMismatchError(
                f"{where}: the saved state has format {found!r}, and this version of datarax reads "
                f"format {FORMAT}; load it with the version that wrote it"
            )
        return self.loaded(state_dict, where)

    def loaded(self, saved: Any, where: str) -> Self:
        """This state with the arrays of one that was saved; `where` names it in errors."""
        _check_is_saved(saved, where)
        if saved["type"] != type_name(self):
            raise ConfigurationMismatchError(
                f"{where} is a {type_name(self)}; the saved state is of a {saved['type']}"
            )
        config, parts = self.described()
        here = {name: plain(value) for name, value in config.items()}
        for name in sorted(here.keys() | saved["config"].keys()):
            ours, theirs = (each.get(name, "not there") for each in (here, saved["config"]))
            if ours != theirs:
                raise ConfigurationMismatchError(
                    f"{where}.{name} is {theirs!r} in the saved state and {ours!r} here"
                )
        return self.restored(_loaded_part(parts, saved["state"], where))


def type_name(state: Saveable) -> str:
    """The class by its public name: of a class of datarax, the package that exports it."""
    module = type(state).__module__
    if module.startswith("datarax."):
        module = ".".join(module.split(".")[:2])
    return f"{module}.{type(state).__qualname__}"


def check_same(a: Any, b: Any, action: str) -> None:
    """Raises `ConfigurationMismatchError`, which names the field, unless the two may merge."""
    difference = find_difference(a, b, type(a).__name__)
    if difference:
        raise ConfigurationMismatchError(f"cannot {action}: {difference}")


def find_difference(a: Any, b: Any, path: str) -> str | None:
    """The first place where two states differ in class, configuration, structure or shape."""
    structured = Saveable | dict | tuple | list
    if type(a) is not type(b) and (isinstance(a, structured) or isinstance(b, structured)):
        return f"{path} is a {type(a).__name__} in one and a {type(b).__name__} in the other"
    if isinstance(a, Saveable):
        (ours, a), (theirs, b) = a.described(), b.described()
        for name in sorted(ours.keys() | theirs.keys()):
            mine, other = ours.get(name, "not there"), theirs.get(name, "not there")
            if mine is not other and mine != other:
                return f"{path}.{name} is {mine!r} in one and {other!r} in the other"
    if isinstance(a, structured):
        a, b = _items(a), _items(b)
        if a.keys() != b.keys():
            return f"{path} holds {sorted(a)} in one and {sorted(b)} in the other"
        return next((d for k in a if (d := find_difference(a[k], b[k], f"{path}.{k}"))), None)
    ours, theirs = (f"{x.dtype}{list(x.shape)}" for x in (a, b))
    return None if ours == theirs else f"{path} is {ours} in one and {theirs} in the other"


def plain(value: Any) -> Any:
    """A configuration value as JSON holds it, the same in every process."""
    if isinstance(value, tuple | list):
        return [plain(item) for item in value]
    if isinstance(value, float) and value != value:
        return "nan"  # which equals itself
    if value is None or isinstance(value, bool | int | float | str):
        return str(value) if isinstance(value, str) else value
    # A function goes by its name: the address differs from process to process.
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))


def _saved_part(part: Any) -> Any:
    if isinstance(part, Saveable):
        return part.saved()
    if isinstance(part, dict | tuple | list):
        return {key: _saved_part(item) for key, item in _items(part).items()}
    return np.array(part)


def _items(value: Any) -> dict[str, Any]:
    pairs = value.items() if isinstance(value, dict) else enumerate(value)
    return {str(key): item for key, item in pairs}


def _check_is_saved(saved: Any, where: str) -> None:
    whole = isinstance(saved, dict) and {"type", "config", "state"} <= saved.keys()
    if not (whole and isinstance(saved["config"], dict)):
        keys = f" with {sorted(map(str, saved))}" if isinstance(saved, dict) else ""
        raise ConfigurationMismatchError(
            f"{where}: expected a dict with 'type', 'config' and 'state', as state_dict() gives; "
            f"got a {type(saved).__name__}{keys}"
        )


def _loaded_part(like: Any, saved: Any, where: str) -> Any:
    if isinstance(like, Saveable):
        return like.loaded(saved, where)
    if isinstance(like, dict | tuple | list):
        parts = _items(like)
        if not isinstance(saved, dict) or saved.keys() != parts.keys():
            got = sorted(saved) if isinstance(saved, dict) else f"a {type(saved).__name__}"
            raise ConfigurationMismatchError(
                f"{where}: the saved state holds {got}; expected {sorted(parts)}"
            )
        loaded = {
            key: _loaded_part(part, saved[key], f"{where}.{key}") for key, part in parts.items()
        }
        if isinstance(like, dict):
            return dict(zip(like, loaded.values(), strict=True))
        return type(like)(loaded.values())
    array = np.array(saved)  # a copy, so that the state is no one else's
    if array.shape != like.shape or array.dtype != like.dtype:
        raise ConfigurationMismatchError(
            f"{where} is {array.dtype}{list(array.shape)} in the saved state; "
            f"expected {like.dtype}{list(like.shape)}"
        )
    return array
