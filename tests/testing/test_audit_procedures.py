"""Procedures of many kinds: the correct ones pass an audit, each fault is named."""

import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import sklearn.metrics
from jax.sharding import PartitionSpec as P

import datarax
from datarax import metrics
from datarax.testing import audit
from datarax.testing.notes import ADDS_UP, NOTES, SAME

ROWS = 32
WORDS = np.array(["the", "cat", "sat", "on", "a", "mat", "and", "saw", "one", "dog"])


@pytest.fixture
def batch(rng):
    """Rows with everything that the procedures below take."""
    loss = rng.exponential(size=ROWS).astype(np.float32)
    score = rng.normal(size=ROWS).astype(np.float32)
    texts = [" ".join(rng.choice(WORDS, rng.integers(6, 10))) for _ in range(ROWS)]
    return {
        "loss": loss,
        "score": score,
        "other": (score + rng.normal(size=ROWS)).astype(np.float32),
        "label": np.arange(ROWS, dtype=np.int32) % 3,
        "pred": rng.integers(0, 3, ROWS).astype(np.int32),
        "tokens": rng.exponential(size=(ROWS, 5)).astype(np.float32),
        "length": rng.integers(1, 6, ROWS).astype(np.int32),
        "weight": rng.uniform(0.5, 3, ROWS).astype(np.float32),
        "real": np.ones(ROWS, bool),
        "tag": rng.permutation(np.arange(ROWS) % 6),
        "text": np.array(texts),
        "reference": np.array([f"{text[:-4]} dog" for text in texts]),
    }


def total(batches, value):
    return sum(float(np.sum(value(b), dtype=np.float64)) for b in batches)


def real(b, value):
    """A value where the row is real, 0 elsewhere."""
    keep = b["real"].reshape(-1, *[1] * (value.ndim - 1))
    return np.where(keep, value, np.zeros((), value.dtype))


def joined(batches, name):
    return np.concatenate([b[name][b["real"]] for b in batches])


def token_mean(batches, micro=1):
    """The mean of the losses of tokens, of which each row has another number."""
    weight = sum(real(b, b["length"]).sum() for b in batches)
    return {"loss": total(batches, lambda b: real(b, b["loss"] * b["length"])) / weight}


def sums(batches):
    return {
        "sum": total(batches, lambda b: real(b, b["loss"] * b["weight"])),
        "weight": total(batches, lambda b: real(b, b["weight"])),
        "note": "texts are left out",
        "nothing": None,
    }


def extremes(batches):
    return {"max": joined(batches, "loss").max(), "min": joined(batches, "loss").min()}


def counts(batches):
    labels = joined(batches, "label")
    return {"rows": len(labels), "by": {"label": np.bincount(labels, minlength=3)}}


def datarax_metrics(batches):
    held = datarax.Collection(
        {
            "accuracy": metrics.Accuracy(num_classes=3).from_outputs(preds="pred"),
            "auroc": metrics.AUROC().from_outputs(target="positive"),
            "f1": metrics.F1(num_classes=3).from_outputs(preds="pred"),
            "loss": metrics.Mean().from_outputs(values="loss"),
            "r": metrics.PearsonCorrCoef().from_outputs(preds="other"),
            "median": metrics.Median().from_outputs(values="loss"),
        }
    )
    for b in batches:
        weights = b["weight"] * b["real"]
        held = held.update(
            pred=b["pred"],
            preds=b["score"],
            target=b["label"],
            other=b["other"],
            positive=b["label"] == 1,
            loss=b["loss"],
            weights=weights,
        )
    return held.results()


def scikit_learn(batches):
    label, score, pred = (joined(batches, name) for name in ("label", "score", "pred"))
    weight = joined(batches, "weight")
    return {
        "auroc": sklearn.metrics.roc_auc_score(label == 1, score, sample_weight=weight),
        "f1": sklearn.metrics.f1_score(
            label, pred, average="macro", labels=[0, 1, 2], zero_division=0, sample_weight=weight
        ),
    }


def bleu(batches):
    metric = metrics.BLEU()
    for b in batches:
        metric = metric.update(list(b["text"]), list(b["reference"]))
    return {"bleu": metric.results()}


def perplexity(batches):
    tokens = total(batches, lambda b: real(b, b["length"]))
    return {
        "perplexity": np.exp(total(batches, lambda b: real(b, b["loss"] * b["length"])) / tokens)
    }


def welford(batches):
    count, mean, squares = 0, np.float32(0), np.float32(0)
    for b in batches:
        for x in b["score"]:
            count += 1
            step = x - mean
            mean += step / np.float32(count)
            squares += step * (x - mean)
    return {"mean": mean, "std": np.sqrt(squares / np.float32(count - 1))}


def moving_average(batches):
    value = 0.0
    for b in batches:
        value = 0.9 * value + 0.1 * b["loss"].mean()
    return {"train": {"loss_ema": value}, "rows": sum(len(b["loss"]) for b in batches)}


@jax.jit
def token_totals(tokens, length, keep):
    mask = (jnp.arange(tokens.shape[1])[None] < length[:, None]) & keep[:, None]
    sums = jnp.sum(jnp.where(mask, tokens, jnp.zeros_like(tokens)), dtype=jnp.float32)
    return sums, mask.sum()


def masked_tokens(dtype):
    def procedure(batches):
        pairs = [
            token_totals(jnp.asarray(b["tokens"]).astype(dtype), b["length"], b["real"])
            for b in batches
        ]
        mean = sum(float(a) for a, _ in pairs) / sum(int(b) for _, b in pairs)
        return {"loss": jnp.asarray(mean, dtype)}

    return procedure


def padded_to(size, b):
    """A batch with rows of zeros up to a size, so that a step is compiled once."""
    pad = size - len(b["loss"])
    return {
        name: np.pad(x, [(0, pad)] + [(0, 0)] * (x.ndim - 1))
        for name, x in b.items()
        if x.dtype.kind != "U"
    }


@jax.jit
def step(held, b):
    return held.update(preds=b["pred"], target=b["label"], loss=b["loss"], weights=b["real"])


def compiled_collection(batches):
    """A collection in a jitted step; each batch is padded to one size."""
    held = datarax.Collection(
        {
            "accuracy": metrics.Accuracy(num_classes=3),
            "loss": metrics.Mean().from_outputs(values="loss"),
        }
    )
    for b in batches:
        held = step(held, padded_to(40, b))
    return held.results()


def accumulated(batches, micro=1):
    """Totals over micro-batches, divided once."""
    pieces = [{name: x[i::micro] for name, x in b.items()} for b in batches for i in range(micro)]
    return token_mean(pieces)


def on_a_mesh(batches, mesh=None):
    """A metric with a copy on each device, where there is a mesh."""
    metric = metrics.Mean()
    if mesh is not None:
        metric = datarax.per_device(metric, mesh, "data")
    for b in batches:
        metric = jax.block_until_ready(metric.update(b["loss"], weights=b["weight"]))
    return {"loss": metric.results()}


def in_shard_map(batches, mesh=None):
    def totals(x, w):
        return jnp.sum(x * w), jnp.sum(w)

    local = totals
    if mesh is not None:
        specs = P("data"), P("data")
        local = jax.jit(
            jax.shard_map(
                lambda x, w: jax.lax.psum(totals(x, w), "data"),
                mesh=mesh,
                in_specs=specs,
                out_specs=P(),
            )
        )
    pairs = [jax.block_until_ready(local(b["loss"], b["weight"])) for b in batches]
    return {"loss": sum(float(a) for a, _ in pairs) / sum(float(b) for _, b in pairs)}


def quantiles(batches):
    return {"quantiles": np.quantile(joined(batches, "loss"), [0.1, 0.5, 0.9])}


def pearson(batches):
    x, y = joined(batches, "score"), joined(batches, "other")
    return {"r": np.corrcoef(x, y)[0, 1], "slope": np.polyfit(x, y, 1)[0]}


def by_group(batches):
    """The mean of each tag with weight, their mean, and that of all rows."""
    sums, weights = np.zeros(6), np.zeros(6)
    for b in batches:
        w = real(b, b["weight"])
        np.add.at(sums, b["tag"], real(b, b["loss"]) * w)
        np.add.at(weights, b["tag"], w)
    means = {f"tag {i}": sums[i] / weights[i] for i in range(6) if weights[i]}
    return {**means, "macro": np.mean(list(means.values())), "all": sums.sum() / weights.sum()}


def standard_deviation(batches):
    n, s, q = (total(batches, lambda b, p=p: b["score"].astype(float) ** p) for p in range(3))
    return {"std": np.sqrt(q / n - (s / n) ** 2)}


def dropout(batches):
    keep = np.random.default_rng().random
    dropped = total(batches, lambda b: b["loss"] * (keep(len(b["loss"])) > 0.5))
    return {**token_mean(batches), "dropped": dropped}


def throughput(batches):
    start = time.perf_counter()
    logged = token_mean(batches)
    return {**logged, "rows_per_second": 100 / (time.perf_counter() - start)}


def changed_in_place(batches):
    """Takes the batches apart while it reads them."""
    found = 0.0
    while batches:
        b = batches.pop()
        b["loss"] *= b["weight"]
        found += float(b["loss"].sum(dtype=np.float64))
    return {"loss": found}


MASKED = {"mask": "real"}
CORRECT = {
    "means by tokens": (token_mean, {**MASKED, "weights": "length", "groups": "tag"}),
    "sums": (sums, {**MASKED, "weights": "weight"}),
    "extremes": (extremes, MASKED),
    "counts": (counts, MASKED),
    "datarax": (datarax_metrics, {**MASKED, "weights": "weight", "groups": "tag"}),
    "scikit-learn": (scikit_learn, {**MASKED, "weights": "weight"}),
    "BLEU of a corpus": (bleu, {"groups": "tag"}),
    "perplexity": (perplexity, {**MASKED, "weights": "length"}),
    "Welford": (welford, {}),
    "a moving average": (moving_average, {"expected": "*ema"}),
    "tokens in float32": (masked_tokens("float32"), MASKED),
    "tokens in bfloat16": (masked_tokens("bfloat16"), MASKED),
    "a padded step": (compiled_collection, MASKED),
    "micro-batches": (accumulated, {**MASKED, "weights": "length", "micro": [2, 4, 8]}),
    "per_device": (on_a_mesh, {"weights": "weight", "devices": [8]}),
    "shard_map": (in_shard_map, {"weights": "weight", "devices": [8]}),
    "quantiles": (quantiles, MASKED),
    "Pearson": (pearson, MASKED),
    "groups": (by_group, {**MASKED, "weights": "weight", "groups": "tag"}),
    "standard deviation": (standard_deviation, {}),
    "changes its batches": (changed_in_place, {"weights": "weight"}),
}


@pytest.mark.parametrize("name", CORRECT)
def test_a_correct_procedure_passes(batch, rng, name):
    procedure, arguments = CORRECT[name]
    report = audit(procedure, batch, **arguments, seed=int(rng.integers(1000)))
    report.raise_if_changed()
    assert report.ok
    assert report.notes == {}
    assert report.unstable == []
    assert report.expected == (["train/loss_ema"] if name == "a moving average" else [])


@pytest.mark.parametrize(
    ("procedure", "name"), [(dropout, "dropped"), (throughput, "rows_per_second")]
)
def test_random_numbers_and_times_are_not_judged(batch, procedure, name):
    report = audit(procedure, batch, mask="real")
    report.raise_if_changed()
    assert report.unstable == [name]
    assert name in str(report)


def mean_of_means(batches):
    return {"loss": np.mean([b["loss"].mean() for b in batches])}


def micro_means(batches, micro=1):
    """The mean over micro-batches of means by tokens, of which they have different numbers."""
    means = [
        np.average(loss, weights=length)
        for b in batches
        for loss, length in zip(
            np.split(b["loss"], micro), np.split(b["length"], micro), strict=True
        )
    ]
    return {"loss": np.mean(means) if micro > 1 else token_mean(batches)["loss"]}


def summed_over_micro(batches, micro=1):
    loss = token_mean(batches)["loss"]
    return {"loss": loss * micro, "perplexity": np.exp(loss * micro)}


def divided_by_micro_twice(batches, micro=1):
    return {"loss": token_mean(batches)["loss"] / micro}


def padding_counted(batches):
    """The mask is below the line only: padded rows add to the loss."""
    rows = total(batches, lambda b: b["real"])
    return {"loss": total(batches, lambda b: np.nan_to_num(b["loss"])) / rows}


def times_mask(batches):
    rows = total(batches, lambda b: b["real"])
    return {"loss": total(batches, lambda b: b["loss"] * b["real"]) / rows}


def largest_with_padding(batches):
    """Garbage in padded rows may be the largest."""
    return {"max": max(np.nanmax(b["loss"]) for b in batches)}


def minimum_from_zero(batches, micro=1):
    if micro == 1:
        return {"min": min(b["loss"].min() for b in batches)}
    least = 0.0  # the carry of a scan
    for piece in np.split(np.concatenate([b["loss"] for b in batches]), micro):
        least = min(least, piece.min())
    return {"min": least}


def psum_twice(batches, mesh=None):
    if mesh is None:
        return {"loss": total(batches, lambda b: b["loss"])}

    def summed(x):
        return jax.lax.psum(
            jax.lax.pcast(jax.lax.psum(x.sum(), "data"), "data", to="varying"), "data"
        )

    mapped = jax.jit(jax.shard_map(summed, mesh=mesh, in_specs=P("data"), out_specs=P()))
    return {"loss": sum(float(jax.block_until_ready(mapped(b["loss"]))) for b in batches)}


def weights_ignored(batches):
    return {"loss": joined(batches, "loss").mean()}


def weights_below_ignored(batches):
    rows = sum(len(b["loss"]) for b in batches)
    return {"loss": total(batches, lambda b: b["loss"] * b["weight"]) / rows}


def weights_squared(batches):
    """The sum, and the mean whose weights are squared above the line alone."""
    squares = total(batches, lambda b: b["loss"] * b["weight"] ** 2)
    return {"sum": squares, "mean": squares / total(batches, lambda b: b["weight"])}


def last_batch_dropped(batches):
    return sums([b for b in batches if len(b["loss"]) == len(batches[0]["loss"])])


def last_batch_filled_up(batches):
    """The last batch is filled up with the first rows, which count again."""
    missing = len(batches[0]["loss"]) - len(batches[-1]["loss"])
    first = {name: x[: max(0, missing)] for name, x in batches[0].items()}
    return token_mean([*batches, first])


def auroc_of_batches(batches):
    scores = [
        sklearn.metrics.roc_auc_score(b["label"] == 1, b["score"])
        for b in batches
        if 0 < (b["label"] == 1).sum() < len(b["label"])
    ]
    return {"auroc": np.mean(scores)}


def perplexities(batches):
    return {"perplexity": np.mean([np.exp(b["loss"].mean()) for b in batches])}


def exp_of_means(batches):
    return {"perplexity": np.exp(np.mean([b["loss"].mean() for b in batches]))}


def last_batch_only(batches):
    return {"loss": batches[-1]["loss"].mean()}


def another_normaliser(batches):
    return {"loss": np.mean([b["loss"].sum() / (len(b["loss"]) + 1) for b in batches])}


def mean_of_sums(batches):
    return {"loss": np.mean([b["loss"].sum() for b in batches])}


def batch_sized(batches):
    return {"loss": total(batches, lambda b: b["loss"]) / max(len(b["loss"]) for b in batches)}


def empty_tag(batches):
    """A tag without weight is a mean of 0, and not left out."""
    sums, weights = np.zeros(6), np.zeros(6)
    for b in batches:
        np.add.at(sums, b["tag"], b["loss"] * b["weight"])
        np.add.at(weights, b["tag"], b["weight"])
    seen = np.unique(joined(batches, "tag"))
    return {"macro": np.mean((sums / np.maximum(weights, 1e-9))[seen])}


def parents_by_means(batches):
    """The mean of a parent weighs its tags by their mean weight, and not by their total."""
    loss, weight, tag = (joined(batches, name) for name in ("loss", "weight", "tag"))
    parts = [tag == i for i in np.unique(tag)]
    means = [np.average(loss[part], weights=weight[part]) for part in parts]
    return {"parent": np.average(means, weights=[weight[part].mean() for part in parts])}


def std_of_means(batches):
    return {"std": np.std([b["loss"].mean() for b in batches]) if batches[1:] else 0.0}


FAULTY = {
    "mean of means": (mean_of_means, {}, "loss", "mean of means"),
    "micro-batch means": (micro_means, {"micro": [2, 4]}, "loss", "mean of means"),
    "summed": (summed_over_micro, {"micro": [4]}, "loss", "summed over micro-batches"),
    "not linear": (summed_over_micro, {"micro": [4]}, "perplexity", "summed over micro-batches"),
    "divided": (divided_by_micro_twice, {"micro": [4]}, "loss", "divided by micro-batches"),
    "padding": (padding_counted, MASKED, "loss", "padding counted"),
    "0 * NaN": (times_mask, MASKED, "loss", "NaN from padding"),
    "garbage": (largest_with_padding, MASKED, "max", "padding counted"),
    "a minimum from 0": (minimum_from_zero, {"micro": [4]}, "min", "unknown"),
    "psum twice": (psum_twice, {"devices": [8]}, "loss", "multiplied by devices"),
    "no weights": (weights_ignored, {"weights": "weight"}, "loss", "weights ignored"),
    "half of the weights": (
        weights_below_ignored,
        {"weights": "weight"},
        "loss",
        "weights ignored",
    ),
    "squares": (weights_squared, {"weights": "weight"}, "sum", "weights applied twice"),
    "squares above": (weights_squared, {"weights": "weight"}, "mean", "weights applied twice"),
    "dropped": (last_batch_dropped, {}, "sum", "rows lost"),
    "filled up": (last_batch_filled_up, {}, "loss", "rows counted twice"),
    "AUROC": (auroc_of_batches, {}, "auroc", "mean of means"),
    "perplexities": (perplexities, {}, "perplexity", "mean of means"),
    "perplexity of means": (exp_of_means, {}, "perplexity", "mean of means"),
    "last batch": (last_batch_only, {}, "loss", "depends on order"),
    "moving average": (moving_average, {}, "train/loss_ema", "depends on order"),
    "normaliser": (another_normaliser, {}, "loss", "depends on batch size"),
    "mean of sums": (mean_of_sums, {}, "loss", "depends on batch size"),
    "largest size": (batch_sized, {}, "loss", "depends on batch size"),
    "empty tag": (empty_tag, {"weights": "weight", "groups": "tag"}, "macro", "unknown"),
    "parents": (parents_by_means, {"weights": "weight"}, "parent", "unknown"),
    "std of means": (std_of_means, {}, "std", "depends on batch size"),
}


@pytest.mark.parametrize("fault", FAULTY)
def test_a_fault_is_named(batch, rng, fault):
    procedure, arguments, name, cause = FAULTY[fault]
    report = audit(procedure, batch, **arguments, seed=int(rng.integers(1000)))
    assert not report.ok
    mine = [change for change in report.changes if change.name == name]
    assert mine[0].cause == cause, report
    # What is changed by the way goes by the same name, or has none.
    best = [change.cause for change in mine]
    assert max(set(best), key=best.count) == cause, report


def least_from(start):
    """A minimum whose carry starts from a number."""

    def procedure(batches):
        least = min([start, *(x for b in batches for x in b["loss"][b["weight"] > 0])])
        return {"min": np.float32(least)}

    return procedure


def macro_of(table, absent=0.0):
    """The mean over a table of tags, in which a tag without rows is `absent`, or is left out."""

    def procedure(batches):
        sums, weights = np.zeros(table), np.zeros(table)
        for b in batches:
            np.add.at(sums, b["tag"], b["loss"] * b["weight"])
            np.add.at(weights, b["tag"], b["weight"])
        means = np.divide(sums, weights, out=np.full(table, absent), where=weights > 0)
        return {"macro": np.nanmean(means), "each": means, "tags": np.sum(weights > 0) / table}

    return procedure


def of_groups(batches):
    """Numbers of many kinds that depend on the rows, one of which is a sum over groups."""
    loss, weight, tag = (joined(batches, name) for name in ("loss", "weight", "tag"))
    loss, weight, tag = (x[weight > 0] for x in (loss, weight, tag))
    parts = [tag == each for each in np.unique(tag)]
    means = np.array([np.average(loss[part], weights=weight[part]) for part in parts])
    return {
        "sum": means.sum(),
        "macro": means.mean(),
        "geometric": np.exp(np.log(means).mean()),
        "greatest": means.max(),
        "std": np.std(means),
        "range": np.float64(np.ptp(loss)),
        "groups": float(len(means)),
        "pairs": len(means) ** 2.0,
        "total": np.sum(loss * weight, dtype=np.float64),
    }


WEIGHED = {"weights": "weight", "groups": "tag"}


@pytest.mark.parametrize(
    ("procedure", "arguments", "notes"),
    [
        (least_from(0.0), {"weights": "weight"}, {"min": SAME}),
        (least_from(0.0), {}, {}),  # without weights, no part of the rows is passed
        (least_from(np.inf), {"weights": "weight"}, {}),
        (lambda batches: {"rate": 0.1, "steps": 5}, WEIGHED, {"rate": SAME, "steps": SAME}),
        (macro_of(6), WEIGHED, {"macro": ADDS_UP}),
        (macro_of(7), WEIGHED, {"macro": ADDS_UP}),  # the last tag is always empty
        (macro_of(7), {"weights": "weight"}, {}),
        (macro_of(7, absent=np.nan), WEIGHED, {}),
        (of_groups, WEIGHED, {"sum": ADDS_UP}),
    ],
)
def test_what_parts_of_the_rows_show(batch, rng, procedure, arguments, notes):
    seed = int(rng.integers(1000))
    report = audit(procedure, batch, **arguments, seed=seed)
    report.raise_if_changed()
    assert report.notes == notes
    lines = [line for line in str(report).splitlines() if line.startswith("note, ")]
    assert lines == [
        f"note, {note}: {', '.join(notes)} ({NOTES[note]})"
        for note in dict.fromkeys(notes.values())
    ]


def running_variance(batches):
    """Chan's merge of means and squares in float32, as a layer of running statistics does it."""
    n, mean, squares = 0, np.float32(0), np.float32(0)
    for batch in batches:
        x = batch["x"]
        k, here = len(x), x.mean(dtype=np.float32)
        apart = here - mean
        squares += ((x - here) ** 2).sum(dtype=np.float32)
        squares += apart * apart * np.float32(n * k / (n + k))
        mean, n = mean + apart * np.float32(k / (n + k)), n + k
    return squares / np.float32(n)


def difference_of_totals(batches):
    x, y, n = np.float32(0), np.float32(0), 0
    for batch in batches:
        x, y = x + batch["x"].sum(dtype=np.float32), y + batch["y"].sum(dtype=np.float32)
        n += len(batch["x"])
    return x / np.float32(n) - y / np.float32(n)


def skewness(batches):
    """Of all rows at once: only their order differs."""
    x = np.concatenate([batch["x"] for batch in batches])
    apart = x - x.mean(dtype=np.float32)
    second, third = ((apart**k).mean(dtype=np.float32) for k in (2, 3))
    return third / second ** np.float32(1.5)


def test_terms_that_cancel_in_float32_are_no_change(rng):
    """And the same number has a cause if rows count twice, or batches are averaged."""

    def correct(batches):
        return {
            "variance": running_variance(batches),
            "bias": difference_of_totals(batches),
            "skewness": skewness(batches),
        }

    def wrong(batches):
        twice = [*batches, batches[-1]] if len(batches) > 1 else batches
        return {
            "variance": np.mean([running_variance([batch]) for batch in batches]),
            "bias": np.mean([difference_of_totals([batch]) for batch in batches]),
            "skewness": skewness(twice),
        }

    for offset in (0, 1, 100, 1e4):
        for _ in range(10):
            rows = {name: rng.normal(offset, 1, 40).astype(np.float32) for name in "xy"}
            report = audit(correct, rows)
            assert report.ok, f"offset {offset}\n{report}"
        rows = {name: rng.normal(offset, 1, 40).astype(np.float32) for name in "xy"}
        report = audit(wrong, rows)
        causes = {change.name: change.cause for change in report.changes}
        every = {"variance", "bias", "skewness"}
        # Far from zero, float32 may round a bias as much as a mean of means changes it.
        assert causes.keys() == every if offset < 1e4 else "variance" in causes
        assert causes.get("bias", "mean of means") == "mean of means"
