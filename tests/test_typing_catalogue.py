# pyright: strict
"""Metrics and statistics keep their class in `update`, as a strict type checker sees it.

`make check` checks the types that `assert_type` states. The tests trace the same lines.
"""

import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Self, assert_type

import jax
import numpy as np
import pytest

from datarax import Metric, metrics, statistics
from tests.test_public_names import EXPORTED

VALUES = np.array([0.5, 2.0, 1.0, 3.0], np.float32)
PREDS = np.array([0.9, 0.2, 0.6, 0.4], np.float32)
TARGET = np.array([1, 0, 0, 1], np.int32)
GROUPS = np.array([0, 1, 0, 1], np.int32)
FEATURES = np.arange(12, dtype=np.float32).reshape(4, 3)
ROWS = np.full((4, 3), 1 / 3, np.float32)
RATINGS = np.array([[2, 1], [3, 0]], np.int32)
SIGNALS = np.sin(np.arange(8192, dtype=np.float32)).reshape(2, 4096)
SPECTRA = np.ones((2, 4, 3), np.complex64)
TEXTS = ["a b", "a c"]
TOKENS = np.array([[1, 2], [0, 1]], np.int32)
LOGITS = np.zeros((2, 2, 3), np.float32)
RANKED = np.array([[0.2, 0.1], [0.4, 0.3]], np.float32)
RELEVANT = np.array([[1, 0], [0, 1]], np.int32)
EMBEDDED = np.ones((2, 2, 3), np.float32)
MASKS = np.zeros((2, 4, 4), np.int32)
IMAGES = np.ones((1, 192, 192, 3), np.float32)
BOXES = np.array([[0, 0, 1, 1], [0, 0, 2, 2]], np.float32)
PARAMS = {"kernel": np.ones((2, 2), np.float32)}
DETECTED = (BOXES[None], PREDS[None, :2], TARGET[None, :2], BOXES[None], TARGET[None, :2])
PANOPTIC = np.zeros((2, 4, 4, 2), np.int32)


def features(images: jax.Array) -> Sequence[jax.Array]:
    return [images]


def aggregation() -> None:
    assert_type(metrics.Cardinality().update(VALUES), metrics.Cardinality)
    assert_type(
        metrics.ExponentialMovingAverage().update(VALUES, 1), metrics.ExponentialMovingAverage
    )
    assert_type(metrics.Rate().update(VALUES, 1.0), metrics.Rate)


def audio() -> None:
    assert_type(metrics.SDR(filter_length=8).update(SIGNALS, SIGNALS), metrics.SDR)
    assert_type(metrics.ComplexSISNR().update(SPECTRA, SPECTRA), metrics.ComplexSISNR)
    assert_type(
        metrics.PermutationInvariant(metrics.SNR()).update(SIGNALS[None], SIGNALS[None]),
        metrics.PermutationInvariant,
    )


def classification() -> None:
    assert_type(metrics.Accuracy().update(PREDS, TARGET), metrics.Accuracy)
    assert_type(metrics.ExactMatch(num_classes=2).update(TOKENS, TOKENS), metrics.ExactMatch)
    assert_type(
        metrics.GroupFairness(num_groups=2).update(PREDS, TARGET, GROUPS), metrics.GroupFairness
    )
    assert_type(metrics.McNemar().update(PREDS, PREDS, TARGET), metrics.McNemar)


def clustering() -> None:
    assert_type(
        metrics.AdjustedMutualInfo(num_classes=2).update(TARGET, TARGET), metrics.AdjustedMutualInfo
    )
    assert_type(metrics.FleissKappa(num_categories=2).update(RATINGS), metrics.FleissKappa)
    assert_type(
        metrics.CalinskiHarabasz(num_clusters=2, num_features=3).update(FEATURES, TARGET),
        metrics.CalinskiHarabasz,
    )


def curves() -> None:
    assert_type(metrics.AUROC().update(PREDS, TARGET), metrics.AUROC)
    assert_type(metrics.AUROC(from_logits=True).from_logits, bool | None)


def health() -> None:
    assert_type(metrics.ActivationStats().update(VALUES), metrics.ActivationStats)
    assert_type(metrics.ExpertLoad(num_experts=2).update(TARGET), metrics.ExpertLoad)
    assert_type(metrics.LossSpikes().update(VALUES, 1), metrics.LossSpikes)
    assert_type(
        metrics.ModelFLOPs(flops_per_step=1e12, peak_flops_per_second=1e15).update(elapsed=1.0),
        metrics.ModelFLOPs,
    )
    assert_type(metrics.GradientNoiseScale().update(VALUES, 1.0, 1, 4), metrics.GradientNoiseScale)
    assert_type(metrics.StepTime().update(VALUES), metrics.StepTime)
    assert_type(metrics.Throughput().update(tokens=10, elapsed=1.0), metrics.Throughput)
    assert_type(metrics.TreeHealth(like=PARAMS).update(params=PARAMS), metrics.TreeHealth)


def language() -> None:
    assert_type(metrics.TextExactMatch().update(TEXTS, TEXTS), metrics.TextExactMatch)
    assert_type(metrics.DistinctN().update(TEXTS), metrics.DistinctN)
    assert_type(metrics.SelfBLEU().update(TEXTS), metrics.SelfBLEU)
    assert_type(metrics.EditDistance().update(TOKENS, TOKENS), metrics.EditDistance)
    assert_type(metrics.SequenceAccuracy().update(TOKENS, TOKENS), metrics.SequenceAccuracy)
    assert_type(metrics.TokenAccuracy().update(TOKENS, TOKENS), metrics.TokenAccuracy)
    assert_type(metrics.PassAtK(k=1).update(GROUPS, TARGET), metrics.PassAtK)
    assert_type(metrics.BitsPerByte().update(LOGITS, TOKENS, num_bytes=TOKENS), metrics.BitsPerByte)
    assert_type(metrics.Perplexity().update(LOGITS, TOKENS), metrics.Perplexity)


def probabilistic() -> None:
    assert_type(metrics.CalibrationError().update(PREDS, TARGET), metrics.CalibrationError)
    assert_type(metrics.D2Brier().update(PREDS, TARGET), metrics.D2Brier)
    assert_type(
        metrics.JensenShannonDivergence().update(ROWS, ROWS), metrics.JensenShannonDivergence
    )
    assert_type(
        metrics.ContinuousRankedProbabilityScore().update(FEATURES, VALUES),
        metrics.ContinuousRankedProbabilityScore,
    )


def ranking() -> None:
    assert_type(metrics.DCG().update(RANKED, RELEVANT), metrics.DCG)
    assert_type(
        metrics.CatalogCoverage(num_items=2, k=1).update(RANKED, RELEVANT), metrics.CatalogCoverage
    )
    assert_type(
        metrics.IntraListDiversity(k=2).update(RANKED, EMBEDDED), metrics.IntraListDiversity
    )
    assert_type(metrics.Novelty(k=1).update(RANKED, RANKED), metrics.Novelty)


def regression() -> None:
    assert_type(metrics.ConcordanceCorrCoef().update(VALUES, VALUES), metrics.ConcordanceCorrCoef)
    assert_type(metrics.MaxError().update(VALUES, VALUES), metrics.MaxError)
    assert_type(metrics.MedianAbsoluteError().update(VALUES, VALUES), metrics.MedianAbsoluteError)
    assert_type(metrics.PearsonTest().update(VALUES, VALUES), metrics.PearsonTest)
    assert_type(metrics.SpearmanTest().update(VALUES, VALUES), metrics.SpearmanTest)
    assert_type(metrics.KendallTest().update(VALUES, VALUES), metrics.KendallTest)


def segmentation() -> None:
    assert_type(metrics.HausdorffDistance().update(MASKS, MASKS), metrics.HausdorffDistance)
    assert_type(metrics.Dice(num_classes=2).update(MASKS, MASKS), metrics.Dice)
    assert_type(
        metrics.PanopticQuality(num_classes=2, things=(1,)).update(PANOPTIC, PANOPTIC),
        metrics.PanopticQuality,
    )


def vision() -> None:
    assert_type(metrics.CIoU().update(BOXES, BOXES), metrics.CIoU)
    assert_type(metrics.FID(num_features=3).update(FEATURES, FEATURES), metrics.FID)
    assert_type(metrics.InceptionScore().update(ROWS), metrics.InceptionScore)
    assert_type(
        metrics.MeanAveragePrecision(num_classes=2).update(*DETECTED), metrics.MeanAveragePrecision
    )
    assert_type(
        metrics.PerceptualDistance(features=features).update(IMAGES, IMAGES),
        metrics.PerceptualDistance,
    )
    assert_type(metrics.TotalVariation().update(IMAGES), metrics.TotalVariation)


def of_statistics() -> None:
    assert_type(statistics.MetricAccumulator(0).update(TARGET), statistics.MetricAccumulator)
    assert_type(statistics.Buffer(4).update(VALUES), statistics.Buffer)
    assert_type(statistics.Distinct().update(TARGET), statistics.Distinct)
    assert_type(statistics.Moments().update(VALUES), statistics.Moments)
    assert_type(statistics.ValueHistogram().update(VALUES), statistics.ValueHistogram)
    assert_type(statistics.WeightedTotal().update(VALUES), statistics.WeightedTotal)
    assert_type(statistics.CalibrationBins().update(PREDS, TARGET), statistics.CalibrationBins)
    assert_type(statistics.ClassCounts().update(PREDS, TARGET), statistics.ClassCounts)
    assert_type(
        statistics.MatchCounts(num_classes=2).update(TARGET, TARGET), statistics.MatchCounts
    )
    assert_type(
        statistics.ConfusionCounts(num_classes=2).update(TARGET, TARGET), statistics.ConfusionCounts
    )
    assert_type(statistics.Contingency(2, 2).update(TARGET, TARGET), statistics.Contingency)
    assert_type(statistics.CrossMoments().update(VALUES, VALUES), statistics.CrossMoments)
    assert_type(statistics.Residuals().update(VALUES, VALUES), statistics.Residuals)
    assert_type(statistics.LossTotal("huber").update(VALUES, VALUES), statistics.LossTotal)
    assert_type(statistics.PairBuffer(4).update(VALUES, VALUES), statistics.PairBuffer)
    assert_type(statistics.ScoreBuffer(4).update(PREDS, TARGET), statistics.ScoreBuffer)
    assert_type(statistics.ScoreHistogram().update(PREDS, TARGET), statistics.ScoreHistogram)
    assert_type(
        statistics.SegmentMatches(num_classes=2, things=(1,)).update(PANOPTIC, PANOPTIC),
        statistics.SegmentMatches,
    )
    assert_type(statistics.ClusterMoments(2, 3).update(FEATURES, TARGET), statistics.ClusterMoments)
    assert_type(statistics.Detections(2).update(*DETECTED), statistics.Detections)
    assert_type(statistics.EntropyTotals(3).update(ROWS), statistics.EntropyTotals)
    assert_type(statistics.FeatureBuffer(3, 4).update(FEATURES), statistics.FeatureBuffer)
    assert_type(statistics.FeatureMoments(3).update(FEATURES), statistics.FeatureMoments)
    assert_type(statistics.Ratings(2).update(RATINGS), statistics.Ratings)
    assert_type(
        statistics.InvalidCounts().merge(statistics.InvalidCounts()), statistics.InvalidCounts
    )


FAMILIES = (
    aggregation,
    audio,
    classification,
    clustering,
    curves,
    health,
    language,
    probabilistic,
    ranking,
    regression,
    segmentation,
    vision,
    of_statistics,
)


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.__name__)
def test_a_family(family: Callable[[], None]):
    jax.eval_shape(family)  # pyright: ignore[reportUnknownMemberType]


def test_every_statistic_is_here():
    """But the base classes, which `test_typing.py` has, and what they are made of."""
    text = Path(__file__).read_text()
    bases = {"ElementwiseState", "LeafState", "State", "Travel"}
    names = {name for name in EXPORTED if name.startswith("datarax.statistics.")}
    missing = {name for name in names if f"{name.removeprefix('datarax.')}(" not in text}
    assert {name.rpartition(".")[2] for name in missing} == bases


def test_every_update_of_a_metric_says_its_types():
    """So a type checker needs no call of each metric: those above are one for each `update`."""
    for name, each in vars(metrics).items():
        if not (isinstance(each, type) and issubclass(each, Metric)):
            continue
        signature = inspect.signature(inspect.unwrap(each.update))
        _, *arguments = signature.parameters.values()  # without `self`
        untyped = [x.name for x in arguments if x.annotation is inspect.Parameter.empty]
        assert not untyped, f"{name}.update: annotate {', '.join(untyped)}"
        assert signature.return_annotation is Self, f"{name}.update: write `-> Self`"
