"""Cases of metrics of strings, against the programs that the field takes for their definition.

Strings are drawn as arrays of objects, so that rows are chosen, repeated and joined as those of
numbers. `counted` makes arrays of them, which the laws are about.
"""

import re
import string
from collections import Counter
from collections.abc import Callable
from functools import cache, partial
from itertools import count
from typing import Any

import jiwer
import numpy as np
import sacrebleu
from rouge_score import rouge_scorer

from datarax import metrics
from tests.helpers import fsum
from tests.registry.case import BATCH, Arrays, Case, Inputs
from tests.registry.language import weighted_mean

_PLAIN = (
    "the a an cat dog sat on mat, (hi) Rain 3.5 l'eau U.S. don't 1,000 x; y: END state-of-the-art"
)
_OTHER = "über x東京 naïve e\u0301 😀"
WORDS = f"{_PLAIN} {_OTHER}".split()
"""Each text with letters has words for ROUGE, which warns otherwise."""
LONGEST, REFERENCES = 8, 2
CHARACTERS, RATIO = 2, 1
KEYS = ("rouge1", "rougeL", "rougeLsum")
KINDS = ("substitutions", "deletions", "insertions", "hits")


def joined(words: np.ndarray, used: np.ndarray, line: np.ndarray) -> np.ndarray:
    """Texts of the words that are used, (N,) objects; `line` says where a line ends."""
    texts = np.empty(len(words), object)
    ends = np.where(line, "\n", " ")
    for i, (row, some, end) in enumerate(zip(words, used, ends, strict=True)):
        texts[i] = "".join(np.stack([row, end], 1)[some].ravel().tolist())
    return texts


def texts(
    rng: np.random.Generator,
    size: int,
    *,
    versions: int = 1,
    least: int = 0,
    kept: float = 0.8,
    words: Any = tuple(WORDS),
) -> list[np.ndarray]:
    """So many texts, and other versions of each, in which some words are others or left out.

    The first one is the longest possible, so that counts of n-grams are of one shape.
    """
    lengths = rng.integers(least, LONGEST + 1, size)
    lengths[:1] = LONGEST
    used = np.arange(LONGEST) < lengths[:, None]
    first = rng.choice(words, (size, LONGEST))
    line = rng.random((size, LONGEST)) < 0.2
    found = [joined(first, used, line)]
    for _ in range(versions):
        place = rng.random((size, LONGEST))
        other = np.where(place < kept, first, rng.choice(words, (size, LONGEST)))
        moved = (rng.random(size) < (1 - kept)) & (lengths > 3)
        other = np.where(moved[:, None], np.roll(other, 2, 1), other)
        left_out = (place > (1 + kept) / 2) & (np.arange(size) > 0)[:, None]
        found.append(joined(other, used & ~left_out, line))
    return found


def pairs(rng: np.random.Generator, size: int, **config: Any) -> Arrays:
    target, preds = texts(rng, size, least=1, **config)
    return {"preds": preds, "target": target}


def with_references(rng: np.random.Generator, size: int, **config: Any) -> Arrays:
    first, preds, *others = texts(rng, size, versions=REFERENCES, **config)
    return {"preds": preds, "target": np.stack([first, *others], 1)}


# The texts of one update are references of each other, so the oracle must know which they are.
_updates = count()


def generated(rng: np.random.Generator, size: int, **config: Any) -> Arrays:
    some, others = texts(rng, size, **config)
    half = size // 2
    both = np.concatenate([some[: size - half], others[:half]])
    return {"preds": both, "update": np.full(size, next(_updates), np.int32)}


def every(preds: np.ndarray, **others: np.ndarray) -> np.ndarray:
    return np.ones(len(preds), np.bool_)


def hard(draw: Callable[..., Arrays]) -> dict[str, Any]:
    return {
        "equal": partial(draw, kept=1.0),
        "unrelated": partial(draw, kept=0.0),
        "one word": partial(draw, words=("a",)),
        "two words": partial(draw, words=("the", "x;")),
    }


PAIRS = Inputs("pairs of texts", pairs, every, {}, hard(pairs))
REFERENCED = Inputs("texts and references", with_references, every, {}, hard(with_references))
GENERATED = Inputs("generated texts", generated, every, {}, hard(generated), least=2)

Oracle = Callable[..., float]


def of_some(oracle: Callable[..., Any], nothing: Any = np.nan) -> Oracle:
    """An oracle of the texts with a weight above zero, as lists; there is one at least."""

    def of(w: np.ndarray, **texts: np.ndarray) -> Any:
        used = w > 0
        if not used.any():
            return nothing
        return oracle(w[used], **{name: x[used].tolist() for name, x in texts.items()})

    return of


def repeated(w: np.ndarray, *texts: list[Any]) -> list[list[Any]]:
    """Each text as often as its weight says, or a multiple of that: scores are of all texts."""
    times = next(x for x in (w, 2 * w, BATCH * w) if (x == x.round()).all())
    return [[x for x, n in zip(each, times, strict=True) for _ in range(int(n))] for each in texts]


def error_rate(process: Callable[..., Any], name: str) -> Oracle:
    """A number of the output of jiwer."""

    def rate(w: np.ndarray, preds: list[str], target: list[str]) -> float:
        preds, target = repeated(w, preds, target)
        return getattr(process(target, preds), name)

    return of_some(rate)


@cache
def bleu_counts(text: str, references: tuple[str, ...]) -> np.ndarray:
    """The matches of n-grams, their numbers, and the lengths of text and closest reference."""
    score = sacrebleu.BLEU(effective_order=True).sentence_score(text, list(references))
    return np.array([*score.counts, *score.totals, score.sys_len, score.ref_len])


@of_some
def bleu(w: np.ndarray, preds: list[str], target: list[list[str]]) -> float:
    counts = [bleu_counts(p, tuple(t)) for p, t in zip(preds, target, strict=True)]
    *both, own, other = (w[:, None] * counts).sum(0).tolist()
    # Only the ratio of the lengths counts, which must be integers.
    lengths = int(BATCH * own), int(BATCH * other)
    return sacrebleu.BLEU.compute_bleu(both[:4], both[4:], *lengths, "exp").score


def columns(target: list[list[str]]) -> list[list[str]]:
    return list(map(list, zip(*target, strict=True)))


def bleu_of_corpus(w: np.ndarray, preds: np.ndarray, target: np.ndarray) -> float | None:
    used = w > 0
    if (w != w.round()).any() or not used.any():
        return None
    texts, references = repeated(w[used], preds[used].tolist(), target[used].tolist())
    return sacrebleu.BLEU().corpus_score(texts, columns(references)).score


@of_some
def chrf(w: np.ndarray, preds: list[str], target: list[list[str]]) -> float:
    preds, target = repeated(w, preds, target)
    scorer = sacrebleu.CHRF(char_order=CHARACTERS, word_order=RATIO)
    return scorer.corpus_score(preds, columns(target)).score


@cache
def edits(text: str, references: tuple[str, ...]) -> tuple[float, float]:
    score = sacrebleu.TER().sentence_score(text, list(references))
    return score.num_edits, score.ref_length


@of_some
def ter(w: np.ndarray, preds: list[str], target: list[list[str]]) -> float:
    counts = [edits(p, tuple(t)) for p, t in zip(preds, target, strict=True)]
    total, words = (w[:, None] * counts).sum(0)
    return 100 * total / words if words else np.nan


@of_some
def word_errors_of_some(w: np.ndarray, preds: list[str], target: list[str]) -> dict[str, float]:
    each = [kinds_of_errors(p, t) for p, t in zip(preds, target, strict=True)]
    return {name: fsum(w * x) for name, x in zip(KINDS, np.array(each).T, strict=True)}


def word_errors(w: np.ndarray, **texts: np.ndarray) -> Any:
    return word_errors_of_some(w, **texts) if w.any() else dict.fromkeys(KINDS, 0.0)


@cache
def kinds_of_errors(text: str, reference: str) -> tuple[int, ...]:
    words = jiwer.process_words([reference], [text])
    return tuple(getattr(words, name) for name in KINDS)


ALL = {"f": "", "precision": "_precision", "recall": "_recall"}


@cache
def rouge_of(text: str, references: tuple[str, ...], stemmer: bool) -> dict[str, float]:
    """The numbers of the first reference with the greatest F-score."""
    scorer = rouge_scorer.RougeScorer(KEYS, use_stemmer=stemmer)
    found, each = {}, [scorer.score(reference, text) for reference in references]
    for key in KEYS:
        f = np.array([scores[key].fmeasure for scores in each])
        best = each[np.flatnonzero(f > f.max() - 1e-9)[0]][key]
        found[key] = best.fmeasure
        found |= {f"{key}_{name}": getattr(best, name) for name in ("precision", "recall")}
    return found


def rouge(scores: tuple[str, ...], stemmer: bool) -> Oracle:
    names = [key + ALL[score] for key in KEYS for score in scores]

    def means(w: np.ndarray, preds: list[str], target: list[list[str]]) -> dict[str, float]:
        each = [rouge_of(p, tuple(t), stemmer) for p, t in zip(preds, target, strict=True)]
        return {name: weighted_mean(w, np.array([x[name] for x in each])) for name in names}

    return of_some(means, dict.fromkeys(names, np.nan))


def written_apart(text: str) -> str:
    """A text as the extended edit distance compares it: punctuation stands by itself."""
    text = text.rstrip()
    for mark in ".!?,":
        text = text.replace(mark, f" {mark}")
    text = re.sub(r"\s+", " ", text)
    text = re.sub(r"(\d) ([.,]) (\d)", r"\1\2\3", text)
    text = text.replace("e . g .", "e.g.").replace("i . e .", "i.e.").replace("U . S .", "U.S.")
    return f" {text} "


@cache
def extended_distance(text: str, reference: str) -> float:
    """The definition, cell by cell: deletions of 0.2, insertions and substitutions of 1, jumps of 2
    at the blanks of the reference, and 0.3 for a place of the text that is visited again or never.
    """
    text, reference = written_apart(text), written_apart(reference)
    above = [0.0, *[1.0] * len(text)]
    visits = Counter()
    for letter in reference:
        costs = [above[0] + 1]
        for i, own in enumerate(text):
            aligned = above[i] + (own != letter)
            costs.append(min(costs[i] + 0.2, aligned, above[i + 1] + 1))
        cheapest = costs.index(min(costs))
        visits[cheapest] += 1
        jump = 2 + costs[cheapest] if letter == " " else np.inf
        above = [min(cost, jump) for cost in costs]
    again = 0.3 * sum(visits[i] - 1 if visits[i] else 1 for i in range(len(text) + 1))
    return min(1.0, (above[-1] + again) / (len(reference) + again))


def least_of(score: Callable[[str, str], float]) -> Oracle:
    return best_of(lambda text, other: -score(text, other), sign=-1)


def squad_words(answer: str) -> list[str]:
    """As the evaluation script of SQuAD 2.0 normalizes answers."""
    answer = "".join(x for x in answer.lower() if x not in set(string.punctuation))
    return re.sub(r"\b(a|an|the)\b", " ", answer).split()


def squad_equal(answer: str, gold: str) -> float:
    return float(squad_words(answer) == squad_words(gold))


def ends_cut(text: str) -> str:
    """The text without white space and punctuation at its ends, one sign after the other."""
    marks = set("!?,.;:'\"`()[]{}\u2018\u2019“”«»…¡¿")
    while text and (text[-1].isspace() or text[-1] in marks):
        text = text[:-1]
    while text and (text[0].isspace() or text[0] in marks):
        if text[0] in ".," and text[1:2].isdigit():
            break
        text = text[1:]
    return text


def written_equal(answer: str, gold: str) -> float:
    """Whether the two are equal but for case, articles, and what is at their ends."""

    def compared(text: str) -> str:
        words = ends_cut(text.lower()).split()
        kept = [x for i, x in enumerate(words, 1) if x not in {"a", "an", "the"} or i == len(words)]
        return ends_cut(" ".join(kept)) or text.strip()

    return float(compared(answer) == compared(gold))


def squad_f1(answer: str, gold: str) -> float:
    a, b = squad_words(answer), squad_words(gold)
    same = sum((Counter(a) & Counter(b)).values())
    if not a or not b:
        return float(a == b)
    precision, recall = same / len(a), same / len(b)
    return 2 * precision * recall / (precision + recall) if same else 0.0


def best_of(score: Callable[[str, str], float], sign: int = 1) -> Oracle:
    """The mean over texts of the best score with a reference."""

    def mean(w: np.ndarray, preds: list[str], target: list[list[str]]) -> float:
        best = [max(score(p, t) for t in ts) for p, ts in zip(preds, target, strict=True)]
        return weighted_mean(w, sign * np.array(best))

    return of_some(mean)


@of_some
def distinct(w: np.ndarray, preds: list[str], update: list[int]) -> float:
    words = [text.split() for text in preds]
    total = fsum(w * [len(each) for each in words])
    # A text of weight 1/2 has more distinct words than words.
    return min(len({word for each in words for word in each}) / total, 1) if total else np.nan


@cache
def self_bleu_of(text: str, others: tuple[str, ...]) -> float:
    return sacrebleu.sentence_bleu(text, list(others)).score


def self_bleu(w: np.ndarray, preds: np.ndarray, update: np.ndarray) -> float:
    scores = np.zeros(len(w))
    for i in np.flatnonzero(w):
        others = preds[(update == update[i]) & (np.arange(len(w)) != i)]
        scores[i] = self_bleu_of(preds[i], tuple(sorted(others)))
    return weighted_mean(w, scores)


def case(
    cls: Any, inputs: Inputs, oracle: Oracle, config: Any = None, name: str = "", **tolerance: Any
) -> Case:
    name = name or cls.__name__.lower()
    return Case(name, cls, inputs, oracle, config or {}, together=inputs.id, **tolerance)


CASES = [
    case(metrics.WER, PAIRS, error_rate(jiwer.process_words, "wer"), exact=True),
    case(metrics.CER, PAIRS, error_rate(jiwer.process_characters, "cer"), exact=True),
    case(metrics.MER, PAIRS, error_rate(jiwer.process_words, "mer"), exact=True),
    case(metrics.WordErrors, PAIRS, word_errors, exact=True, empty=0),
    # Two quotients and their product; WIL subtracts it from 1.
    case(metrics.WIP, PAIRS, error_rate(jiwer.process_words, "wip"), ulps=4, exact=True),
    case(
        metrics.WIL,
        PAIRS,
        error_rate(jiwer.process_words, "wil"),
        ulps=4,
        atol=lambda w, **texts: 4 * 2.0**-24,
        exact=True,
    ),
    # A mean of logarithms below 16, each rounded, in an exponential.
    case(metrics.BLEU, REFERENCED, bleu, ulps=64, reference=bleu_of_corpus, exact=True),
    # Quotients, their means, and the quotient of products of those: of one sign.
    case(
        metrics.CHRF,
        REFERENCED,
        chrf,
        {"char_order": CHARACTERS, "word_order": RATIO},
        ulps=16,
        exact=True,
    ),
    case(metrics.TER, REFERENCED, ter, ulps=2),
    # Each score is rounded, and their mean.
    case(metrics.ROUGE, REFERENCED, rouge(("f",), False), {"rouge_keys": KEYS}, ulps=3),
    case(
        metrics.ROUGE,
        REFERENCED,
        rouge(tuple(ALL), True),
        {"rouge_keys": KEYS, "scores": tuple(ALL), "stemmer": True},
        name="rouge_stemmed",
        ulps=3,
    ),
    case(
        metrics.ExtendedEditDistance,
        REFERENCED,
        least_of(extended_distance),
        ulps=3,
        perfect="no worse",
    ),
    case(metrics.TextExactMatch, REFERENCED, best_of(written_equal), exact=True),
    case(
        metrics.TextExactMatch,
        REFERENCED,
        best_of(squad_equal),
        {"normalize": "squad"},
        name="textexactmatch_squad",
        exact=True,
    ),
    case(metrics.TokenF1, REFERENCED, best_of(squad_f1), ulps=3),
    case(
        metrics.DistinctN,
        GENERATED,
        distinct,
        {"n": 1},
        # The sketch has 2**16 places, and rarely two words of so few in one.
        atol=lambda w, **texts: len(WORDS) * 2.0**-16,
        exact=True,
    ),
    case(metrics.SelfBLEU, GENERATED, self_bleu, ulps=64),
]
