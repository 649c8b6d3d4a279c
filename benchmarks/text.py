"""Times metrics of strings beside the libraries that they equal, on the same texts.

python benchmarks/text.py
"""

import time
from collections.abc import Callable
from typing import Any

import jiwer
import numpy as np
import sacrebleu
from rouge_score import rouge_scorer

from datarax import metrics

SEGMENTS, WORDS, ROUNDS = 2000, 25, 3


def texts(rng: np.random.Generator) -> tuple[list[str], list[str]]:
    """References, and texts in which a fifth of the words differ."""
    vocabulary = np.array(["".join(rng.choice(list("abcdefgh"), 5)) for _ in range(5000)])
    target = vocabulary[(rng.pareto(1.0, (SEGMENTS, WORDS)) * 20).astype(int) % 5000]
    other = rng.random(target.shape) < 0.2
    preds = np.where(other, rng.permuted(target), target)
    return [" ".join(x) + "." for x in preds], [" ".join(x) + "." for x in target]


def seconds(function: Callable[[], Any]) -> float:
    """The least time of some rounds."""
    times = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return min(times)


def main() -> None:
    preds, target = texts(np.random.default_rng(0))
    keys = ("rouge1", "rouge2", "rougeL", "rougeLsum")
    scorer = rouge_scorer.RougeScorer(keys)
    cases: dict[str, tuple[Any, Callable[[], Any]]] = {
        "BLEU": (metrics.BLEU(), lambda: sacrebleu.BLEU().corpus_score(preds, [target])),
        "CHRF": (metrics.CHRF(), lambda: sacrebleu.CHRF().corpus_score(preds, [target])),
        "chrF++": (
            metrics.CHRF(word_order=2),
            lambda: sacrebleu.CHRF(word_order=2).corpus_score(preds, [target]),
        ),
        "TER": (metrics.TER(), lambda: sacrebleu.TER().corpus_score(preds, [target])),
        "ROUGE": (
            metrics.ROUGE(),
            lambda: [scorer.score(a, b) for a, b in zip(target, preds, strict=True)],
        ),
        "WER": (metrics.WER(), lambda: jiwer.wer(target, preds)),
        "CER": (metrics.CER(), lambda: jiwer.cer(target, preds)),
        "MER": (metrics.MER(), lambda: jiwer.mer(target, preds)),
        "WIL": (metrics.WIL(), lambda: jiwer.wil(target, preds)),
    }
    print(f"{SEGMENTS} segments of {WORDS} words, milliseconds")
    print(f"{'metric':8}{'datarax':>10}{'reference':>12}{'ratio':>8}")
    for name, (metric, reference) in cases.items():
        metric.update(preds, target).results()  # compiles
        ours = seconds(lambda metric=metric: metric.update(preds, target).results())
        theirs = seconds(reference)
        print(f"{name:8}{1e3 * ours:10.1f}{1e3 * theirs:12.1f}{ours / theirs:8.2f}")


if __name__ == "__main__":
    main()
