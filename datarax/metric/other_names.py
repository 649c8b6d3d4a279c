"""Names by which metrics and their arguments are known elsewhere: in results, and for errors."""

import difflib
import re
from collections.abc import Collection, Mapping
from functools import cache
from typing import NamedTuple

# A row of a table of the page of names, and the code of a link in its second cell.
_ROW = re.compile(r"^\| `(\w+)` \| (.*) \|$", re.MULTILINE)
_LINK = re.compile(r"\[`(\w+)(?:\((.*?)\))?`\]\[datarax\.metrics\.\w+\]")
_PAGES = ("names.md", "names_of_torchmetrics.md")
_SHORT = "\n## Short names\n"
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


class Named(NamedTuple):
    """What another library calls otherwise."""

    text: str
    """What is said of it: a call, or a sentence that begins with one."""
    calls: tuple[tuple[str, str], ...]
    """The classes of the catalogue, each with its arguments."""


@cache
def names_elsewhere() -> Mapping[str, Named]:
    """The rows of the pages on names in `docs/metrics`, by the name as `_plain` gives it.

    The pages are installed with this module. A name of several libraries has the first of its rows
    that names a metric; the short names are first.
    """
    from importlib import resources  # only for an error, as it imports much

    here = resources.files("datarax.metric")
    page, more = (here.joinpath(name).read_text("utf-8") for name in _PAGES)
    before, _, short = page.partition(_SHORT)
    found: dict[str, Named] = {}
    for name, cell in _ROW.findall(short + before + more):
        calls = tuple(_LINK.findall(cell))
        if calls and not cell.startswith("none"):
            text = re.sub(r"\[`(.*?)`\]\[[\w.]+\]", r"\1", cell)
            found.setdefault(_plain(name), Named(text, calls))
    return found


def calls_elsewhere(name: str) -> tuple[tuple[str, str], ...]:
    """The metrics that a name of another library stands for: classes, each with its arguments."""
    named = names_elsewhere().get(_plain(name))
    return () if named is None else named.calls


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
    elsewhere = names_elsewhere().get(plain)
    known = elsewhere.text if elsewhere else short.get(plain, "")
    # What is said may be a call, or a sentence: it starts with the name of the class.
    if meant is None and re.split(r"\W", known)[0] in names.values():
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
