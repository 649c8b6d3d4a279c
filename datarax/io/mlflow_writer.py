"""`MLflowWriter`: a run of MLflow."""

import re
import time

from datarax._optional import optional
from datarax.io.jsonl_writer import finite
from datarax.io.writer import Items, OnError, Step, Writer
from datarax.metric.values import jsonable

_REFUSED = re.compile(r"[^\w\-. :/]")
_AT_ONCE = 1000  # metrics in one request, the most that MLflow takes


class MLflowWriter(Writer):
    """Logs to a run of MLflow: numbers as metrics; arrays and curves as one JSON artifact a step.

    In names, a character that MLflow refuses becomes "_".

    Args:
        tracking_uri: the server, or a file: "sqlite:///mlflow.db". The default is MLflow's own.
        experiment: the name of the experiment, which is made if there is none.
        run_name: the name of the run.
        on_error: see `Writer`.

    Raises:
        MissingExtraError: MLflow is not installed.

    Example:
        >>> import tempfile
        >>> from datarax.io import MLflowWriter
        >>> writer = MLflowWriter(f"sqlite:///{tempfile.mkdtemp()}/mlflow.db", experiment="digits")
        >>> writer.close()  # the run starts with the first write
    """

    def __init__(
        self,
        tracking_uri: str | None = None,
        *,
        experiment: str = "Default",
        run_name: str | None = None,
        on_error: OnError = "warn",
    ):
        super().__init__(on_error=on_error)
        self._mlflow = optional("mlflow", "mlflow", "MLflowWriter")
        self._entities = optional("mlflow.entities", "mlflow", "MLflowWriter")
        self._uri, self._experiment, self._name = tracking_uri, experiment, run_name
        self.run_id: str | None = None
        """The id of the run, once something was written."""

    def open(self) -> None:
        self._client = self._mlflow.MlflowClient(tracking_uri=self._uri)
        found = self._client.get_experiment_by_name(self._experiment)
        number = found.experiment_id if found else self._client.create_experiment(self._experiment)
        self.run_id = self._client.create_run(number, run_name=self._name).info.run_id

    def put(self, step: Step, items: Items) -> None:
        # MLflow takes milliseconds.
        now, step = int(time.time() * 1000), int(step)
        numbers = {n: x for n, x in items.items() if isinstance(x, bool | int | float)}
        metrics = [
            self._entities.Metric(_REFUSED.sub("_", name), float(x), now, step)
            for name, x in numbers.items()
        ]
        for start in range(0, len(metrics), _AT_ONCE):
            self._client.log_batch(self.run_id, metrics=metrics[start : start + _AT_ONCE])
        # JSON has no NaN.
        rest = {n: finite(jsonable(x)) for n, x in items.items() if n not in numbers}
        if any(x is not None for x in rest.values()):
            self._client.log_dict(self.run_id, rest, f"results/step-{step}.json")

    def end(self) -> None:
        self._client.set_terminated(self.run_id)
