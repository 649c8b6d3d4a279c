"""Logs of evaluation harnesses: `--format inspect` and `--format lm-eval`."""

import gzip
import json
import math
import re
import shutil

import numpy as np
import pyarrow as pa
import pytest

import datarax
from datarax import Interval, InvalidValuesWarning, MetricInputError
from datarax.metrics import Mean
from tests.cli.evaluations import command, evaluated, refusal, values
from tests.evaluation.log_writers import (
    DATE,
    FORMS,
    archive,
    row,
    sample,
    write_inspect,
    write_lm_eval,
)


def clustered(values_by_question):
    """The mean of all values and its standard error, from the definition."""
    every = np.concatenate([np.asarray(x, float) for x in values_by_question])
    mean, groups = every.mean(), len(values_by_question)
    residuals = np.array([np.sum(np.asarray(x, float) - mean) for x in values_by_question])
    return mean, math.sqrt(groups / (groups - 1) * np.sum(residuals**2)) / len(every)


def by_name(summary):
    return {each["name"]: each for each in summary["metrics"]}


def excluded(summary):
    return {(x["reason"], x["where"]): x["rows"] for x in summary["excluded"]}


def check_score(found, values_by_question):
    value, error = clustered(values_by_question)
    assert found["value"] == pytest.approx(value, rel=1e-12)
    assert found["std_error"] == pytest.approx(error, rel=1e-6)
    for end, sign in (("lower", -1), ("upper", 1)):
        assert found[end] == pytest.approx(value + sign * 1.959964 * error, rel=1e-5)


def inspect_samples(rng, questions=40, epochs=3):
    """Samples with all kinds of values, and the numbers of each score by question."""
    samples, numbers = [], {}
    for name in [f"q{i}" for i in range(questions // 2)] + list(range(questions // 2)):
        level = rng.random()
        for epoch in range(1, epochs + 1):
            grade = rng.choice(list("CIPN"))
            given = {
                "match": str(grade),
                "judge": float(rng.normal(level)),
                "style": {"tone": bool(rng.random() < level), "length": int(rng.integers(9))},
                "word": str(rng.choice(["yes", "No", "TRUE", "false", "0.25"])),
            }
            samples.append(
                sample(name, epoch, given, metadata={"level": "hard" if level > 0.5 else "easy"})
            )
            word = {"yes": 1, "No": 0, "TRUE": 1, "false": 0, "0.25": 0.25}[given["word"]]
            found = {
                "match": {"C": 1, "I": 0, "P": 0.5, "N": 0}[grade],
                "judge": given["judge"],
                "style/tone": given["style"]["tone"],
                "style/length": given["style"]["length"],
                "word": word,
            }
            for key, value in found.items():
                numbers.setdefault(key, {}).setdefault(str(name) + str(type(name)), []).append(
                    value
                )
    return samples, {key: list(each.values()) for key, each in numbers.items()}


@pytest.mark.parametrize("form", FORMS)
def test_scores_of_inspect_have_clustered_intervals(tmp_path, rng, form):
    samples, numbers = inspect_samples(rng)
    log = write_inspect(tmp_path / ("a.json" if form == "json" else "a.eval"), samples, form)
    summary = evaluated(
        tmp_path / "out", log, "--format", "inspect", "--slice-by", "metadata.level"
    )
    found = by_name(summary)
    assert list(found) == list(numbers)
    for key, each in numbers.items():
        check_score(found[key], each)
    assert found["judge"]["description"] == "The mean of judge."
    levels = {x["name"]: x["examples"] for x in summary["slices"][0]["rows"]}
    hard = sum(x["metadata"]["level"] == "hard" for x in samples)
    assert levels == {k: n for k, n in (("hard", hard), ("easy", len(samples) - hard)) if n}
    said = [x for x in summary["notes"] if "status" in x]
    assert len(said) == (form == "unfinished")


def lm_eval_rows(rng, documents=50, repeats=1, filters=("strict-match", "flexible-extract")):
    rows, numbers = [], {}
    # As lm-eval writes them: all documents of a filter, then those of the next.
    for filtered in filters:
        for _ in range(repeats):
            for doc in range(documents):
                given = {"exact_match": float(rng.random() < 0.6), "f1": float(rng.random())}
                rows.append(row(doc, filtered, {"subject": "ab"[doc % 2], "q": doc}, **given))
                for key, value in given.items():
                    name = key if filtered == "none" else f"{key}/{filtered}"
                    numbers.setdefault(name, {}).setdefault(doc, []).append(value)
    return rows, {key: list(each.values()) for key, each in numbers.items()}


def test_scores_of_lm_eval_are_apart_by_task_and_filter(tmp_path, rng):
    gsm, of_gsm = lm_eval_rows(rng, repeats=2)
    arc, of_arc = lm_eval_rows(rng, documents=30, filters=("none",))
    folder = tmp_path / "logs" / "model"
    write_lm_eval(folder, "gsm8k_cot", gsm)
    write_lm_eval(folder, "arc_easy", arc)
    (folder / f"results_{DATE}.json").write_text("{}")
    summary = evaluated(
        tmp_path / "out", tmp_path / "logs", "--format", "lm-eval", "--slice-by", "doc.subject"
    )
    found = by_name(summary)
    expected = {f"arc_easy/{key}": x for key, x in of_arc.items()}
    expected |= {f"gsm8k_cot/{key}": x for key, x in of_gsm.items()}
    assert found.keys() == expected.keys()
    for key, each in expected.items():
        check_score(found[key], each)
    assert (summary["excluded"], summary["notes"]) == ([], [])
    in_slice = {x["name"]: x["values"] for x in summary["slices"][0]["rows"]}
    assert in_slice["b"]["arc_easy/f1"]["value"] == pytest.approx(
        np.concatenate(of_arc["f1"])[1::2].mean(), rel=1e-12
    )


def test_one_task_needs_no_prefix_and_metrics_can_be_chosen(tmp_path, rng):
    rows, numbers = lm_eval_rows(rng, filters=("none", "strict"))
    log = write_lm_eval(tmp_path, "gsm8k", rows)
    asked = (log, "--format", "lm-eval", "--preds", "exact_match*", "--metrics", "mean,std")
    found = values(evaluated(tmp_path / "out", *asked))
    assert list(found) == [
        *("exact_match", "exact_match/std", "exact_match/strict", "exact_match/strict/std")
    ]
    for name in ("exact_match", "exact_match/strict"):
        every = np.concatenate(numbers[name])
        expected = {name: every.mean(), f"{name}/std": every.std()}
        assert {key: found[key] for key in expected} == pytest.approx(expected, rel=1e-9)
    asked = (log, "--format", "lm-eval", "--metrics", "f1,exact_match/max")
    assert list(values(evaluated(tmp_path / "named", *asked))) == ["exact_match/max", "f1"]


def test_what_has_no_score_is_counted(tmp_path):
    nan = float("nan")
    samples = [
        sample(1, 1, {"a": 1.0, "b": {"x": 1, "y": 0}}),
        sample(1, 2, {"a": 0.0, "b": nan}),
        sample(2, 1, error="the tool failed"),
        sample(2, 2, {"a": "unclear", "b": {"x": None, "y": 1}}),
        sample(3, 1, {"b": {"x": 0, "y": 1}}),
        sample(3, 2, {"a": None, "b": {"x": 1, "y": 1}, "letter": "A"}),
    ]
    log = write_inspect(tmp_path / "a.json", samples, status="cancelled", invalidated=True)
    summary = evaluated(tmp_path / "out", log, "--format", "inspect")
    assert values(summary) == {"a": 0.5, "b/x": 2 / 3, "b/y": 0.75}
    assert excluded(summary) == {
        ("failed with an error", "a, b/x, b/y"): 1,
        ("not scored (NaN)", "b/x, b/y"): 1,
        ("a text that is no number: 'unclear'", "a"): 1,
        ("no value", "a, b/x"): 1,
        ("no such score", "a"): 1,
    }
    notes = "\n".join(summary["notes"])
    assert f"{log}: the status of the log is 'cancelled': it holds 6 of 6 samples" in notes
    assert "marked as invalid" in notes
    assert "letter has no number in any sample (a text that is no number: 'A')" in notes
    assert "questions have 1 to 2 samples" in notes


def test_each_log_that_lacks_samples_is_named(tmp_path, rng, capsys):
    folder = tmp_path / "logs"
    rows, _ = lm_eval_rows(rng)
    write_lm_eval(folder, "full", rows)
    empty = write_lm_eval(folder, "none", [])
    summary = evaluated(tmp_path / "out", folder, "--format", "lm-eval")
    assert f"none: the log has no samples: {empty}" in summary["notes"]
    capsys.readouterr()
    said = refusal(capsys, "evaluate", empty, "--format", "lm-eval")
    assert "the logs have no scores: none: the log has no samples" in said
    unscored = write_inspect(tmp_path / "b.eval", [sample(1, error="x")] * 2, "zstandard")
    said = refusal(capsys, "evaluate", unscored, "--format", "inspect")
    assert "none of its 1 samples has a score; 1 failed" in said
    half = write_inspect(
        tmp_path / "c.json",
        [sample(1, 1, {"a": 1})],
        spec={"dataset": {"sample_ids": [1, 2]}, "config": {"epochs": 2}},
        results={"total_samples": 4, "completed_samples": 1},
    )
    notes = evaluated(tmp_path / "half", half, "--format", "inspect")["notes"]
    assert f"{half}: the log holds 1 of 4 samples" in notes


def test_questions_are_paired_by_id(tmp_path, rng):
    a, b = {}, {}
    for name in range(60):
        a[name] = rng.random(2)
        b[name] = a[name].mean() + rng.normal(0.1, 0.2, 3)
    del a[7], b[20]
    logs = [
        write_inspect(
            tmp_path / f"{model}.json",
            [
                sample(name, epoch + 1, {"judge": float(x), f"only_{model}": 1.0})
                for name in rng.permutation(list(each)).tolist()
                for epoch, x in enumerate(each[name])
            ],
            model=model,
        )
        for model, each in (("a", a), ("b", b))
    ]
    out = tmp_path / "out"
    assert command("compare", *logs, "--format", "inspect", "--output", out) == 0
    summary = json.loads((out / "metrics.json").read_text())
    (found,) = summary["metrics"]
    both = sorted(a.keys() & b.keys())
    means = [np.array([each[name].mean() for name in both]) for each in (a, b)]
    difference = means[1] - means[0]
    assert found["name"] == "judge"
    assert [found["a"], found["b"]] == pytest.approx([x.mean() for x in means], rel=1e-12)
    error = difference.std(ddof=1) / math.sqrt(len(both))
    half = (found["upper"] - found["lower"]) / 2
    assert half == pytest.approx(1.96 * error, rel=0.05)  # Student's t, or the normal
    assert excluded(summary) == {
        ("question without a number in a alone", "judge"): 1,
        ("question without a number in b alone", "judge"): 1,
    }
    assert {"a alone has only_a: not compared", "b alone has only_b: not compared"} <= set(
        summary["notes"]
    )


def test_questions_of_lm_eval_are_paired_within_tasks(tmp_path, rng, capsys):
    rows = {}
    for model in "ab":
        for task in ("x", "y"):
            own = [row(doc, "none", acc=float(rng.random() < 0.5)) for doc in range(40)]
            rows[model, task] = np.array([each["acc"] for each in own])
            rng.shuffle(own)
            write_lm_eval(tmp_path / model, task, own)
    out = tmp_path / "out"
    assert (
        command("compare", tmp_path / "a", tmp_path / "b", "--format", "lm-eval", "--output", out)
        == 0
    )
    summary = json.loads((out / "metrics.json").read_text())
    found = {x["name"]: (x["a"], x["b"]) for x in summary["metrics"]}
    expected = {f"{t}/acc": (rows["a", t].mean(), rows["b", t].mean()) for t in ("x", "y")}
    assert found.keys() == expected.keys()
    for name in expected:
        assert found[name] == pytest.approx(expected[name], rel=1e-12)
    capsys.readouterr()
    other = write_lm_eval(tmp_path / "c", "x", [row(3, "none", {"q": "another"}, acc=1.0)])
    said = refusal(
        capsys, "compare", tmp_path / "a" / f"samples_x_{DATE}.jsonl", other, "--format", "lm-eval"
    )
    assert "the question 3 is another than in" in said
    assert str(other) in said
    lone = write_lm_eval(tmp_path / "d", "x", [row(3, "none", f1=1.0)])
    said = refusal(capsys, "compare", tmp_path / "a", lone, "--format", "lm-eval")
    assert "no score in common" in said


def test_attempts_of_a_run_count_once_and_repeats_are_one_cluster(tmp_path, rng):
    folder = tmp_path / "logs"
    folder.mkdir()
    first = [sample(i, 1, {"a": 1.0}, uuid=str(i)) for i in range(10)]
    first[3:] = [sample(i, 1, error="lost") for i in range(3, 10)]
    again = first[:3] + [sample(i, 1, {"a": 0.0}) for i in range(3, 10)]
    for number, samples in enumerate((first, again)):
        spec = {"task_id": "same", "created": f"2026-05-0{number + 1}T00:00:00+00:00"}
        status = ("error", "success")[number]
        name = f"2026-05-0{number + 1}T00-00-00_sums.eval"
        write_inspect(folder / name, samples, "deflated", spec=spec, status=status)
    (folder / "eval-set.json").write_text("{}")  # is no log
    summary = evaluated(tmp_path / "out", folder, "--format", "inspect")
    assert values(summary) == {"a": 0.3}
    assert (summary["source"]["rows"], summary["excluded"]) == (10, [])
    assert any("10 samples are in several attempts of one run" in x for x in summary["notes"])
    repeats = [[sample(i, 1, {"a": float(rng.random())}) for i in range(20)] for _ in range(3)]
    logs = [write_inspect(tmp_path / f"{i}.json", each) for i, each in enumerate(repeats)]
    summary = evaluated(tmp_path / "repeats", *logs, "--format", "inspect")
    per_question = np.array([[x["scores"]["a"]["value"] for x in each] for each in repeats]).T
    check_score(by_name(summary)["a"], list(per_question))
    assert any(
        "3 logs of one model have samples of the same questions" in x for x in summary["notes"]
    )


def test_models_are_never_pooled(tmp_path, rng):
    for model, value in (("m/one", 1.0), ("m/two", 0.0)):
        rows = [row(doc, "none", acc=value) for doc in range(5)]
        write_lm_eval(tmp_path / "logs" / "same", "x", rows, DATE[:-1] + str(int(value)), model)
        write_lm_eval(tmp_path / "logs" / model[2:], "y", rows, model=None)
    found = values(evaluated(tmp_path / "out", tmp_path / "logs", "--format", "lm-eval"))
    assert found == {"m/one/x/acc": 1, "m/two/x/acc": 0, "one/y/acc": 1, "two/y/acc": 0}
    for model, value in (("one", 1.0), ("two", 0.0)):
        write_inspect(
            tmp_path / f"2026-01-01T{model}.json", [sample(1, 1, {"a": value})], model=model
        )
    found = values(evaluated(tmp_path / "inspect", f"{tmp_path}/2026*.json", "--format", "inspect"))
    assert found == {"one/a": 1, "two/a": 0}


def test_tasks_of_one_name_that_differ_are_refused(tmp_path, capsys):
    logs = [
        write_inspect(
            tmp_path / f"{level}.json",
            [sample(1, 1, {"a": 1.0})],
            spec={"task_args": {"level": level}},
        )
        for level in ("easy", "hard")
    ]
    said = refusal(capsys, "evaluate", *logs, "--format", "inspect")
    assert re.search(
        r"hard.json: task_args of the task 'sums' is .*hard.* and in .*easy.json", said
    )
    other = write_inspect(tmp_path / "o.json", [sample(1, 1, {"a": 1.0}, target="another")])
    again = write_inspect(tmp_path / "p.json", [sample(1, 1, {"a": 1.0})])
    said = refusal(capsys, "evaluate", other, again, "--format", "inspect")
    assert "the question 1 of the task 'sums' is another than in" in said
    assert str(other) in said
    assert str(again) in said
    rows = [row(0, "none", acc=1.0), row(0, "none", acc=1.0) | {"prompt_hash": "five shots"}]
    for number, each in enumerate(rows):
        write_lm_eval(tmp_path / "shots", "x", [each], DATE[:-1] + str(number))
    said = refusal(capsys, "evaluate", tmp_path / "shots", "--format", "lm-eval")
    assert "the prompt 0 of the task 'x' is another than in" in said


def test_damaged_logs_are_named(tmp_path, rng, capsys):
    samples, _ = inspect_samples(rng, questions=6)
    whole = write_inspect(tmp_path / "whole.eval", samples, "zstandard").read_bytes()
    log = tmp_path / "cut.eval"
    for size in sorted({0, 1, 3, *rng.integers(4, len(whole) - 1, 12).tolist(), len(whole) - 1}):
        log.write_bytes(whole[:size])
        with pytest.raises(MetricInputError, match=re.escape(str(log))):
            datarax.evaluate(log, format="inspect")
    for packing in ("stored", "deflated", "zstandard"):
        write_inspect(log, samples, packing)
        data = bytearray(log.read_bytes())
        at = data.index(b"summaries.json") + 60  # within the contents of the summaries
        data[at : at + 8] = bytes(x ^ 0x55 for x in data[at : at + 8])
        log.write_bytes(data)
        with pytest.raises(MetricInputError, match=r"cut\.eval: the member summaries\.json is dam"):
            datarax.evaluate(log, format="inspect")
    text = write_inspect(tmp_path / "cut.json", samples).read_text()
    (tmp_path / "cut.json").write_text(text[: len(text) // 2])
    said = refusal(capsys, "evaluate", tmp_path / "cut.json", "--format", "inspect")
    assert "cut.json: it is no JSON, or was cut off" in said


BAD_INSPECT = {
    "no log": ({"hello": 1}, "it has no eval.task"),
    "a list": ([1], "expected a log of Inspect, an object of JSON"),
    "later": (
        {"version": 9, "eval": {"task": "x"}, "samples": []},
        "the format of the log has the version 9",
    ),
    "no samples": ({"version": 2, "eval": {"task": "x"}}, "it holds no samples"),
    "a number": (
        {"eval": {"task": "x"}, "samples": [1]},
        "samples, sample 1: 1; expected an object",
    ),
    "no id": (
        {"eval": {"task": "x"}, "samples": [{"scores": {}}]},
        "sample 1: None; expected an id",
    ),
    "epoch": ({"eval": {"task": "x"}, "samples": [{"id": 1, "epoch": "a"}]}, "expected an epoch"),
    "scores": (
        {"eval": {"task": "x"}, "samples": [{"id": 1, "scores": [1]}]},
        "expected scores by name",
    ),
    "two": (
        {
            "eval": {"task": "x"},
            "samples": [{"id": 1, "scores": {"a": {"value": {"b": 1}}, "a/b": 2}}],
        },
        "two scores have the name 'a/b'",
    ),
}


@pytest.mark.parametrize("case", BAD_INSPECT)
def test_files_that_are_no_logs_of_inspect(tmp_path, case):
    content, said = BAD_INSPECT[case]
    path = tmp_path / "a.json"
    path.write_text(json.dumps(content))
    with pytest.raises(MetricInputError, match=re.escape(said)) as refused:
        datarax.evaluate(path, format="inspect")
    assert str(path) in str(refused.value)
    if isinstance(content, dict):
        packed = tmp_path / "a.eval"
        samples = content.pop("samples", [])
        packed.write_bytes(
            archive(
                {
                    "header.json": json.dumps(content).encode(),
                    "summaries.json": json.dumps(samples).encode(),
                }
            )
        )
        with pytest.raises(MetricInputError, match=re.escape(str(packed))):
            datarax.evaluate(packed, format="inspect")


BAD_ROWS = {
    "cut": ('{"doc_id": 1, "acc"', "row 3: it is no JSON, or the file was cut off there"),
    "text": ("hello\n", "row 3: it is no JSON"),
    "no row": ('{"a": 1}\n', "row 3: it has no doc_id"),
    "a list": ("[1]\n", "row 3: [1]; expected an object of JSON"),
    "id": ('{"doc_id": 1.5}\n', "row 3: 1.5; expected doc_id to be an integer or a text"),
    "metrics": ('{"doc_id": 9, "metrics": "acc"}\n', "row 3: 'acc'; expected metrics to be a list"),
    "mixed": ('{"doc_id": 9, "metrics": ["acc"], "acc": "high"}\n', 'row 3: "high" is no number'),
    "document": (
        '{"doc_id": 1, "doc_hash": "other"}\n',
        "the document with doc_id 1 is another than",
    ),
}


@pytest.mark.parametrize("case", BAD_ROWS)
def test_rows_that_are_none_of_lm_eval(tmp_path, case):
    text, said = BAD_ROWS[case]
    path = write_lm_eval(tmp_path, "x", [row(doc, "none", acc=1.0) for doc in (0, 1)])
    with path.open("a") as file:
        file.write(text)
    with pytest.raises(MetricInputError, match=re.escape(said)) as refused:
        datarax.evaluate(path, format="lm-eval")
    assert str(path) in str(refused.value)


def test_other_versions_are_read(tmp_path):
    score = {"value": "C"}
    twice = [sample(name, 1, {"a": x}) for name, x in ((1, 0.0), (2, 0.5), (1, 1.0))]
    newer = write_inspect(tmp_path / "new.json", twice, version=3)
    with pytest.warns(InvalidValuesWarning, match="1 samples are there twice; of each the latest"):
        assert datarax.evaluate(newer, format="inspect").results()["a/value"] == 0.75
    old = {
        "version": 1,
        "status": "success",
        "eval": {"task": "t"},
        "results": {"scorer": {"name": "match"}},
    }
    old["samples"] = [
        {"id": i, "epoch": 1, "score": score if i else {"value": "I"}} for i in range(4)
    ]
    path = tmp_path / "a.json"
    path.write_text(json.dumps(old))
    assert datarax.evaluate(path, format="inspect").results()["match/value"] == 0.75
    # Before 0.4.4, lm-eval wrote neither filters nor the names of metrics.
    rows = [row(doc, None, acc=float(doc > 0), bleu=["a", "b"]) for doc in range(4)]
    for each in rows:
        for name in ("metrics", "doc_hash", "prompt_hash", "target_hash"):
            del each[name]
    path = write_lm_eval(tmp_path, "x", rows)
    with pytest.warns(InvalidValuesWarning, match="bleu is left out: it has no number"):
        found = datarax.evaluate(path.rename(tmp_path / "model_x.jsonl"), format="lm-eval")
    assert found.results()["acc/value"] == 0.75


def test_compressed_logs_are_read(tmp_path, rng, capsys):
    samples, numbers = inspect_samples(rng)
    log = write_inspect(tmp_path / "2026-01-01T00-00_a.json", samples)
    packed = tmp_path / "packed" / "2026-01-01T00-00_a.json.gz"
    packed.parent.mkdir()
    packed.write_bytes(gzip.compress(log.read_bytes()))
    rows, of_rows = lm_eval_rows(rng, filters=("none",))
    text = write_lm_eval(tmp_path, "gsm8k", rows).read_bytes()
    (tmp_path / "packed" / f"samples_gsm8k_{DATE}.jsonl.zst").write_bytes(
        pa.compress(text, codec="zstd", asbytes=True)
    )
    folder = packed.parent.as_uri()
    found = datarax.evaluate(folder, format="inspect").results()
    assert found["judge/value"] == pytest.approx(np.mean(numbers["judge"]), rel=1e-12)
    found = datarax.evaluate(folder, format="lm-eval").results()
    assert found["f1/value"] == pytest.approx(np.mean(of_rows["f1"]), rel=1e-12)
    packed.write_bytes(packed.read_bytes()[:500])
    assert str(packed) in refusal(capsys, "evaluate", packed, "--format", "inspect")


def test_logs_in_python(tmp_path, rng):
    samples, numbers = inspect_samples(rng)
    log = write_inspect(tmp_path / "a.eval", samples, "zstandard")
    found = datarax.evaluate(log, format="inspect").results()
    value, error = clustered(numbers["judge"])
    assert (found["judge/value"], found["judge/std_error"]) == pytest.approx(
        (value, error), rel=1e-6
    )
    own = datarax.evaluate(
        log,
        Interval(Mean(), clusters=64),
        columns={"values": "style/tone", "cluster": "sample.question"},
        format="inspect",
    ).results()
    assert own["value"] == found["style/tone/value"]
    assert own["std_error"] == found["style/tone/std_error"]
    samples[0]["scores"]["judge"]["value"] = float("nan")
    write_inspect(log, samples, "zstandard")
    with pytest.warns(InvalidValuesWarning, match="1 samples left out of judge: not scored"):
        datarax.evaluate(log, format="inspect")
    with pytest.raises(MetricInputError, match="format is 'helm'; expected 'inspect' or 'lm-eval'"):
        datarax.evaluate(log, format="helm")


def test_arguments_of_logs(tmp_path, rng, capsys):
    log = write_lm_eval(tmp_path, "x", lm_eval_rows(rng)[0])
    of_log = ("evaluate", log, "--format", "lm-eval")
    assert "the task is score" in refusal(capsys, *of_log, "--task", "binary")
    assert "no score 'accc'" in refusal(capsys, *of_log, "--preds", "accc")
    assert "no column 'doc.topic'" in refusal(capsys, *of_log, "--slice-by", "doc.topic")
    assert "has no log of inspect" in refusal(capsys, "evaluate", tmp_path, "--format", "inspect")
    for folder in ("one", "two"):
        evaluated(tmp_path / folder, *of_log[1:])
    capsys.readouterr()
    said = refusal(
        capsys, "merge", tmp_path / "one", tmp_path / "two", "--output", tmp_path / "all"
    )
    assert "evaluate the logs together instead" in said
    shutil.copy(log, tmp_path / "two" / log.name)
    assert command(*of_log, "--output", tmp_path / "one", "--resume") == 0
