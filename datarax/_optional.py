"""Optional dependencies: imported when they are used, and named by the extra that installs them."""

from importlib import import_module
from typing import Any

from datarax._errors import MissingExtraError


def optional(module: str, extra: str, use: str) -> Any:
    """Imports an optional dependency.

    Args:
        module: the name of the module.
        extra: the extra of datarax that installs it.
        use: what needs it, as the subject of the error: "ParquetWriter".

    Raises:
        MissingExtraError: it is not installed; names the command that installs it.
    """
    try:
        return import_module(module)
    except ImportError as error:  # also of a package that is installed, but broken
        raise MissingExtraError(
            f"{use} needs {module.partition('.')[0]}, which cannot be imported ({error}); "
            f"run: pip install 'datarax[{extra}]'"
        ) from error
