"""Appending to a file: a piece is there as a whole, or not at all."""

import os


def append(file: int, data: bytes) -> None:
    """Writes a piece at the end of a file that is open there.

    Raises:
        OSError: it does not fit. What was written of it is taken back.
    """
    start = os.lseek(file, 0, os.SEEK_CUR)
    try:
        # One call without a buffer: a process that is killed leaves the piece, or nothing.
        written = os.write(file, data)
        if written < len(data):
            raise OSError(f"only {written} of {len(data)} bytes fit on the disk")
    except OSError:
        if start < os.lseek(file, 0, os.SEEK_CUR):
            os.ftruncate(file, start)
            os.lseek(file, start, os.SEEK_SET)
        raise
