"""The catalogue: each metric a statistic, and a formula that reads it."""

from typing import TYPE_CHECKING

from datarax.metric.other_names import suggestion as _suggestion
from datarax.metrics.aggregation.power_means import GeometricMean as GeometricMean
from datarax.metrics.aggregation.power_means import HarmonicMean as HarmonicMean
from datarax.metrics.aggregation.power_means import Norm as Norm
from datarax.metrics.aggregation.power_means import RootMeanSquare as RootMeanSquare
from datarax.metrics.aggregation.quantiles import Histogram as Histogram
from datarax.metrics.aggregation.quantiles import Median as Median
from datarax.metrics.aggregation.quantiles import Quantile as Quantile
from datarax.metrics.aggregation.recent import ExponentialMovingAverage as ExponentialMovingAverage
from datarax.metrics.aggregation.recent import LastValue as LastValue
from datarax.metrics.aggregation.recent import Rate as Rate
from datarax.metrics.aggregation.summary import Cardinality as Cardinality
from datarax.metrics.aggregation.summary import Max as Max
from datarax.metrics.aggregation.summary import Mean as Mean
from datarax.metrics.aggregation.summary import Min as Min
from datarax.metrics.aggregation.summary import MinMax as MinMax
from datarax.metrics.aggregation.summary import Ratio as Ratio
from datarax.metrics.aggregation.summary import Std as Std
from datarax.metrics.aggregation.summary import Sum as Sum
from datarax.metrics.aggregation.summary import Variance as Variance
from datarax.metrics.aggregation.summary import WeightedMean as WeightedMean
from datarax.metrics.audio.intelligibility import STOI as STOI
from datarax.metrics.audio.noise_ratios import SASDR as SASDR
from datarax.metrics.audio.noise_ratios import SDR as SDR
from datarax.metrics.audio.noise_ratios import SISDR as SISDR
from datarax.metrics.audio.noise_ratios import SISNR as SISNR
from datarax.metrics.audio.noise_ratios import SNR as SNR
from datarax.metrics.audio.noise_ratios import ComplexSISNR as ComplexSISNR
from datarax.metrics.audio.permutation import PermutationInvariant as PermutationInvariant
from datarax.metrics.classification.accuracy import Accuracy as Accuracy
from datarax.metrics.classification.accuracy import HammingDistance as HammingDistance
from datarax.metrics.classification.chance_corrected import CohenKappa as CohenKappa
from datarax.metrics.classification.chance_corrected import MatthewsCorrCoef as MatthewsCorrCoef
from datarax.metrics.classification.classification_report import (
    ClassificationReport as ClassificationReport,
)
from datarax.metrics.classification.confusion_matrix import ConfusionMatrix as ConfusionMatrix
from datarax.metrics.classification.confusion_matrix import StatScores as StatScores
from datarax.metrics.classification.exact_match import ExactMatch as ExactMatch
from datarax.metrics.classification.fairness import GroupFairness as GroupFairness
from datarax.metrics.classification.fairness import GroupRates as GroupRates
from datarax.metrics.classification.mcnemar import McNemar as McNemar
from datarax.metrics.classification.precision_recall import F1 as F1
from datarax.metrics.classification.precision_recall import FBeta as FBeta
from datarax.metrics.classification.precision_recall import GeometricMeanScore as GeometricMeanScore
from datarax.metrics.classification.precision_recall import InformednessYouden as InformednessYouden
from datarax.metrics.classification.precision_recall import JaccardIndex as JaccardIndex
from datarax.metrics.classification.precision_recall import LikelihoodRatios as LikelihoodRatios
from datarax.metrics.classification.precision_recall import (
    NegativePredictiveValue as NegativePredictiveValue,
)
from datarax.metrics.classification.precision_recall import Precision as Precision
from datarax.metrics.classification.precision_recall import Recall as Recall
from datarax.metrics.classification.precision_recall import Specificity as Specificity
from datarax.metrics.clustering.cluster_dispersion import CalinskiHarabasz as CalinskiHarabasz
from datarax.metrics.clustering.cluster_dispersion import DaviesBouldin as DaviesBouldin
from datarax.metrics.clustering.mutual_information import AdjustedMutualInfo as AdjustedMutualInfo
from datarax.metrics.clustering.mutual_information import Completeness as Completeness
from datarax.metrics.clustering.mutual_information import Homogeneity as Homogeneity
from datarax.metrics.clustering.mutual_information import MutualInfo as MutualInfo
from datarax.metrics.clustering.mutual_information import (
    NormalizedMutualInfo as NormalizedMutualInfo,
)
from datarax.metrics.clustering.mutual_information import VMeasure as VMeasure
from datarax.metrics.clustering.nominal import CramersV as CramersV
from datarax.metrics.clustering.nominal import FleissKappa as FleissKappa
from datarax.metrics.clustering.nominal import PearsonsContingency as PearsonsContingency
from datarax.metrics.clustering.nominal import SomersD as SomersD
from datarax.metrics.clustering.nominal import TheilsU as TheilsU
from datarax.metrics.clustering.nominal import TschuprowsT as TschuprowsT
from datarax.metrics.clustering.pair_counting import AdjustedRand as AdjustedRand
from datarax.metrics.clustering.pair_counting import ClusterAccuracy as ClusterAccuracy
from datarax.metrics.clustering.pair_counting import FowlkesMallows as FowlkesMallows
from datarax.metrics.clustering.pair_counting import PairConfusionMatrix as PairConfusionMatrix
from datarax.metrics.clustering.pair_counting import Rand as Rand
from datarax.metrics.clustering.point_distances import DunnIndex as DunnIndex
from datarax.metrics.clustering.point_distances import Silhouette as Silhouette
from datarax.metrics.clustering.rater_agreement import GwetAC1 as GwetAC1
from datarax.metrics.clustering.rater_agreement import KrippendorffAlpha as KrippendorffAlpha
from datarax.metrics.curves.area_under_curve import AUROC as AUROC
from datarax.metrics.curves.area_under_curve import AveragePrecision as AveragePrecision
from datarax.metrics.curves.area_under_curve import Gini as Gini
from datarax.metrics.curves.area_under_curve import LogAUC as LogAUC
from datarax.metrics.curves.curve_points import ROC as ROC
from datarax.metrics.curves.curve_points import DETCurve as DETCurve
from datarax.metrics.curves.curve_points import PrecisionRecallCurve as PrecisionRecallCurve
from datarax.metrics.curves.gain_lift import Gain as Gain
from datarax.metrics.curves.gain_lift import GainCurve as GainCurve
from datarax.metrics.curves.gain_lift import KolmogorovSmirnov as KolmogorovSmirnov
from datarax.metrics.curves.gain_lift import Lift as Lift
from datarax.metrics.curves.gain_lift import LiftCurve as LiftCurve
from datarax.metrics.curves.operating_points import EqualErrorRate as EqualErrorRate
from datarax.metrics.curves.operating_points import PrecisionAtFixedRecall as PrecisionAtFixedRecall
from datarax.metrics.curves.operating_points import RecallAtFixedPrecision as RecallAtFixedPrecision
from datarax.metrics.curves.operating_points import (
    SensitivityAtSpecificity as SensitivityAtSpecificity,
)
from datarax.metrics.curves.operating_points import (
    SpecificityAtSensitivity as SpecificityAtSensitivity,
)
from datarax.metrics.estimation.anytime_interval import AnytimeInterval as AnytimeInterval
from datarax.metrics.estimation.bradley_terry import BradleyTerry as BradleyTerry
from datarax.metrics.estimation.conformal import ConformalThreshold as ConformalThreshold
from datarax.metrics.estimation.prediction_powered import (
    PredictionPoweredMean as PredictionPoweredMean,
)
from datarax.metrics.health.activations import ActivationStats as ActivationStats
from datarax.metrics.health.expert_load import ExpertLoad as ExpertLoad
from datarax.metrics.health.loss_spikes import LossSpikes as LossSpikes
from datarax.metrics.health.noise_scale import GradientNoiseScale as GradientNoiseScale
from datarax.metrics.health.policy import ApproxKL as ApproxKL
from datarax.metrics.health.policy import ClipFraction as ClipFraction
from datarax.metrics.health.policy import GroupSpread as GroupSpread
from datarax.metrics.health.timing import ModelFLOPs as ModelFLOPs
from datarax.metrics.health.timing import StepTime as StepTime
from datarax.metrics.health.timing import Throughput as Throughput
from datarax.metrics.health.tree_health import TreeHealth as TreeHealth
from datarax.metrics.language.answers import TextExactMatch as TextExactMatch
from datarax.metrics.language.answers import TokenF1 as TokenF1
from datarax.metrics.language.diversity import DistinctN as DistinctN
from datarax.metrics.language.diversity import SelfBLEU as SelfBLEU
from datarax.metrics.language.edit_distance import EditDistance as EditDistance
from datarax.metrics.language.error_rates import CER as CER
from datarax.metrics.language.error_rates import MER as MER
from datarax.metrics.language.error_rates import WER as WER
from datarax.metrics.language.error_rates import WIL as WIL
from datarax.metrics.language.error_rates import WIP as WIP
from datarax.metrics.language.error_rates import WordErrors as WordErrors
from datarax.metrics.language.extended_edit_distance import (
    ExtendedEditDistance as ExtendedEditDistance,
)
from datarax.metrics.language.pass_at_k import PassAtK as PassAtK
from datarax.metrics.language.summaries import ROUGE as ROUGE
from datarax.metrics.language.token_accuracy import SequenceAccuracy as SequenceAccuracy
from datarax.metrics.language.token_accuracy import TokenAccuracy as TokenAccuracy
from datarax.metrics.language.token_losses import BitsPerByte as BitsPerByte
from datarax.metrics.language.token_losses import Perplexity as Perplexity
from datarax.metrics.language.translation import BLEU as BLEU
from datarax.metrics.language.translation import CHRF as CHRF
from datarax.metrics.language.translation import TER as TER
from datarax.metrics.probabilistic.calibration import CalibrationError as CalibrationError
from datarax.metrics.probabilistic.calibration import ReliabilityDiagram as ReliabilityDiagram
from datarax.metrics.probabilistic.calibration_test import CalibrationTest as CalibrationTest
from datarax.metrics.probabilistic.divergence import (
    JensenShannonDivergence as JensenShannonDivergence,
)
from datarax.metrics.probabilistic.divergence import KLDivergence as KLDivergence
from datarax.metrics.probabilistic.forecasts import (
    ContinuousRankedProbabilityScore as ContinuousRankedProbabilityScore,
)
from datarax.metrics.probabilistic.forecasts import RankedProbabilityScore as RankedProbabilityScore
from datarax.metrics.probabilistic.probability_losses import BrierScore as BrierScore
from datarax.metrics.probabilistic.probability_losses import D2Brier as D2Brier
from datarax.metrics.probabilistic.probability_losses import D2LogLoss as D2LogLoss
from datarax.metrics.probabilistic.probability_losses import HingeLoss as HingeLoss
from datarax.metrics.probabilistic.probability_losses import LogLoss as LogLoss
from datarax.metrics.probabilistic.score_decomposition import (
    ScoreDecomposition as ScoreDecomposition,
)
from datarax.metrics.ranking.recommendation import CatalogCoverage as CatalogCoverage
from datarax.metrics.ranking.recommendation import IntraListDiversity as IntraListDiversity
from datarax.metrics.ranking.recommendation import Novelty as Novelty
from datarax.metrics.ranking.relevance import DCG as DCG
from datarax.metrics.ranking.relevance import MRR as MRR
from datarax.metrics.ranking.relevance import NDCG as NDCG
from datarax.metrics.ranking.relevance import CoverageError as CoverageError
from datarax.metrics.ranking.relevance import FallOut as FallOut
from datarax.metrics.ranking.relevance import HitRate as HitRate
from datarax.metrics.ranking.relevance import (
    LabelRankingAveragePrecision as LabelRankingAveragePrecision,
)
from datarax.metrics.ranking.relevance import LabelRankingLoss as LabelRankingLoss
from datarax.metrics.ranking.relevance import PrecisionAtK as PrecisionAtK
from datarax.metrics.ranking.relevance import RecallAtK as RecallAtK
from datarax.metrics.ranking.relevance import RetrievalAUROC as RetrievalAUROC
from datarax.metrics.ranking.relevance import RetrievalMAP as RetrievalMAP
from datarax.metrics.ranking.relevance import RPrecision as RPrecision
from datarax.metrics.ranking.search import ERR as ERR
from datarax.metrics.ranking.search import RBP as RBP
from datarax.metrics.ranking.search import Bpref as Bpref
from datarax.metrics.ranking.search import InferredAP as InferredAP
from datarax.metrics.ranking.search import (
    RetrievalPrecisionRecallCurve as RetrievalPrecisionRecallCurve,
)
from datarax.metrics.regression.correlation import ConcordanceCorrCoef as ConcordanceCorrCoef
from datarax.metrics.regression.correlation import CosineSimilarity as CosineSimilarity
from datarax.metrics.regression.correlation import PearsonCorrCoef as PearsonCorrCoef
from datarax.metrics.regression.correlation import PearsonTest as PearsonTest
from datarax.metrics.regression.error_quantiles import MaxError as MaxError
from datarax.metrics.regression.error_quantiles import MedianAbsoluteError as MedianAbsoluteError
from datarax.metrics.regression.explained_deviance import D2AbsoluteError as D2AbsoluteError
from datarax.metrics.regression.explained_deviance import D2Pinball as D2Pinball
from datarax.metrics.regression.explained_deviance import D2Tweedie as D2Tweedie
from datarax.metrics.regression.loss_means import CriticalSuccessIndex as CriticalSuccessIndex
from datarax.metrics.regression.loss_means import HuberLoss as HuberLoss
from datarax.metrics.regression.loss_means import LogCoshError as LogCoshError
from datarax.metrics.regression.loss_means import MeanAbsoluteError as MeanAbsoluteError
from datarax.metrics.regression.loss_means import (
    MeanAbsolutePercentageError as MeanAbsolutePercentageError,
)
from datarax.metrics.regression.loss_means import MeanSquaredError as MeanSquaredError
from datarax.metrics.regression.loss_means import MeanSquaredLogError as MeanSquaredLogError
from datarax.metrics.regression.loss_means import MinkowskiDistance as MinkowskiDistance
from datarax.metrics.regression.loss_means import QuantileLoss as QuantileLoss
from datarax.metrics.regression.loss_means import RootMeanSquaredError as RootMeanSquaredError
from datarax.metrics.regression.loss_means import (
    SymmetricMeanAbsolutePercentageError as SymmetricMeanAbsolutePercentageError,
)
from datarax.metrics.regression.loss_means import TweedieDeviance as TweedieDeviance
from datarax.metrics.regression.loss_means import (
    WeightedMeanAbsolutePercentageError as WeightedMeanAbsolutePercentageError,
)
from datarax.metrics.regression.rank_correlation import KendallTau as KendallTau
from datarax.metrics.regression.rank_correlation import SpearmanCorrCoef as SpearmanCorrCoef
from datarax.metrics.regression.rank_tests import KendallTest as KendallTest
from datarax.metrics.regression.rank_tests import SpearmanTest as SpearmanTest
from datarax.metrics.regression.residual_metrics import ExplainedVariance as ExplainedVariance
from datarax.metrics.regression.residual_metrics import (
    NormalizedRootMeanSquaredError as NormalizedRootMeanSquaredError,
)
from datarax.metrics.regression.residual_metrics import R2Score as R2Score
from datarax.metrics.regression.residual_metrics import RelativeSquaredError as RelativeSquaredError
from datarax.metrics.regression.scaled_errors import (
    MeanAbsoluteScaledError as MeanAbsoluteScaledError,
)
from datarax.metrics.regression.scaled_errors import (
    RootMeanSquaredScaledError as RootMeanSquaredScaledError,
)
from datarax.metrics.regression.survival import ConcordanceIndex as ConcordanceIndex
from datarax.metrics.segmentation.boundary_iou import BoundaryIoU as BoundaryIoU
from datarax.metrics.segmentation.overlap import Dice as Dice
from datarax.metrics.segmentation.overlap import GeneralizedDice as GeneralizedDice
from datarax.metrics.segmentation.overlap import MeanIoU as MeanIoU
from datarax.metrics.segmentation.overlap import (
    ModifiedPanopticQuality as ModifiedPanopticQuality,
)
from datarax.metrics.segmentation.overlap import PanopticQuality as PanopticQuality
from datarax.metrics.segmentation.overlap import PixelAccuracy as PixelAccuracy
from datarax.metrics.segmentation.surface_distances import HausdorffDistance as HausdorffDistance
from datarax.metrics.segmentation.surface_distances import (
    MeanSurfaceDistance as MeanSurfaceDistance,
)
from datarax.metrics.segmentation.surface_distances import SurfaceDice as SurfaceDice
from datarax.metrics.vision.box_overlap import CIoU as CIoU
from datarax.metrics.vision.box_overlap import DIoU as DIoU
from datarax.metrics.vision.box_overlap import GIoU as GIoU
from datarax.metrics.vision.box_overlap import IoU as IoU
from datarax.metrics.vision.detection_curves import DetectionCurve as DetectionCurve
from datarax.metrics.vision.detection_curves import DetectionF1 as DetectionF1
from datarax.metrics.vision.feature_distances import FID as FID
from datarax.metrics.vision.feature_distances import KID as KID
from datarax.metrics.vision.feature_distances import InceptionScore as InceptionScore
from datarax.metrics.vision.feature_distances import PerceptualDistance as PerceptualDistance
from datarax.metrics.vision.fused_images import QNR as QNR
from datarax.metrics.vision.fused_images import SpatialDistortion as SpatialDistortion
from datarax.metrics.vision.fused_images import SpectralDistortion as SpectralDistortion
from datarax.metrics.vision.mean_average_precision import (
    MeanAveragePrecision as MeanAveragePrecision,
)
from datarax.metrics.vision.pixel_errors import PSNR as PSNR
from datarax.metrics.vision.pixel_errors import PSNRB as PSNRB
from datarax.metrics.vision.pixel_errors import RMSESW as RMSESW
from datarax.metrics.vision.pixel_errors import TotalVariation as TotalVariation
from datarax.metrics.vision.spectral_quality import ERGAS as ERGAS
from datarax.metrics.vision.spectral_quality import RASE as RASE
from datarax.metrics.vision.spectral_quality import SAM as SAM
from datarax.metrics.vision.spectral_quality import SpatialCorrelation as SpatialCorrelation
from datarax.metrics.vision.structural_similarity import MSSSIM as MSSSIM
from datarax.metrics.vision.structural_similarity import SSIM as SSIM
from datarax.metrics.vision.structural_similarity import UQI as UQI
from datarax.metrics.vision.structural_similarity import VIF as VIF

if not TYPE_CHECKING:  # a checker would take any name

    def __getattr__(name: str) -> None:
        raise AttributeError(
            f"module {__name__!r} has no attribute {name!r}{_suggestion(name, globals())}"
        )


del TYPE_CHECKING  # no name of the catalogue
