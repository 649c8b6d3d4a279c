"""Slips of those who are new to the library: each error says what to write."""

import inspect
import re
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import datarax
from datarax import Collection, Metric, MetricAccumulator, MetricTypeError, metrics, per_device
from datarax.metric.other_names import _ARGUMENTS, names_elsewhere, suggestion
from datarax.metrics import AUROC, Accuracy, Mean
from datarax.training import StatefulMetric
from tests.helpers import make_mesh


class AboveMean(Metric):
    """An update that needs a value on the host, which works outside `jit`."""

    mean: Mean = Mean()
    above = MetricAccumulator(0)

    def update(self, values):
        new = sum(x > self.mean.results() for x in np.asarray(values))
        return self.replace(mean=self.mean.update(values), above=self.above.update(int(new)))

    def compute(self):
        return self.above.value


def test_results_while_a_function_is_traced(rng):
    preds, target = rng.random(16, np.float32), rng.integers(0, 2, 16)
    plain = Accuracy()
    for metric in (
        plain,
        AUROC(),
        Collection({"a": plain, "auroc": AUROC()}),
        per_device(plain, make_mesh("auto", {"data": 8}), "data"),
    ):
        message = rf"^{type(metric).__name__}\.results\(\) .*Call compute\(\) there"
        with pytest.raises(MetricTypeError, match=message):
            jax.jit(lambda metric: metric.update(preds=preds, target=target).results())(metric)
    with pytest.raises(MetricTypeError, match="Call compute"):
        nnx.jit(lambda metric: metric.results())(StatefulMetric(plain))
    # Values that are known are known within a traced function, too.
    seen = plain.update(preds, target)
    assert AboveMean().update(preds).update(preds).results() == (preds > preds.mean()).sum()
    assert seen.results() == np.mean((preds > 0.5) == target)


def test_a_metric_that_is_called():
    for metric in (Accuracy(), Collection({"a": Accuracy()})):
        name = type(metric).__name__
        with pytest.raises(
            MetricTypeError, match=rf"^{name}: .*not called.*metric\.update\(\.\.\.\)"
        ):
            metric(np.zeros(3), np.zeros(3))


def test_arguments_that_a_constructor_does_not_take():
    with pytest.raises(MetricTypeError, match=r'Write Collection\(\{"acc": \.\.\.\}\)'):
        Collection(acc=Accuracy())
    with pytest.raises(MetricTypeError, match=r'Write MultiTask\(\{"a": \.\.\., "b": \.\.\.\}\)'):
        datarax.MultiTask(a=Accuracy(), b=Accuracy())
    with pytest.raises(MetricTypeError, match=r"^Sliced: .*'slices'; it takes: metric, num_slices"):
        datarax.Sliced(Accuracy(), 3, slices=3)
    with pytest.raises(MetricTypeError, match=r"^Window: missing.*'size'; it takes: metric, size"):
        datarax.Window(Accuracy())


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("RMSE", "MeanSquaredError(squared=False)"),
        ("MSE", "MeanSquaredError"),
        ("ECE", "CalibrationError"),
        ("mAP", "MeanAveragePrecision"),
        ("PRAUC", "AveragePrecision"),
        ("AUC", "AUROC"),
        ("roc_auc_score", "AUROC"),
        ("F1Score", "F1"),
        ("BinaryAUROC", "AUROC"),
        ("MulticlassF1Score", "F1"),
        ("mean_squared_error", "MeanSquaredError"),
        ("Acuracy", "Accuracy"),
        ("R2", "R2Score"),
    ],
)
def test_names_of_other_libraries(name, meant):
    with pytest.raises(AttributeError, match=re.escape(f"{name!r}. Did you mean {meant}")):
        getattr(metrics, name)
    if name[:1].isupper():
        message = re.escape(f"{name!r}. Did you mean datarax.metrics.{meant}")
        with pytest.raises(AttributeError, match=message):
            getattr(datarax, name)


def message_of(module, name):
    with pytest.raises(AttributeError) as caught:
        getattr(module, name)
    return str(caught.value)


def test_every_suggestion_is_a_class_and_other_names_have_none():
    for known, meant in names_elsewhere().items():
        for each, _ in meant.calls:
            assert isinstance(getattr(metrics, each), type), known
    assert message_of(metrics, "Foo") == "module 'datarax.metrics' has no attribute 'Foo'"
    assert message_of(datarax, "Foo") == "module 'datarax' has no attribute 'Foo'"
    assert message_of(datarax, "Accuracy").endswith("Did you mean datarax.metrics.Accuracy?")
    assert message_of(datarax, "Colection").endswith("Did you mean Collection?")
    # A name that is written in another way; of two that are alike, the shorter.
    assert suggestion("AUROCScore", vars(metrics)) == ". Did you mean AUROC?"
    assert suggestion("gain_score", vars(metrics)) == ". Did you mean Gain?"
    assert suggestion("GIOU", vars(metrics)) == ". Did you mean GIoU?"


@pytest.mark.parametrize(
    ("cls", "given", "meant"),
    [
        (metrics.NDCG, "top_k", "k"),
        (metrics.RecallAtK, "topk", "k"),
        (Accuracy, "k", "top_k"),
        (Accuracy, "n_classes", "num_classes"),
        (Accuracy, "ignore_class", "ignore_index"),
        (metrics.LogLoss, "logits", "from_logits"),
        (metrics.CalibrationError, "n_bins", "num_bins"),
        (metrics.PSNR, "max_val", "data_range"),
        (Mean, "nan_strategy", "on_invalid"),
        (metrics.FBeta, "bta", "beta"),
    ],
)
def test_an_argument_of_another_library_is_suggested(cls, given, meant):
    with pytest.raises(MetricTypeError, match=rf"Did you mean {meant}= for {given}=\?$"):
        cls(**{given: 3})


@pytest.mark.parametrize("given", [{"task": "multiclass"}, {"labels": [1, 2]}], ids=str)
def test_how_the_task_is_set_is_said(given):
    """And which metrics average chosen classes, as `labels=` of scikit-learn does."""
    takes = "ratios of counts take it, such as Precision, Recall, F1 and JaccardIndex, and "
    chosen = f"; labels= chooses the classes that are averaged, and {takes}ClassificationReport"
    said = chosen if "labels" in given else ""
    for cls in (Accuracy, metrics.AUROC, metrics.LogLoss, metrics.ConfusionMatrix):
        message = "num_classes= makes the task multiclass and num_labels= multilabel; without both"
        with pytest.raises(MetricTypeError, match=rf"=\. {message} it is binary{said}$"):
            cls(num_classes=3, **given)
    with pytest.raises(MetricTypeError, match=rf"num_classes= is the number of classes{said}$"):
        metrics.MeanIoU(num_classes=3, **given)
    with pytest.raises(MetricTypeError, match=r"'(task|labels)'; it takes: on_invalid=$"):
        Mean(**given)


SEVERAL = {
    name: getattr(metrics, name)
    for name in ("Accuracy", "F1", "ConfusionMatrix", "LogLoss", "BrierScore", "AUROC", "ROC")
} | {"CalibrationError": metrics.CalibrationError, "HingeLoss": metrics.HingeLoss}


@pytest.mark.parametrize("cls", SEVERAL.values(), ids=SEVERAL)
def test_scores_and_targets_of_other_shapes(cls, rng):
    """What the error says to write is taken."""
    p = rng.dirichlet(np.ones(3), (4, 5)).astype(np.float32)
    target = rng.integers(0, 3, (4, 5))
    metric = cls(num_classes=3)

    def refused(preds, labels, *said, error=datarax.MetricInputError):
        for call in (metric.update, partial(jax.eval_shape, metric.update)):
            with pytest.raises(error) as caught:
                call(preds, labels)
            assert all(each in str(caught.value) for each in said), str(caught.value)

    both = "target.reshape((4,)) or target[..., 0]"
    refused(p[:, 0], target[:, :1], "expected target of shape (4,)", both)
    want = metric.update(p[:, 0], target[:, 0]).compute()
    for labels in (target[:, :1].reshape((4,)), target[:, :1][..., 0]):
        jax.tree.map(np.testing.assert_array_equal, metric.update(p[:, 0], labels).compute(), want)
    refused(p, target.reshape(-1), "expected target of shape (4, 5)", "target.reshape((4, 5))")
    one_hot = np.eye(3)[target]
    refused(p, one_hot.astype(int), "one-hot, give target.argmax(-1)")
    refused(p, one_hot, "one-hot, give target.argmax(-1)", error=MetricTypeError)
    metric.update(p, one_hot.argmax(-1))
    # As PyTorch has them.
    refused(np.moveaxis(p, -1, 1), target, "for num_classes=3", "give moveaxis(preds, 1, -1)")


def test_probabilities_whose_classes_are_along_axis_1(rng):
    target = rng.integers(0, 3, (4, 3))
    p = np.moveaxis(rng.dirichlet(np.ones(3), (4, 3)), -1, 1).astype(np.float32)
    metric = Accuracy(num_classes=3)
    for given in ((p, target), (jnp.asarray(p), jnp.asarray(target))):
        message = r"\(4, 3, 3\) holds probabilities along axis 1.*moveaxis\(preds, 1, -1\)"
        with pytest.warns(datarax.ScoresWarning, match=message):
            metric.update(*given)
    metric.update(np.moveaxis(p, 1, -1), target)
    metric.update(rng.normal(size=(4, 3, 3)).astype(np.float32), target)
    metric.update(np.full((4, 3, 3), 1 / 3, np.float32), target)


def test_names_of_arguments_that_are_suggested_exist():
    known = {
        name
        for x in vars(metrics).values()
        if isinstance(x, type)
        for name in inspect.signature(x).parameters
    }
    assert {name for names in _ARGUMENTS.values() for name in names} <= known


def test_arrays_of_the_other_byte_order_are_taken():
    for dtype in (">f4", ">f8", ">i4", ">u2", "<f4"):
        x = np.array([1, 2, 4], dtype)
        assert Mean().update(x, weights=x).results() == 3.0
        assert Accuracy().update(x > 1, (x > 1).astype(dtype)).results() == 1.0


def test_arrays_of_objects_are_refused_with_what_to_write():
    ints, floats = np.array([1, 0], object), np.array([1.0, None], object)
    for x in (ints, floats):
        with pytest.raises(MetricTypeError, match=r"dtype object. Convert it .* values\.astype\("):
            Mean().update(x)
        with pytest.raises(MetricTypeError, match=r"weights\.astype\(float\)"):
            Mean().update(np.ones(2), weights=x)
    with pytest.raises(datarax.MetricInputError, match="does not fit 64 bits"):
        Mean().update(np.array([2**70]))


@pytest.mark.parametrize("name", ["F1", "AUROC", "BrierScore", "CalibrationError"])
def test_a_binary_task_has_examples_of_any_shape(name, rng):
    make = getattr(metrics, name)
    metric, preds = make(), rng.random((16, 3)).astype(np.float32)
    target = rng.integers(0, 2, (16, 3))
    # The warnings of this suite are errors.
    pooled = metric.update(preds, target)
    flat = metric.update(preds.reshape(-1), target.reshape(-1))
    np.testing.assert_array_max_ulp(pooled.compute(), flat.compute(), 2)
    make(num_labels=3).update(preds, target)
    metric.update(preds, target, weights=np.ones((16, 3)))
    metric.update(preds[:, :1], target[:, :1])
    metric.update(preds[:, None], target[:, None])
