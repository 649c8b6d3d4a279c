"""What a training loop holds."""

from datarax.training.stateful import StatefulMetric as StatefulMetric
