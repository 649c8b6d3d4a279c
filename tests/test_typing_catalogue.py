# pyright: strict
"""Each metric and statistic keeps its class in `update`, as a strict type checker sees it.

`make check` checks the types that `assert_type` states. The tests trace the same lines.
"""

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import assert_type

import jax
import numpy as np
import pytest

from datarax import metrics, statistics
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
    assert_type(metrics.GeometricMean().update(VALUES), metrics.GeometricMean)
    assert_type(metrics.HarmonicMean().update(VALUES), metrics.HarmonicMean)
    assert_type(metrics.Norm().update(VALUES), metrics.Norm)
    assert_type(metrics.RootMeanSquare().update(VALUES), metrics.RootMeanSquare)
    assert_type(metrics.Histogram(num_bins=2, range=(0.0, 1.0)).update(VALUES), metrics.Histogram)
    assert_type(metrics.Median().update(VALUES), metrics.Median)
    assert_type(metrics.Quantile(0.9).update(VALUES), metrics.Quantile)
    assert_type(metrics.Max().update(VALUES), metrics.Max)
    assert_type(metrics.Mean().update(VALUES), metrics.Mean)
    assert_type(metrics.Min().update(VALUES), metrics.Min)
    assert_type(metrics.MinMax().update(VALUES), metrics.MinMax)
    assert_type(metrics.Std().update(VALUES), metrics.Std)
    assert_type(metrics.Sum().update(VALUES), metrics.Sum)
    assert_type(metrics.Variance().update(VALUES), metrics.Variance)
    assert_type(metrics.WeightedMean().update(VALUES), metrics.WeightedMean)
    assert_type(
        metrics.ExponentialMovingAverage().update(VALUES, 1), metrics.ExponentialMovingAverage
    )
    assert_type(metrics.LastValue().update(VALUES, 1), metrics.LastValue)
    assert_type(metrics.Rate().update(VALUES, 1.0), metrics.Rate)


def audio() -> None:
    assert_type(metrics.SDR(filter_length=8).update(SIGNALS, SIGNALS), metrics.SDR)
    assert_type(metrics.STOI(sample_rate=10_000).update(SIGNALS, SIGNALS), metrics.STOI)
    assert_type(metrics.SISDR().update(SIGNALS, SIGNALS), metrics.SISDR)
    assert_type(metrics.SISNR().update(SIGNALS, SIGNALS), metrics.SISNR)
    assert_type(metrics.SNR().update(SIGNALS, SIGNALS), metrics.SNR)
    assert_type(metrics.ComplexSISNR().update(SPECTRA, SPECTRA), metrics.ComplexSISNR)
    assert_type(
        metrics.PermutationInvariant(metrics.SNR()).update(SIGNALS[None], SIGNALS[None]),
        metrics.PermutationInvariant,
    )


def classification() -> None:
    assert_type(metrics.Accuracy().update(PREDS, TARGET), metrics.Accuracy)
    assert_type(metrics.HammingDistance().update(PREDS, TARGET), metrics.HammingDistance)
    assert_type(metrics.CohenKappa().update(PREDS, TARGET), metrics.CohenKappa)
    assert_type(metrics.MatthewsCorrCoef().update(PREDS, TARGET), metrics.MatthewsCorrCoef)
    assert_type(metrics.ClassificationReport().update(PREDS, TARGET), metrics.ClassificationReport)
    assert_type(metrics.ConfusionMatrix().update(PREDS, TARGET), metrics.ConfusionMatrix)
    assert_type(metrics.StatScores().update(PREDS, TARGET), metrics.StatScores)
    assert_type(metrics.ExactMatch(num_classes=2).update(TOKENS, TOKENS), metrics.ExactMatch)
    assert_type(metrics.LikelihoodRatios().update(PREDS, TARGET), metrics.LikelihoodRatios)
    assert_type(metrics.F1().update(PREDS, TARGET), metrics.F1)
    assert_type(metrics.FBeta(2.0).update(PREDS, TARGET), metrics.FBeta)
    assert_type(metrics.InformednessYouden().update(PREDS, TARGET), metrics.InformednessYouden)
    assert_type(metrics.JaccardIndex().update(PREDS, TARGET), metrics.JaccardIndex)
    assert_type(
        metrics.NegativePredictiveValue().update(PREDS, TARGET), metrics.NegativePredictiveValue
    )
    assert_type(metrics.Precision().update(PREDS, TARGET), metrics.Precision)
    assert_type(metrics.Recall().update(PREDS, TARGET), metrics.Recall)
    assert_type(metrics.Specificity().update(PREDS, TARGET), metrics.Specificity)
    assert_type(
        metrics.GroupFairness(num_groups=2).update(PREDS, TARGET, GROUPS), metrics.GroupFairness
    )
    assert_type(metrics.GroupRates(num_groups=2).update(PREDS, TARGET, GROUPS), metrics.GroupRates)
    assert_type(metrics.McNemar().update(PREDS, PREDS, TARGET), metrics.McNemar)


def clustering() -> None:
    assert_type(
        metrics.AdjustedMutualInfo(num_classes=2).update(TARGET, TARGET), metrics.AdjustedMutualInfo
    )
    assert_type(metrics.Completeness(num_classes=2).update(TARGET, TARGET), metrics.Completeness)
    assert_type(metrics.Homogeneity(num_classes=2).update(TARGET, TARGET), metrics.Homogeneity)
    assert_type(metrics.MutualInfo(num_classes=2).update(TARGET, TARGET), metrics.MutualInfo)
    assert_type(
        metrics.NormalizedMutualInfo(num_classes=2).update(TARGET, TARGET),
        metrics.NormalizedMutualInfo,
    )
    assert_type(metrics.VMeasure(num_classes=2).update(TARGET, TARGET), metrics.VMeasure)
    assert_type(metrics.CramersV(num_classes=2).update(TARGET, TARGET), metrics.CramersV)
    assert_type(
        metrics.PearsonsContingency(num_classes=2).update(TARGET, TARGET),
        metrics.PearsonsContingency,
    )
    assert_type(metrics.TheilsU(num_classes=2).update(TARGET, TARGET), metrics.TheilsU)
    assert_type(metrics.TschuprowsT(num_classes=2).update(TARGET, TARGET), metrics.TschuprowsT)
    assert_type(metrics.AdjustedRand(num_classes=2).update(TARGET, TARGET), metrics.AdjustedRand)
    assert_type(
        metrics.ClusterAccuracy(num_classes=2).update(TARGET, TARGET), metrics.ClusterAccuracy
    )
    assert_type(
        metrics.FowlkesMallows(num_classes=2).update(TARGET, TARGET), metrics.FowlkesMallows
    )
    assert_type(
        metrics.PairConfusionMatrix(num_classes=2).update(TARGET, TARGET),
        metrics.PairConfusionMatrix,
    )
    assert_type(metrics.Rand(num_classes=2).update(TARGET, TARGET), metrics.Rand)
    assert_type(metrics.FleissKappa(num_categories=2).update(RATINGS), metrics.FleissKappa)
    assert_type(
        metrics.CalinskiHarabasz(num_clusters=2, num_features=3).update(FEATURES, TARGET),
        metrics.CalinskiHarabasz,
    )
    assert_type(
        metrics.DaviesBouldin(num_clusters=2, num_features=3).update(FEATURES, TARGET),
        metrics.DaviesBouldin,
    )


def curves() -> None:
    assert_type(metrics.AUROC().update(PREDS, TARGET), metrics.AUROC)
    assert_type(metrics.AUROC(from_logits=True).from_logits, bool | None)
    assert_type(metrics.AveragePrecision().update(PREDS, TARGET), metrics.AveragePrecision)
    assert_type(metrics.Gini().update(PREDS, TARGET), metrics.Gini)
    assert_type(metrics.LogAUC().update(PREDS, TARGET), metrics.LogAUC)
    assert_type(metrics.ROC().update(PREDS, TARGET), metrics.ROC)
    assert_type(metrics.DETCurve().update(PREDS, TARGET), metrics.DETCurve)
    assert_type(metrics.PrecisionRecallCurve().update(PREDS, TARGET), metrics.PrecisionRecallCurve)
    assert_type(metrics.Gain(fraction=0.1).update(PREDS, TARGET), metrics.Gain)
    assert_type(metrics.GainCurve().update(PREDS, TARGET), metrics.GainCurve)
    assert_type(metrics.KolmogorovSmirnov().update(PREDS, TARGET), metrics.KolmogorovSmirnov)
    assert_type(metrics.Lift(fraction=0.1).update(PREDS, TARGET), metrics.Lift)
    assert_type(metrics.LiftCurve().update(PREDS, TARGET), metrics.LiftCurve)
    assert_type(metrics.EqualErrorRate().update(PREDS, TARGET), metrics.EqualErrorRate)
    assert_type(
        metrics.PrecisionAtFixedRecall(min_recall=0.5).update(PREDS, TARGET),
        metrics.PrecisionAtFixedRecall,
    )
    assert_type(
        metrics.RecallAtFixedPrecision(min_precision=0.5).update(PREDS, TARGET),
        metrics.RecallAtFixedPrecision,
    )
    assert_type(
        metrics.SensitivityAtSpecificity(min_specificity=0.5).update(PREDS, TARGET),
        metrics.SensitivityAtSpecificity,
    )
    assert_type(
        metrics.SpecificityAtSensitivity(min_sensitivity=0.5).update(PREDS, TARGET),
        metrics.SpecificityAtSensitivity,
    )


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
    assert_type(metrics.TokenF1().update(TEXTS, TEXTS), metrics.TokenF1)
    assert_type(metrics.CER().update(TEXTS, TEXTS), metrics.CER)
    assert_type(metrics.MER().update(TEXTS, TEXTS), metrics.MER)
    assert_type(metrics.WER().update(TEXTS, TEXTS), metrics.WER)
    assert_type(metrics.WIL().update(TEXTS, TEXTS), metrics.WIL)
    assert_type(metrics.WIP().update(TEXTS, TEXTS), metrics.WIP)
    assert_type(metrics.ROUGE().update(TEXTS, TEXTS), metrics.ROUGE)
    assert_type(metrics.BLEU().update(TEXTS, TEXTS), metrics.BLEU)
    assert_type(metrics.CHRF().update(TEXTS, TEXTS), metrics.CHRF)
    assert_type(metrics.TER().update(TEXTS, TEXTS), metrics.TER)
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
    assert_type(metrics.ReliabilityDiagram().update(PREDS, TARGET), metrics.ReliabilityDiagram)
    assert_type(metrics.D2Brier().update(PREDS, TARGET), metrics.D2Brier)
    assert_type(metrics.D2LogLoss().update(PREDS, TARGET), metrics.D2LogLoss)
    assert_type(metrics.BrierScore().update(PREDS, TARGET), metrics.BrierScore)
    assert_type(metrics.HingeLoss().update(PREDS, TARGET), metrics.HingeLoss)
    assert_type(metrics.LogLoss().update(PREDS, TARGET), metrics.LogLoss)
    assert_type(
        metrics.JensenShannonDivergence().update(ROWS, ROWS), metrics.JensenShannonDivergence
    )
    assert_type(metrics.KLDivergence().update(ROWS, ROWS), metrics.KLDivergence)
    assert_type(
        metrics.ContinuousRankedProbabilityScore().update(FEATURES, VALUES),
        metrics.ContinuousRankedProbabilityScore,
    )
    assert_type(
        metrics.RankedProbabilityScore(num_classes=3).update(ROWS, TARGET),
        metrics.RankedProbabilityScore,
    )


def ranking() -> None:
    assert_type(metrics.DCG().update(RANKED, RELEVANT), metrics.DCG)
    assert_type(metrics.NDCG().update(RANKED, RELEVANT), metrics.NDCG)
    assert_type(metrics.CoverageError().update(RANKED, RELEVANT), metrics.CoverageError)
    assert_type(
        metrics.LabelRankingAveragePrecision().update(RANKED, RELEVANT),
        metrics.LabelRankingAveragePrecision,
    )
    assert_type(metrics.LabelRankingLoss().update(RANKED, RELEVANT), metrics.LabelRankingLoss)
    assert_type(metrics.MRR().update(RANKED, RELEVANT), metrics.MRR)
    assert_type(metrics.RetrievalAUROC().update(RANKED, RELEVANT), metrics.RetrievalAUROC)
    assert_type(metrics.RetrievalMAP().update(RANKED, RELEVANT), metrics.RetrievalMAP)
    assert_type(metrics.FallOut(k=1).update(RANKED, RELEVANT), metrics.FallOut)
    assert_type(metrics.HitRate(k=1).update(RANKED, RELEVANT), metrics.HitRate)
    assert_type(metrics.PrecisionAtK(k=1).update(RANKED, RELEVANT), metrics.PrecisionAtK)
    assert_type(metrics.RecallAtK(k=1).update(RANKED, RELEVANT), metrics.RecallAtK)
    assert_type(metrics.RPrecision().update(RANKED, RELEVANT), metrics.RPrecision)
    assert_type(
        metrics.CatalogCoverage(num_items=2, k=1).update(RANKED, RELEVANT), metrics.CatalogCoverage
    )
    assert_type(
        metrics.IntraListDiversity(k=2).update(RANKED, EMBEDDED), metrics.IntraListDiversity
    )
    assert_type(metrics.Novelty(k=1).update(RANKED, RANKED), metrics.Novelty)


def regression() -> None:
    assert_type(metrics.ConcordanceCorrCoef().update(VALUES, VALUES), metrics.ConcordanceCorrCoef)
    assert_type(metrics.CosineSimilarity().update(FEATURES, FEATURES), metrics.CosineSimilarity)
    assert_type(metrics.PearsonCorrCoef().update(VALUES, VALUES), metrics.PearsonCorrCoef)
    assert_type(metrics.MaxError().update(VALUES, VALUES), metrics.MaxError)
    assert_type(metrics.MedianAbsoluteError().update(VALUES, VALUES), metrics.MedianAbsoluteError)
    assert_type(metrics.D2AbsoluteError().update(VALUES, VALUES), metrics.D2AbsoluteError)
    assert_type(metrics.D2Pinball().update(VALUES, VALUES), metrics.D2Pinball)
    assert_type(metrics.D2Tweedie().update(VALUES, VALUES), metrics.D2Tweedie)
    assert_type(
        metrics.CriticalSuccessIndex(threshold=0.5).update(VALUES, VALUES),
        metrics.CriticalSuccessIndex,
    )
    assert_type(metrics.HuberLoss().update(VALUES, VALUES), metrics.HuberLoss)
    assert_type(metrics.LogCoshError().update(VALUES, VALUES), metrics.LogCoshError)
    assert_type(
        metrics.MeanAbsolutePercentageError().update(VALUES, VALUES),
        metrics.MeanAbsolutePercentageError,
    )
    assert_type(metrics.MeanSquaredLogError().update(VALUES, VALUES), metrics.MeanSquaredLogError)
    assert_type(metrics.MinkowskiDistance().update(VALUES, VALUES), metrics.MinkowskiDistance)
    assert_type(metrics.QuantileLoss().update(VALUES, VALUES), metrics.QuantileLoss)
    assert_type(
        metrics.SymmetricMeanAbsolutePercentageError().update(VALUES, VALUES),
        metrics.SymmetricMeanAbsolutePercentageError,
    )
    assert_type(metrics.TweedieDeviance().update(VALUES, VALUES), metrics.TweedieDeviance)
    assert_type(
        metrics.WeightedMeanAbsolutePercentageError().update(VALUES, VALUES),
        metrics.WeightedMeanAbsolutePercentageError,
    )
    assert_type(metrics.KendallTau().update(VALUES, VALUES), metrics.KendallTau)
    assert_type(metrics.SpearmanCorrCoef().update(VALUES, VALUES), metrics.SpearmanCorrCoef)
    assert_type(metrics.ExplainedVariance().update(VALUES, VALUES), metrics.ExplainedVariance)
    assert_type(metrics.MeanAbsoluteError().update(VALUES, VALUES), metrics.MeanAbsoluteError)
    assert_type(metrics.MeanSquaredError().update(VALUES, VALUES), metrics.MeanSquaredError)
    assert_type(
        metrics.NormalizedRootMeanSquaredError().update(VALUES, VALUES),
        metrics.NormalizedRootMeanSquaredError,
    )
    assert_type(metrics.R2Score().update(VALUES, VALUES), metrics.R2Score)
    assert_type(metrics.RelativeSquaredError().update(VALUES, VALUES), metrics.RelativeSquaredError)
    assert_type(metrics.RootMeanSquaredError().update(VALUES, VALUES), metrics.RootMeanSquaredError)


def segmentation() -> None:
    assert_type(metrics.HausdorffDistance().update(MASKS, MASKS), metrics.HausdorffDistance)
    assert_type(metrics.Dice(num_classes=2).update(MASKS, MASKS), metrics.Dice)
    assert_type(
        metrics.GeneralizedDice(num_classes=2).update(MASKS, MASKS), metrics.GeneralizedDice
    )
    assert_type(metrics.MeanIoU(num_classes=2).update(MASKS, MASKS), metrics.MeanIoU)
    assert_type(metrics.PixelAccuracy(num_classes=2).update(MASKS, MASKS), metrics.PixelAccuracy)
    assert_type(
        metrics.PanopticQuality(num_classes=2, things=(1,)).update(PANOPTIC, PANOPTIC),
        metrics.PanopticQuality,
    )


def vision() -> None:
    assert_type(metrics.CIoU().update(BOXES, BOXES), metrics.CIoU)
    assert_type(metrics.DIoU().update(BOXES, BOXES), metrics.DIoU)
    assert_type(metrics.GIoU().update(BOXES, BOXES), metrics.GIoU)
    assert_type(metrics.IoU().update(BOXES, BOXES), metrics.IoU)
    assert_type(metrics.FID(num_features=3).update(FEATURES, FEATURES), metrics.FID)
    assert_type(metrics.KID(num_features=3).update(FEATURES, FEATURES), metrics.KID)
    assert_type(metrics.InceptionScore().update(ROWS), metrics.InceptionScore)
    assert_type(
        metrics.MeanAveragePrecision(num_classes=2).update(*DETECTED), metrics.MeanAveragePrecision
    )
    assert_type(
        metrics.PerceptualDistance(features=features).update(IMAGES, IMAGES),
        metrics.PerceptualDistance,
    )
    assert_type(metrics.PSNR(data_range=1.0).update(IMAGES, IMAGES), metrics.PSNR)
    assert_type(metrics.PSNRB(data_range=1.0).update(IMAGES, IMAGES), metrics.PSNRB)
    assert_type(metrics.RMSESW().update(IMAGES, IMAGES), metrics.RMSESW)
    assert_type(metrics.TotalVariation().update(IMAGES), metrics.TotalVariation)
    assert_type(metrics.ERGAS().update(IMAGES, IMAGES), metrics.ERGAS)
    assert_type(metrics.RASE().update(IMAGES, IMAGES), metrics.RASE)
    assert_type(metrics.SAM().update(IMAGES, IMAGES), metrics.SAM)
    assert_type(metrics.SpatialCorrelation().update(IMAGES, IMAGES), metrics.SpatialCorrelation)
    assert_type(metrics.MSSSIM(data_range=1.0).update(IMAGES, IMAGES), metrics.MSSSIM)
    assert_type(metrics.SSIM(data_range=1.0).update(IMAGES, IMAGES), metrics.SSIM)
    assert_type(metrics.UQI().update(IMAGES, IMAGES), metrics.UQI)
    assert_type(metrics.VIF(data_range=1.0).update(IMAGES, IMAGES), metrics.VIF)


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


def test_every_metric_and_statistic_is_here():
    """But the base classes, which `test_typing.py` has, and what they are made of."""
    text = Path(__file__).read_text()
    names = [name for name in EXPORTED if re.match(r"datarax\.(metrics|statistics)\.", name)]
    bases = {"ElementwiseState", "LeafState", "State", "Travel"}
    short = {name.removeprefix("datarax.") for name in names}
    missing = {name for name in short if f"{name}(" not in text}
    assert {name.rpartition(".")[2] for name in missing} == bases
