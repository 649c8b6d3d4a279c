"""The examples of other libraries: what they print, against the numbers of plain NumPy."""

import collections
import contextlib
import io
import re
import runpy
import tempfile
import warnings

import jax
import numpy as np
import pytest
import sklearn.metrics
from flax import linen, nnx
from sklearn.model_selection import GridSearchCV, cross_val_score

from datarax import MetricTypeError
from datarax.metrics import Accuracy
from tests import processes
from tests.test_layers import ROOT

EXAMPLES = {path.stem for path in (ROOT / "examples").glob("*.py")}


def run(name):
    """What an example printed, by the words before the numbers; and its variables."""
    out = io.StringIO()
    # As a user runs it: Optax needs JAX's usual promotion of dtypes.
    usual = jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow")
    with usual[0], usual[1], contextlib.redirect_stdout(out):
        variables = runpy.run_path(str(ROOT / "examples" / f"{name}.py"))
    lines = re.findall(r"^([^ ]+(?: [a-z][^ ]*)?)((?: [0-9.]+)+)$", out.getvalue(), re.MULTILINE)
    assert len(lines) == out.getvalue().count("\n")
    printed = {key: [float(number) for number in numbers.split()] for key, numbers in lines}
    return printed, variables


@pytest.fixture
def compiled():
    """How many programs were compiled in this test, by the name of the function."""
    counts = collections.Counter()

    def listen(event, duration, fun_name="", **_):
        if event == "/jax/core/compile/backend_compile_duration":
            counts[fun_name.removeprefix("jit(").removesuffix(")")] += 1

    jax.monitoring.register_event_duration_secs_listener(listen)
    yield counts
    jax.monitoring.unregister_event_duration_listener(listen)


def trained(weight, bias, batches, rate=0.5, momentum=0.0):
    """Softmax regression by gradient descent in float64, over batches `(x, y, divisor)`.

    Returns the losses of the examples and whether they were right, as seen before each step.
    """
    weight = np.vstack([weight, bias]).astype(np.float64)
    velocity, losses, right = 0.0, [], []
    for x, y, divisor in batches:
        x = np.hstack([x, np.ones((len(x), 1))])
        logits = x @ weight
        log_probs = logits - np.logaddexp.reduce(logits, 1, keepdims=True)
        losses.append(-log_probs[np.arange(len(y)), y])
        right.append(logits.argmax(1) == y)
        error = (np.exp(log_probs) - np.eye(weight.shape[1])[y]) / divisor
        velocity = momentum * velocity + x.T @ error
        weight = weight - rate * velocity
    return losses, right


def check(printed, phase, losses, right):
    """The means over all examples of some batches. One of two almost equal logits may win."""
    losses, right = np.concatenate(losses), np.concatenate(right)
    assert printed[f"{phase} loss"] == pytest.approx([losses.mean()], rel=2e-5)
    assert printed[f"{phase} accuracy"] == pytest.approx([right.mean()], abs=1.5 / len(right))


def cut(v, rows, divisor=None, until=None):
    """Batches of `rows` consecutive examples; the last one may be shorter."""
    x, y = v["x"], v["y"]
    starts = range(0, len(x), rows)[:until]
    return [(x[i : i + rows], y[i : i + rows], divisor or len(x[i : i + rows])) for i in starts]


def test_flax_nnx(compiled):
    printed, v = run("flax_nnx")
    model = nnx.Linear(64, 10, rngs=nnx.Rngs(0))
    epoch = cut(v, v["ROWS"], divisor=v["ROWS"])
    losses, right = trained(np.asarray(model.kernel), np.asarray(model.bias), epoch * v["EPOCHS"])
    for i in range(v["EPOCHS"]):
        steps = slice(i * len(epoch), (i + 1) * len(epoch))
        check(printed, f"epoch-{i + 1}", losses[steps], right[steps])
    preds = np.argmax(v["model"](v["x"]), 1)
    f1 = sklearn.metrics.f1_score(v["y"], preds, average="macro")
    accuracy = sklearn.metrics.accuracy_score(v["y"], preds)
    assert printed["trained f1"] == pytest.approx([f1], abs=1e-3)
    assert printed["trained accuracy"] == pytest.approx([accuracy], abs=1.5 / len(preds))
    # Neither the padded batch nor the reset between epochs compiles a step again.
    assert compiled["train_step"] == compiled["eval_step"] == 1


def test_flax_linen(compiled):
    printed, v = run("flax_linen")
    params = linen.Dense(10).init(jax.random.key(0), v["x"][:1])["params"]
    epoch = cut(v, v["ROWS"], divisor=v["ROWS"])
    losses, right = trained(params["kernel"], params["bias"], epoch * v["EPOCHS"])
    for i in range(v["EPOCHS"]):
        steps = slice(i * len(epoch), (i + 1) * len(epoch))
        check(printed, f"epoch-{i + 1}", losses[steps], right[steps])
    assert printed["restored accuracy"] == printed[f"epoch-{v['EPOCHS']} accuracy"]
    assert compiled["train_step"] == 2  # of the two shapes


def test_equinox_filter_jit(compiled):
    printed, v = run("equinox_filter_jit")
    assert 0 < printed["train loss"][0] < np.log(2)
    x = v["batches"][0].reshape(-1, 64)[: len(v["x"])]
    logits = np.asarray(jax.jit(jax.vmap(v["half"]))(x)).astype(np.float64)
    assert v["half"].layers[0].weight.dtype == jax.numpy.bfloat16
    # A program of another batch may round a bfloat16 logit in another way.
    accuracy = sklearn.metrics.accuracy_score(v["y"], logits.argmax(1))
    assert printed["bfloat16 accuracy"] == pytest.approx([accuracy], abs=5e-3)
    loss = np.mean(np.logaddexp.reduce(logits, 1) - logits[np.arange(len(logits)), v["y"]])
    assert printed["bfloat16 loss"] == pytest.approx([loss], rel=2e-3)
    assert compiled["train_step"] == compiled["evaluate"] == 1


def test_plain_jax(compiled):
    printed, v = run("plain_jax")
    batches = []
    for order in v["orders"]:
        shuffled = {"x": v["x"][order], "y": v["y"][order]}
        batches += cut(shuffled, v["ROWS"], until=v["steps"])
    losses, right = trained(np.zeros((64, 10)), np.zeros(10), batches)
    for i in range(v["EPOCHS"]):
        steps = slice(i * v["steps"], (i + 1) * v["steps"])
        check(printed, f"epoch-{i + 1}", losses[steps], right[steps])
    assert compiled["epoch"] == 1


def test_optax_multi_steps(compiled):
    printed, v = run("optax_multi_steps")
    # Each optimizer step is a step of plain gradient descent on its labelled examples.
    divisor = v["expected"] * v["MICRO_STEPS"]
    batches = cut(v, v["ROWS"] * v["MICRO_STEPS"], divisor, until=3)
    batches = [(x[y >= 0], y[y >= 0], divisor) for x, y, _ in batches]
    losses, right = trained(np.zeros((64, 10)), np.zeros(10), batches)
    for i in range(3):
        check(printed, f"step-{i + 1}", losses[i : i + 1], right[i : i + 1])
        assert printed[f"step-{i + 1} examples"] == [len(losses[i])]
    assert compiled["micro_step"] == 1


def test_orbax_checkpoint_manager(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    printed, v = run("orbax_checkpoint_manager")
    assert printed["restored-at step"] == [v["EVERY"]]
    batches = cut(v, v["ROWS"], until=v["STEPS"])
    check(printed, "epoch", *trained(np.zeros((64, 10)), np.zeros(10), batches, momentum=0.9))


def _grain():
    warnings.filterwarnings("ignore", "The default axis_types will change", DeprecationWarning)
    printed, v = run("grain_loader")
    return printed, len(v["dataset"][v["mine"]])


def test_grain_loader(compiled):
    printed, v = run("grain_loader")
    x, y = v["x"][500:], v["y"][500:]
    scores = x @ v["weight"]
    area = sklearn.metrics.roc_auc_score(y, scores)
    assert printed["auroc"] == pytest.approx([area], abs=1e-3)
    accuracy = sklearn.metrics.accuracy_score(y, scores > 0)
    assert printed["accuracy"] == pytest.approx([accuracy], abs=1.5 / len(y))
    assert compiled["eval_step"] == 1
    # Two processes read 649 and 648 examples, and report the result of all of them.
    first, second = processes.run(_grain, 2)
    assert (first[1], second[1]) == (649, 648)
    for each in (first[0], second[0]):
        assert each.keys() == printed.keys()
        assert each["accuracy"] == printed["accuracy"]
        assert each["auroc"] == pytest.approx(printed["auroc"], abs=2e-6)


def test_hugging_face_outputs(compiled):
    printed, v = run("hugging_face_outputs")
    losses, right = [], []
    for text in v["texts"]:
        logits = (v["params"]["table"][text] @ v["params"]["head"])[:-1]
        logits = np.asarray(jax.numpy.bfloat16(logits)).astype(np.float64)
        log_probs = logits - np.logaddexp.reduce(logits, 1, keepdims=True)
        losses.append(-log_probs[np.arange(len(text) - 1), text[1:]])
        right.append(logits.argmax(1) == text[1:])
    losses, right = np.concatenate(losses), np.concatenate(right)
    assert printed["loss"] == pytest.approx([losses.mean()], rel=1e-3)  # bfloat16 logits
    assert printed["perplexity"] == pytest.approx([np.exp(losses.mean())], rel=1e-2)
    assert printed["accuracy"] == pytest.approx([right.mean()], abs=1e-2)
    assert compiled["eval_step"] == 1


def test_sklearn_scorers():
    printed, v = run("sklearn_scorers")
    search = GridSearchCV(v["model"], v["grid"], scoring="neg_log_loss", cv=3)
    search.fit(v["x"], v["y"])
    assert printed["best-C"] == [search.best_params_["logisticregression__C"]]
    assert printed["log-loss"] == pytest.approx([-search.best_score_], rel=1e-5)
    names = {"auroc": "roc_auc", "brier": "neg_brier_score", "f1": "f1"}
    for name, theirs in names.items():
        ours = np.abs(cross_val_score(search.best_estimator_, v["x"], v["y"], scoring=theirs, cv=3))
        assert printed[name] == pytest.approx(list(ours), abs=2e-6)


# Of Keras itself: NumPy 2 converts its variables, and it asks JAX for 64-bit types.
@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:Explicitly requested dtype:UserWarning")
def test_keras_fit():
    printed, v = run("keras_fit")
    x, y, weights = v["others"]
    assert len(y) % v["BATCH"]
    kernel, bias = map(np.float64, v["model"].get_weights())
    scores = 1 / (1 + np.exp(-(x @ kernel + bias)[:, 0]))
    area = sklearn.metrics.roc_auc_score(y, scores)
    assert printed["auc"] == pytest.approx([area], abs=2e-5)
    assert abs(printed["keras-auc"][0] - area) > 1e-4  # of 200 thresholds
    assert printed["f1"] == pytest.approx([sklearn.metrics.f1_score(y, scores > 0.5)], abs=1e-6)
    assert printed["mean-score"] == pytest.approx([np.average(scores, weights=weights)], abs=2e-6)


def test_labels_that_are_strings_are_refused_by_their_dtype():
    names = np.array(["cat", "dog"])
    with pytest.raises(MetricTypeError, match="got ndarray of dtype <U3"):
        Accuracy(num_classes=2).update(names, names)


def test_every_example_is_tested_and_is_on_the_page():
    assert {f"test_{name}" for name in EXAMPLES} <= globals().keys()
    page = (ROOT / "docs" / "fitting-in.md").read_text()
    assert set(re.findall(r'--8<-- "examples/(.*)\.py"', page)) == EXAMPLES
