"""Evaluating predictions that are in files: on this machine, or on the workers of an executor."""

from datarax.evaluation.aggregator import Aggregator as Aggregator
from datarax.evaluation.columns import Columns as Columns
from datarax.evaluation.engines import engine as engine
from datarax.evaluation.evaluator import Progress as Progress
from datarax.evaluation.evaluator import evaluate as evaluate
from datarax.evaluation.evaluator import fold as fold
