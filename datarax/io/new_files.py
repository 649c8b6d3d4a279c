"""A new file beside the one that it is to replace."""

import secrets
from pathlib import Path
from typing import BinaryIO


def new_beside(path: Path) -> tuple[Path, BinaryIO]:
    """Makes a file in the folder of `path`, and opens it for writing.

    Its name is random, and it is made anew: what somebody else has put there, such as a symbolic
    link to another file, is never written to.

    Raises:
        OSError: it cannot be made.
    """
    # A name may have 255 bytes, and `path` may have them all.
    new = path.with_name(f".{path.name[:40]}.{secrets.token_hex(8)}")
    return new, new.open("xb")
