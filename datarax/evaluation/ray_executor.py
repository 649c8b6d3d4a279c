"""An executor over the tasks of Ray."""

from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any

RETRIES = 3


class RayExecutor(Executor):
    """Runs each call as a task of Ray, again on another worker if its worker dies."""

    def __init__(self, ray: Any):
        self._ray = ray
        # Ray retries if a worker dies. An error of the call itself comes back at once.
        self._call = ray.remote(max_retries=RETRIES)(_call)
        self._refs: dict[Future[Any], Any] = {}

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        ref = self._call.remote(fn, args, kwargs)
        future = ref.future()
        # `cancel` needs the reference, which a future does not give.
        self._refs[future] = ref
        future.add_done_callback(self._refs.pop)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Waits for the tasks, or cancels them."""
        for future, ref in list(self._refs.items()):
            if cancel_futures:
                self._ray.cancel(ref)
            elif wait:
                future.exception()


def _call(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return fn(*args, **kwargs)
