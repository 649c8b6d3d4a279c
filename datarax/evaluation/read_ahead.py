"""Reading on a thread, while what was read before is used."""

import queue
import threading
from collections.abc import Generator
from typing import Any, TypeVar

T = TypeVar("T")
_END = object()
_SECONDS_TO_CLOSE = 2.0


def read_ahead(items: Generator[T, None, None], depth: int = 3) -> Generator[T, None, None]:
    """The items of an iterator, which runs up to `depth` items ahead on a thread of its own.

    An exception of the iterator is raised here, in its place. If this iterator is closed early, the
    thread ends after the item that it is making. Closing waits a moment for that, but not for a
    slow file.
    """
    ready: queue.Queue[Any] = queue.Queue(depth)
    stopped = threading.Event()

    def offer(item: Any) -> bool:
        while not stopped.is_set():
            try:
                # With a timeout: if nobody takes items any more, the thread must notice `stopped`.
                ready.put(item, timeout=0.1)
            except queue.Full:
                continue
            return True
        return False

    def produce() -> None:
        end: tuple[Any, BaseException | None] = (_END, None)
        try:
            for item in items:
                if not offer((item, None)):
                    return
        except BaseException as error:
            end = (_END, error)
        finally:
            items.close()  # closes the file, on the thread that opened it
        offer(end)

    thread = threading.Thread(target=produce, name="datarax-read-ahead", daemon=True)
    thread.start()
    try:
        while True:
            item, error = ready.get()
            if error is not None:
                raise error
            if item is _END:
                return
            yield item
    finally:
        stopped.set()
        thread.join(_SECONDS_TO_CLOSE)
