"""The catalogue: each metric a statistic, and a formula that reads it."""

from datarax.metrics.aggregation import Max as Max
from datarax.metrics.aggregation import Mean as Mean
from datarax.metrics.aggregation import Min as Min
from datarax.metrics.aggregation import MinMax as MinMax
from datarax.metrics.aggregation import Std as Std
from datarax.metrics.aggregation import Sum as Sum
from datarax.metrics.aggregation import Variance as Variance
from datarax.metrics.aggregation import WeightedMean as WeightedMean
from datarax.metrics.agreement import CohenKappa as CohenKappa
from datarax.metrics.agreement import MatthewsCorrCoef as MatthewsCorrCoef
from datarax.metrics.areas import AUROC as AUROC
from datarax.metrics.areas import AveragePrecision as AveragePrecision
from datarax.metrics.areas import Gini as Gini
from datarax.metrics.areas import LogAUC as LogAUC
from datarax.metrics.calibration import CalibrationError as CalibrationError
from datarax.metrics.calibration import ReliabilityDiagram as ReliabilityDiagram
from datarax.metrics.cardinality import Cardinality as Cardinality
from datarax.metrics.classification import Accuracy as Accuracy
from datarax.metrics.classification import HammingDistance as HammingDistance
from datarax.metrics.clustering import AdjustedRand as AdjustedRand
from datarax.metrics.clustering import ClusterAccuracy as ClusterAccuracy
from datarax.metrics.clustering import FowlkesMallows as FowlkesMallows
from datarax.metrics.clustering import Rand as Rand
from datarax.metrics.compactness import CalinskiHarabasz as CalinskiHarabasz
from datarax.metrics.compactness import DaviesBouldin as DaviesBouldin
from datarax.metrics.confusion import ConfusionMatrix as ConfusionMatrix
from datarax.metrics.correlation import ConcordanceCorrCoef as ConcordanceCorrCoef
from datarax.metrics.correlation import CosineSimilarity as CosineSimilarity
from datarax.metrics.correlation import PearsonCorrCoef as PearsonCorrCoef
from datarax.metrics.curves import ROC as ROC
from datarax.metrics.curves import PrecisionRecallCurve as PrecisionRecallCurve
from datarax.metrics.divergence import JensenShannonDivergence as JensenShannonDivergence
from datarax.metrics.divergence import KLDivergence as KLDivergence
from datarax.metrics.error_quantiles import MaxError as MaxError
from datarax.metrics.error_quantiles import MedianAbsoluteError as MedianAbsoluteError
from datarax.metrics.errors import CriticalSuccessIndex as CriticalSuccessIndex
from datarax.metrics.errors import HuberLoss as HuberLoss
from datarax.metrics.errors import LogCoshError as LogCoshError
from datarax.metrics.errors import MeanAbsolutePercentageError as MeanAbsolutePercentageError
from datarax.metrics.errors import MeanSquaredLogError as MeanSquaredLogError
from datarax.metrics.errors import MinkowskiDistance as MinkowskiDistance
from datarax.metrics.errors import QuantileLoss as QuantileLoss
from datarax.metrics.errors import (
    SymmetricMeanAbsolutePercentageError as SymmetricMeanAbsolutePercentageError,
)
from datarax.metrics.errors import TweedieDeviance as TweedieDeviance
from datarax.metrics.errors import (
    WeightedMeanAbsolutePercentageError as WeightedMeanAbsolutePercentageError,
)
from datarax.metrics.exact_match import ExactMatch as ExactMatch
from datarax.metrics.fairness import GroupFairness as GroupFairness
from datarax.metrics.forecasts import (
    ContinuousRankedProbabilityScore as ContinuousRankedProbabilityScore,
)
from datarax.metrics.forecasts import RankedProbabilityScore as RankedProbabilityScore
from datarax.metrics.hausdorff import HausdorffDistance as HausdorffDistance
from datarax.metrics.information import AdjustedMutualInfo as AdjustedMutualInfo
from datarax.metrics.information import Completeness as Completeness
from datarax.metrics.information import Homogeneity as Homogeneity
from datarax.metrics.information import MutualInfo as MutualInfo
from datarax.metrics.information import NormalizedMutualInfo as NormalizedMutualInfo
from datarax.metrics.information import VMeasure as VMeasure
from datarax.metrics.likelihood_ratios import LikelihoodRatios as LikelihoodRatios
from datarax.metrics.nominal import CramersV as CramersV
from datarax.metrics.nominal import FleissKappa as FleissKappa
from datarax.metrics.nominal import PearsonsContingency as PearsonsContingency
from datarax.metrics.nominal import TheilsU as TheilsU
from datarax.metrics.nominal import TschuprowsT as TschuprowsT
from datarax.metrics.operating_points import EqualErrorRate as EqualErrorRate
from datarax.metrics.operating_points import PrecisionAtFixedRecall as PrecisionAtFixedRecall
from datarax.metrics.operating_points import RecallAtFixedPrecision as RecallAtFixedPrecision
from datarax.metrics.operating_points import SensitivityAtSpecificity as SensitivityAtSpecificity
from datarax.metrics.operating_points import SpecificityAtSensitivity as SpecificityAtSensitivity
from datarax.metrics.panoptic import PanopticQuality as PanopticQuality
from datarax.metrics.power_means import GeometricMean as GeometricMean
from datarax.metrics.power_means import HarmonicMean as HarmonicMean
from datarax.metrics.power_means import Norm as Norm
from datarax.metrics.power_means import RootMeanSquare as RootMeanSquare
from datarax.metrics.precision_recall import F1 as F1
from datarax.metrics.precision_recall import FBeta as FBeta
from datarax.metrics.precision_recall import InformednessYouden as InformednessYouden
from datarax.metrics.precision_recall import JaccardIndex as JaccardIndex
from datarax.metrics.precision_recall import NegativePredictiveValue as NegativePredictiveValue
from datarax.metrics.precision_recall import Precision as Precision
from datarax.metrics.precision_recall import Recall as Recall
from datarax.metrics.precision_recall import Specificity as Specificity
from datarax.metrics.probabilistic import BrierScore as BrierScore
from datarax.metrics.probabilistic import HingeLoss as HingeLoss
from datarax.metrics.probabilistic import LogLoss as LogLoss
from datarax.metrics.probabilistic import Perplexity as Perplexity
from datarax.metrics.quantiles import Histogram as Histogram
from datarax.metrics.quantiles import Median as Median
from datarax.metrics.quantiles import Quantile as Quantile
from datarax.metrics.rank_correlation import KendallTau as KendallTau
from datarax.metrics.rank_correlation import SpearmanCorrCoef as SpearmanCorrCoef
from datarax.metrics.recent import ExponentialMovingAverage as ExponentialMovingAverage
from datarax.metrics.recent import LastValue as LastValue
from datarax.metrics.recent import Rate as Rate
from datarax.metrics.regression import ExplainedVariance as ExplainedVariance
from datarax.metrics.regression import MeanAbsoluteError as MeanAbsoluteError
from datarax.metrics.regression import MeanSquaredError as MeanSquaredError
from datarax.metrics.regression import (
    NormalizedRootMeanSquaredError as NormalizedRootMeanSquaredError,
)
from datarax.metrics.regression import R2Score as R2Score
from datarax.metrics.regression import RelativeSquaredError as RelativeSquaredError
from datarax.metrics.regression import RootMeanSquaredError as RootMeanSquaredError
from datarax.metrics.segmentation import Dice as Dice
from datarax.metrics.segmentation import GeneralizedDice as GeneralizedDice
from datarax.metrics.segmentation import MeanIoU as MeanIoU
from datarax.metrics.segmentation import PixelAccuracy as PixelAccuracy
from datarax.metrics.separation import Gain as Gain
from datarax.metrics.separation import GainCurve as GainCurve
from datarax.metrics.separation import KolmogorovSmirnov as KolmogorovSmirnov
from datarax.metrics.separation import Lift as Lift
from datarax.metrics.separation import LiftCurve as LiftCurve
