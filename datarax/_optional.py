"""Optional dependencies: imported when they are used, and named by the extra that installs them."""

from collections.abc import Mapping
from importlib import import_module, metadata
from typing import Any

from datarax._errors import MissingExtraError

EXTRAS: Mapping[str, tuple[str, ...]] = {
    "beam": ("apache-beam", "pyarrow"),
    "checkpoint": ("orbax-checkpoint",),
    "console": ("rich",),
    "dask": ("distributed",),
    "evaluate": ("jinja2", "matplotlib", "nltk", "pyarrow", "rapidfuzz", "rich", "sacrebleu"),
    "keras": ("keras",),
    "mlflow": ("alembic", "mlflow-skinny", "sqlalchemy", "sqlparse"),
    "parquet": ("pyarrow",),
    "plot": ("matplotlib",),
    "ray": ("ray",),
    "spark": ("pandas", "pyarrow", "pyspark"),
    "tensorboard": ("pillow", "tensorboardX"),
    "text": ("nltk", "rapidfuzz", "sacrebleu"),
    "wandb": ("wandb",),
}
"""The packages of each extra, as pip knows them. A test compares them with `pyproject.toml`."""


def optional(module: str, extra: str, use: str) -> Any:
    """Imports an optional dependency.

    Args:
        module: the name of the module.
        extra: the extra of datarax that installs it: a name of `EXTRAS`.
        use: what needs it, as the subject of the error: "ParquetWriter".

    Raises:
        MissingExtraError: it is not installed; names the missing packages and the extra.
    """
    try:
        return import_module(module)
    except ImportError as error:  # also of a package that is installed, but broken
        missing = [each for each in EXTRAS[extra] if not _is_installed(each)] or EXTRAS[extra]
        # Never by the name of datarax, which belongs to another project on the package index.
        raise MissingExtraError(
            f"{use} needs {module.partition('.')[0]}, which cannot be imported ({error}); run: "
            f"pip install '.[{extra}]' in a clone of datarax, or pip install {' '.join(missing)}"
        ) from error


def _is_installed(package: str) -> bool:
    try:
        metadata.version(package)
    except metadata.PackageNotFoundError:
        return False
    return True
