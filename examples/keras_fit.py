"""Keras 3: metrics that `fit` logs, for rare positives and a short last batch."""

import os

os.environ["KERAS_BACKEND"] = "jax"

import keras
import numpy as np

from datarax.metrics import AUROC, F1, Mean
from datarax.training import KerasMetric

ROWS, TRAINING, BATCH = 12_003, 2_048, 256  # the last batch of the other rows has 227
rng = np.random.default_rng(0)
x = rng.normal(size=(ROWS, 4)).astype(np.float32)
y = (rng.random(ROWS) < 1 / (1 + np.exp(7 - 2 * x.sum(1)))).astype(np.int32)  # 1 in 18
weights = rng.gamma(2, 1, ROWS).astype(np.float32)

keras.utils.set_random_seed(0)
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1, activation="sigmoid")])
model.compile(
    keras.optimizers.SGD(5.0),
    "binary_crossentropy",
    metrics=[
        keras.metrics.AUC(name="keras-auc"),
        KerasMetric(AUROC(), name="auc"),
        KerasMetric(F1(), name="f1"),
    ],
    weighted_metrics=[KerasMetric(Mean().from_outputs(values="preds"), name="mean-score")],
)
others = x[TRAINING:], y[TRAINING:], weights[TRAINING:]
history = model.fit(
    x[:TRAINING],
    y[:TRAINING],
    epochs=6,
    batch_size=BATCH,
    validation_data=others,
    verbose=0,  # pyright: ignore[reportArgumentType]
)
for name in ("keras-auc", "auc", "f1", "mean-score"):
    print(f"{name} {history.history[f'val_{name}'][-1]:.6f}")
