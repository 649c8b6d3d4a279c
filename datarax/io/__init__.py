"""Saving metrics to checkpoints and restoring them."""

from datarax.io.checkpoint import pack as pack
from datarax.io.checkpoint import restore as restore
from datarax.io.checkpoint import save as save
from datarax.io.checkpoint import unpack as unpack
