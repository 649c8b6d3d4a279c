"""`datarax info`: versions and devices, for bug reports."""

import platform
from collections import Counter
from importlib import metadata

import jax

from datarax import __version__


def report() -> str:
    """The report: one line for each version and for each kind of device."""
    lines = [f"datarax {__version__}"]
    lines += [f"{name} {_version(name)}" for name in ("jax", "jaxlib", "flax", "numpy", "optax")]
    lines.append(f"python {platform.python_version()} ({platform.platform()})")
    kinds = Counter((device.platform, device.device_kind) for device in jax.devices())
    lines += [f"devices {count} x {kind} ({name})" for (name, kind), count in kinds.items()]
    lines.append(f"process {jax.process_index()} of {jax.process_count()}")
    return "\n".join(lines)


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "not installed"
