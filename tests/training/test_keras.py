"""`KerasMetric`: the numbers that Keras logs, against NumPy and scikit-learn over all rows."""

import jax
import keras
import numpy as np
import pytest
import sklearn.metrics

import datarax
from datarax import MetricInputError, MetricTypeError
from datarax.metrics import F1, ConfusionMatrix, Max, Mean, Sum
from datarax.training import KerasMetric

# Of Keras itself: NumPy 2 converts its variables, and it asks JAX for 64-bit types.
pytestmark = [
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:Explicitly requested dtype:UserWarning"),
]


@pytest.fixture(autouse=True)
def usual():
    """Keras needs JAX's usual promotion of dtypes."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


def model(rng, metrics, weighted=()):
    """A binary classifier whose weights never change, so that all epochs have one set of scores."""
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1, activation="sigmoid")])
    model.set_weights([rng.normal(size=(3, 1)), rng.normal(size=1)])
    optimizer = keras.optimizers.SGD(0.0)
    model.compile(optimizer, "binary_crossentropy", metrics=metrics, weighted_metrics=weighted)
    return model


def test_fit_logs_the_numbers_of_all_rows(rng):
    x, y = rng.normal(size=(21, 3)).astype(np.float32), rng.integers(0, 2, 21)
    weights = rng.random(21).astype(np.float32)
    mean = Mean().from_outputs(values="preds")
    group = KerasMetric({"mean": mean, "greatest": Max().from_outputs(values="preds")})
    named = KerasMetric({"mean": mean}, name="weighted")
    classifier = model(rng, [KerasMetric(F1()), group], [named])
    logs = classifier.fit(x, y, sample_weight=weights, batch_size=8, epochs=2, verbose=0).history
    logits = x @ np.float64(classifier.get_weights()[0]) + classifier.get_weights()[1]
    scores = 1 / (1 + np.exp(-logits[:, 0]))
    want = {
        "f1": sklearn.metrics.f1_score(y, scores > 0.5),
        "mean": scores.mean(),
        "greatest": scores.max(),
        "weighted/mean": np.average(scores, weights=weights),
    }
    assert logs.keys() == {"loss", *want}
    for name, number in want.items():
        assert logs[name] == pytest.approx([number] * 2, rel=1e-6)
    # The counts are exact, and so is their ratio, in double precision.
    assert logs["f1"] == [want["f1"]] * 2


def test_devices_have_one_state(rng):
    devices = [f"cpu:{i}" for i in range(4)]
    with keras.distribution.DataParallel(devices=devices).scope():
        x, y = rng.normal(size=(16, 3)).astype(np.float32), rng.integers(0, 2, 16)
        metric = KerasMetric(F1())
        classifier = model(rng, [metric])
        logs = classifier.evaluate(x, y, batch_size=8, verbose=0, return_dict=True)
        state = jax.tree.leaves(metric.metric)
    assert all(len(leaf.sharding.device_set) == 4 for leaf in state)
    logits = x @ np.float64(classifier.get_weights()[0]) + classifier.get_weights()[1]
    assert logs["f1"] == sklearn.metrics.f1_score(y, logits[:, 0] > 0)


def test_an_update_by_hand_compiles_nothing(rng, programs):
    metric = KerasMetric(datarax.Interval(Mean()).from_outputs(values="preds"), name="score")
    x = rng.normal(size=(9, 1)).astype(np.float32)
    metric.update_state(x, x)
    metric.update_state(x[:4], x[:4], sample_weight=np.zeros(4))
    got = metric.result()
    assert got["score/value"] == pytest.approx(x.mean(dtype=np.float64))
    assert got["score/std_error"] == pytest.approx(np.float64(x).std(ddof=1) / 3)
    metric.reset_state()
    assert np.isnan(metric.result()["score/value"])
    assert programs == []


def test_a_model_is_loaded_without_its_metrics():
    with pytest.raises(MetricTypeError, match="compile=False"):
        KerasMetric.from_config(KerasMetric(F1()).get_config())


@pytest.mark.parametrize(
    ("metric", "error", "words"),
    [
        (ConfusionMatrix(num_classes=2), MetricInputError, "Keras logs numbers"),
        (Sum(per="elapsed"), MetricInputError, "reads elapsed of results"),
        (Mean().update(1.0), MetricInputError, "without data"),
        (3, MetricTypeError, "expects a datarax.Metric"),
    ],
)
def test_what_keras_cannot_log_is_refused(metric, error, words):
    with pytest.raises(error, match=words):
        KerasMetric(metric)
