"""Names by which metrics and their arguments are known elsewhere: in results, and for errors."""

import difflib
import re
from collections.abc import Collection, Mapping

# In lower case, without underscores and the parts in `_PARTS`. A name that differs from that of its
# class in these only, or that is its `short_name`, needs no entry.
_KNOWN_AS = {
    "acc": "Accuracy",
    "ami": "AdjustedMutualInfo",
    "ap": "AveragePrecision",
    "ari": "AdjustedRand",
    "auc": "AUROC",
    "aucpr": "AveragePrecision",
    "aucroc": "AUROC",
    "auprc": "AveragePrecision",
    "average": "Mean",
    "balancedaccuracy": 'Accuracy(num_classes=..., average="macro")',
    "bce": "LogLoss",
    "crossentropy": "LogLoss",
    "crps": "ContinuousRankedProbabilityScore",
    "eer": "EqualErrorRate",
    "em": "TextExactMatch, or ExactMatch of rows of labels",
    "ema": "ExponentialMovingAverage",
    "jaccard": "JaccardIndex",
    "kappa": "CohenKappa",
    "kendall": "KendallTau",
    "ks": "KolmogorovSmirnov",
    "map": "MeanAveragePrecision of boxes, or RetrievalMAP",
    "miou": "MeanIoU",
    "msle": "MeanSquaredLogError",
    "nll": "LogLoss",
    "nmi": "NormalizedMutualInfo",
    "npv": "NegativePredictiveValue",
    "pcc": "PearsonCorrCoef",
    "pearson": "PearsonCorrCoef",
    "ppl": "Perplexity",
    "ppv": "Precision",
    "prauc": "AveragePrecision",
    "rmse": "MeanSquaredError(squared=False), or RootMeanSquaredError",
    "rmsle": "MeanSquaredLogError(squared=False)",
    "rocauc": "AUROC",
    "sensitivity": "Recall",
    "smape": "SymmetricMeanAbsolutePercentageError",
    "spearman": "SpearmanCorrCoef",
    "tnr": "Specificity",
    "topkaccuracy": "Accuracy(num_classes=..., top_k=...)",
    "tpr": "Recall",
    "wmape": "WeightedMeanAbsolutePercentageError",
}
_PARTS = ("binary", "multiclass", "multilabel", "score", "metric", "curve")


# The arguments of constructors, in lower case without underscores: the first that a class takes.
_ARGUMENTS = {
    "classes": ("num_classes",),
    "cutoff": ("k", "top_k", "threshold"),
    "fromlogits": ("from_logits",),
    "ignoreclass": ("ignore_index",),
    "ignorelabel": ("ignore_index",),
    "k": ("top_k",),
    "kernelsize": ("filter_size",),
    "logits": ("from_logits",),
    "maxval": ("data_range",),
    "nanstrategy": ("on_invalid",),
    "nbins": ("num_bins",),
    "bins": ("num_bins",),
    "nclasses": ("num_classes",),
    "ngram": ("max_order", "n"),
    "ngrams": ("max_order", "n"),
    "nlabels": ("num_labels",),
    "noutputs": ("num_outputs",),
    "outputs": ("num_outputs",),
    "quantile": ("q",),
    "sparse": ("num_classes",),
    "thr": ("threshold",),
    "thresholds": ("threshold",),
    "topk": ("k", "top_k"),
    "topn": ("k", "top_k"),
    "windowsize": ("filter_size",),
    "winsize": ("filter_size",),
}


_TASKS = {
    (True, True): "num_classes= makes the task multiclass and num_labels= multilabel; without both "
    "it is binary",
    (True, False): "num_classes= is the number of classes",
    (False, True): "num_labels= is the number of labels",
}
_AVERAGED = (
    "; labels= chooses the classes that are averaged, and ratios of counts take it, such as "
    "Precision, Recall, F1 and JaccardIndex, and ClassificationReport"
)
_OF_TASKS = {"task": "", "labels": _AVERAGED}
"""Arguments elsewhere for which there is no other name: the sizes set the task. For each, what is
said besides."""


def argument_suggestion(given: Collection[str], known: Collection[str]) -> str:
    """Suggests what to write for arguments that a constructor does not take.

    Args:
        given: the names of the arguments that were given.
        known: the names that it takes.
    """
    free = [name for name in known if name not in given]
    meant, sizes = [], ("num_classes" in known, "num_labels" in known)
    for name in given:
        if name in known:
            continue
        if name in _OF_TASKS and any(sizes):
            return f". {_TASKS[sizes]}{_OF_TASKS[name]}"
        also = [each for each in _ARGUMENTS.get(name.lower().replace("_", ""), ()) if each in free]
        near = also[:1] or difflib.get_close_matches(name, free, 1, cutoff=0.75)
        meant += [f"{each}= for {name}=" for each in near]
    return f". Did you mean {', '.join(meant)}?" if meant else ""


def suggestion(name: str, exported: Mapping[str, object], module: str = "") -> str:
    """Suggests a name in place of another, for the end of a message; empty if none is like it.

    Args:
        name: the name that is not exported.
        exported: what is exported, by name.
        module: what is put before the name, for a name of another module.
    """
    # Of those that differ in such parts only, the shortest.
    longest = sorted((each for each in exported if each[:1].isupper()), key=len, reverse=True)
    names = {_plain(each): each for each in longest}
    plain = _plain(name)
    meant = names.get(plain)
    classes = {each: x for each, x in exported.items() if isinstance(x, type)}
    short = {vars(x).get("short_name"): each for each, x in classes.items()}
    known = _KNOWN_AS.get(plain) or short.get(plain, "")
    # What is said may be a call, or a sentence: it starts with the name of the class.
    if re.split(r"\W", known)[0] in names.values():
        meant = known
    if meant is None:
        near = difflib.get_close_matches(plain, names, 1, cutoff=0.75)
        meant = names[near[0]] if near else None
    return f". Did you mean {module}{meant}?" if meant else ""


def snake_case(name: str) -> str:
    """The name of a class in results: "MatthewsCorrCoef" is "matthews_corr_coef"."""
    name = name.replace("IoU", "Iou")
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()


def _plain(name: str) -> str:
    plain = name.lower().replace("_", "")
    for part in _PARTS:
        plain = plain.removeprefix(part).removesuffix(part) or plain
    return plain
