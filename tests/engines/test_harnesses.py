"""Logs that the harnesses themselves have written, on this machine and without a network."""

import json
from pathlib import Path

import lm_eval  # pyright: ignore[reportMissingImports]
import numpy as np
import pytest
from inspect_ai import Task, eval  # pyright: ignore[reportMissingImports]
from inspect_ai.dataset import Sample  # pyright: ignore[reportMissingImports]
from inspect_ai.log import read_eval_log, write_eval_log  # pyright: ignore[reportMissingImports]
from inspect_ai.model import ModelOutput  # pyright: ignore[reportMissingImports]
from inspect_ai.scorer import Score, accuracy, match, mean, scorer, stderr  # pyright: ignore[reportMissingImports]
from inspect_ai.solver import solver  # pyright: ignore[reportMissingImports]
from lm_eval.api.model import LM  # pyright: ignore[reportMissingImports]
from lm_eval.loggers import EvaluationTracker  # pyright: ignore[reportMissingImports]
from lm_eval.tasks import TaskManager  # pyright: ignore[reportMissingImports]

import datarax
from datarax import InvalidValuesWarning
from tests.cli.evaluations import evaluated, values

# lm-eval leaves files and loops open.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
QUESTIONS, EPOCHS = 12, 3


def inspect_log(folder, rng, form="eval", fails=False):
    """A log of Inspect with values of all kinds."""
    right = rng.random((QUESTIONS + 1, EPOCHS + 1)) < 0.6

    @solver
    def answers():
        async def solve(state, generate):
            if fails and state.sample_id == 5 and state.epoch == 2:
                raise ValueError("the tool failed")
            answer = state.sample_id + 1 if right[state.sample_id, state.epoch] else 0
            state.output = ModelOutput.from_content("mockllm/model", str(answer))
            return state

        return solve

    @scorer(metrics={"tone": [mean()], "long": [mean()]})
    def style():
        async def score(state, target):
            if fails and state.sample_id == 3:
                return Score.unscored(reason="grader_failed")
            return Score(
                value={
                    "tone": 0.25 * state.epoch + state.sample_id,
                    "long": state.sample_id % 2 == 0,
                }
            )

        return score

    @scorer(metrics=[accuracy(), stderr()])
    def grade():
        async def score(state, target):
            return Score(value="CIPN"[state.sample_id % 4])

        return score

    task = Task(
        name="sums",
        dataset=[
            Sample(input=f"{i} + 1?", target=str(i + 1), metadata={"level": "ab"[i % 2]})
            for i in range(1, QUESTIONS + 1)
        ],
        solver=answers(),
        scorer=[match(), style(), grade()],
        epochs=EPOCHS,
        fail_on_error=False,
    )
    options = {"log_dir": str(folder), "log_format": form, "display": "none"}
    (log,) = eval(task, model="mockllm/model", **options)
    return read_eval_log(log.location)


@pytest.mark.parametrize("form", ["eval", "json"])
def test_the_numbers_are_those_that_inspect_prints(tmp_path, rng, form):
    log = inspect_log(tmp_path, rng, form)
    found = datarax.evaluate(log.location, format="inspect").results()
    for score in log.results.scores:
        name = score.name if score.name == score.scorer else f"{score.scorer}/{score.name}"
        own = score.metrics["accuracy" if "accuracy" in score.metrics else "mean"].value
        assert found[f"{name}/value"] == pytest.approx(own, rel=1e-9)
        if "stderr" in score.metrics:
            own = score.metrics["stderr"].value
            assert found[f"{name}/std_error"] == pytest.approx(own, rel=1e-6)


def test_samples_that_failed_or_were_edited(tmp_path, rng):
    log = inspect_log(tmp_path / "logs", rng, fails=True)
    other = tmp_path / "copy.json"
    write_eval_log(log, str(other))
    for path in (log.location, other):
        summary = evaluated(tmp_path / "out" / Path(path).name, path, "--format", "inspect")
        excluded = {(x["reason"], x["where"]): x["rows"] for x in summary["excluded"]}
        assert excluded == {
            ("failed with an error", "match, style/tone, style/long, grade"): 1,
            ("not scored (NaN)", "style/tone, style/long"): EPOCHS,
        }
        scored = [x for x in log.samples if x.scores]
        expected = {
            "match": np.mean([x.scores["match"].value == "C" for x in scored]),
            "style/tone": np.mean([x.scores["style"].value["tone"] for x in scored if x.id != 3]),
        }
        found = values(summary)
        assert {name: found[name] for name in expected} == pytest.approx(expected, rel=1e-12)


class Guesses(LM):
    """A model that answers at random."""

    def __init__(self, rng):
        super().__init__()
        self.rng = rng

    def loglikelihood(self, requests):
        return [(-float(self.rng.random()), False) for _ in requests]

    def loglikelihood_rolling(self, requests):
        raise NotImplementedError

    def generate_until(self, requests):
        return [self.rng.choice(["", "it is "]) + str(self.rng.integers(0, 3)) for _ in requests]


def test_the_numbers_are_those_that_lm_eval_prints(tmp_path, rng, monkeypatch):
    monkeypatch.setenv("HF_DATASETS_OFFLINE", "1")
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    docs = tmp_path / "docs.jsonl"
    docs.write_text(
        "".join(
            json.dumps({"question": f"{i} + 1?", "options": ["0", "1", "2"], "gold": i % 3}) + "\n"
            for i in range(30)
        )
    )
    base = {
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(docs)}, "cache_dir": str(tmp_path / "cache")},
        "test_split": "test",
        "num_fewshot": 0,
        "doc_to_text": "{{question}}",
    }
    choice = {
        "task": "choice_task",
        "output_type": "multiple_choice",
        "doc_to_choice": "options",
        "doc_to_target": "gold",
        "metric_list": [{"metric": "acc"}, {"metric": "acc_norm"}],
    }
    digits = {"function": "regex", "regex_pattern": "(\\d+)"}
    take = {"function": "take_first"}
    generated = {
        "task": "text_task",
        "output_type": "generate_until",
        "doc_to_target": "{{gold}}",
        "generation_kwargs": {"until": ["\n"]},
        "metric_list": [{"metric": "exact_match"}, {"metric": "bleu"}],
        "filter_list": [
            {"name": "whole", "filter": [take]},
            {"name": "digits", "filter": [digits, take]},
        ],
    }
    tracker = EvaluationTracker(output_path=str(tmp_path / "logs"))
    results = lm_eval.simple_evaluate(
        model=Guesses(rng),
        tasks=[base | choice, base | generated],
        log_samples=True,
        bootstrap_iters=10,
        task_manager=TaskManager(include_defaults=False),
        evaluation_tracker=tracker,
    )
    samples = results.pop("samples")
    tracker.save_results_aggregated(results=results, samples=samples)
    for name in samples:
        tracker.save_results_samples(task_name=name, samples=samples[name])
    with pytest.warns(InvalidValuesWarning, match="bleu/digits is left out"):
        found = datarax.evaluate(tmp_path / "logs", format="lm-eval").results()
    expected = {}
    for task, numbers in results["results"].items():
        for key, value in numbers.items():
            metric, _, filtered = key.partition(",")
            if filtered and "bleu" not in metric:
                name = metric if filtered == "none" else f"{metric}/{filtered}"
                which = "std_error" if "_stderr" in metric else "value"
                expected[f"{task}/{name.replace('_stderr', '')}/{which}"] = value
    assert len(expected) == 8
    assert {name: found[name] for name in expected} == pytest.approx(expected, rel=1e-6)
