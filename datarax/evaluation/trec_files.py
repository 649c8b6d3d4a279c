"""Runs and judgements (qrels) in the files of TREC, as a row for each document of a query.

The formats, the order of equal scores and what counts are those of trec_eval:
https://github.com/usnistgov/trec_eval.
"""

import codecs
import math
import re
from array import array
from collections.abc import Generator, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from datarax._errors import MetricInputError
from datarax._optional import optional
from datarax.evaluation.identity import FileIdentity, unchanged
from datarax.evaluation.locations import read_pieces
from datarax.evaluation.tables import Column, ColumnType, Part, TableFile, Types, key_of, reading

if TYPE_CHECKING:
    import pyarrow

_PIECE = 2**20
_INTEGER = re.compile(r"[+-]?\d{1,9}", re.ASCII)
_RUN = ("query", "Q0", "document", "rank", "score", "tag")
_QRELS = ("query", "iteration", "document", "relevance")
TYPES: Types = {
    "query": ColumnType("text", 0, False, "string"),
    "preds": ColumnType("float", 0, False, "double"),
    "target": ColumnType("integer", 0, False, "int32"),
    "retrieved": ColumnType("boolean", 0, False, "bool"),
    "judged": ColumnType("boolean", 0, False, "bool"),
    "pooled": ColumnType("boolean", 0, False, "bool"),
}
"""The columns. Documents are ranked by `preds`, which no two of a query share; what was not
retrieved has no rank. The relevance of what was not judged is 0."""

Documents = dict[str, int]
"""Relevance by document; negative for one of the pool that was not judged."""


class TrecTable(NamedTuple):
    """The queries that count, with the documents that were retrieved or judged."""

    columns: "dict[str, pyarrow.Array | np.ndarray]"
    remarks: tuple[str, ...]
    """What a user should know of the two files."""

    @property
    def rows(self) -> int:
        """The number of documents of all queries."""
        return len(self.columns["preds"])


class TrecFile(TableFile):
    """A run; the judgements are the file `beside` of its format.

    The runs `among` which it is are compared: their tables have the same rows.
    """

    def layout(self) -> tuple[list[tuple[str, ColumnType]], list[Part]]:
        rows = self.whole().rows
        part = Part(self.file, 0, 1, key_of(self.path), rows, counted=True, start=0)
        return [*TYPES.items()], [part]

    def read(self, part: Part, types: Types, rows: int) -> Generator[dict[str, Column], None, None]:
        table = self.whole()
        for start in range(0, table.rows, rows):
            yield {name: table.columns[name][start : start + rows] for name in types}

    def whole(self) -> TrecTable:
        """Both files.

        Raises:
            MetricInputError: one of them is not what is expected; names it, and the line.
        """
        text = self.text
        assert text.beside is not None
        return table_of(self.file, text.beside, text.among, text.all_queries, text.encoding)


@lru_cache(maxsize=4)
def table_of(
    run: FileIdentity,
    qrels: FileIdentity,
    among: tuple[FileIdentity, ...] = (),
    all_queries: bool = False,
    encoding: str = "utf-8",
) -> TrecTable:
    """The table of a run and the judgements: see `TrecFile`.

    Args:
        run: the file of the run.
        qrels: the file of the judgements.
        among: the runs that are compared, this one too; none if it stands alone.
        all_queries: True if a judged query counts that is not in the run: nothing was retrieved.
        encoding: of all files.
    """
    # Cached, because it is asked for several times: of its columns, its remarks and its rows.
    judged = judgements_of(qrels, encoding)
    runs = {file.resolved: run_of(file, encoding) for file in among or (run,)}
    own = runs[run.resolved]
    common = [q for q in judged if all(q in each.documents for each in runs.values())]
    if not any(q in own.documents for q in judged):
        some, others = next(iter(own.documents)), next(iter(judged))
        raise MetricInputError(
            f"{run.path}: none of its {len(own.documents):,} queries is in {qrels.path}: it has "
            f"{some!r}, and the judgements have {others!r}. Name the judgements of these queries"
        )
    if not common and not all_queries:
        both = " and ".join(file.path for file in among)
        raise MetricInputError(f"{both}: no query is in both runs and in {qrels.path}")
    counted = [*judged] if all_queries else common
    remarks = [
        *_of_queries(run.path, own, judged, qrels.path, counted, all_queries),
        *_of_documents(run.path, own, judged, counted),
    ]
    return TrecTable(_columns(own, [*runs.values()], judged, counted), tuple(remarks))


class Run(NamedTuple):
    """The documents that each query has retrieved."""

    documents: dict[str, list[str]]
    """By query, the documents from the first rank on."""
    tied: dict[str, int]
    """By query, how many documents have the score of the one before them."""
    disordered: frozenset[str]
    """The queries in which the ranks of the file are in another order than the scores."""


@lru_cache(maxsize=2)
def run_of(file: FileIdentity, encoding: str) -> Run:
    """The run in a file.

    Raises:
        MetricInputError: a line is not of the format, or a document is there twice; names the line.
    """
    path, scores = file.path, dict[str, dict[str, float]]()
    ranks = dict[str, array]()
    for number, parts in _lines(file, _RUN, encoding):
        query, _, document, rank, text, _ = parts
        score = _score(text)
        if score is None:
            raise _fault(path, number, f"the score is {text!r}; expected a number")
        found = scores.setdefault(query, {})
        if document in found:
            raise _fault(path, number, _twice(document, query))
        found[document] = score
        # Only to compare both orders: trec_eval does not look at ranks.
        ranks.setdefault(query, array("d")).append(_score(rank) or 0.0)
    if not scores:
        raise MetricInputError(f"{path}: the file has no line of a run: {' '.join(_RUN)}")
    documents, tied, disordered = {}, {}, set[str]()
    for query, found in scores.items():
        values = np.fromiter(found.values(), np.float64, len(found))
        by_score = np.lexsort((ranks[query], -values))
        by_rank, values = np.asarray(ranks[query])[by_score], values[by_score]
        if (by_rank[1:] < by_rank[:-1]).any():
            disordered.add(query)
        tied[query] = int((values[1:] == values[:-1]).sum())
        # Of equal scores, the greatest document comes first, in the order of the bytes of UTF-8,
        # which is that of the characters. Sorting keeps the order of equal scores, in reverse too.
        names = sorted(found, reverse=True)
        names.sort(key=found.__getitem__, reverse=True)
        documents[query] = names
    return Run(documents, tied, frozenset(disordered))


@lru_cache(maxsize=2)
def judgements_of(file: FileIdentity, encoding: str) -> dict[str, Documents]:
    """The judgements in a file, by query.

    Raises:
        MetricInputError: a line is not of the format, or a document is there twice; names the line.
    """
    path, found = file.path, dict[str, Documents]()
    for number, (query, _, document, text) in _lines(file, _QRELS, encoding):
        relevance = int(text) if _INTEGER.fullmatch(text) else None
        if relevance is None:
            raise _fault(path, number, f"the relevance is {text!r:.40}; expected an integer")
        documents = found.setdefault(query, {})
        if document in documents:
            raise _fault(path, number, _twice(document, query))
        documents[document] = relevance
    if not found:
        raise MetricInputError(f"{path}: the file has no line of judgements: {' '.join(_QRELS)}")
    return found


def _lines(
    file: FileIdentity, fields: Sequence[str], encoding: str
) -> Iterator[tuple[int, list[str]]]:
    """The fields of each line with its number, from 1; without empty lines and comments."""
    path = file.path
    with unchanged(file), reading(path):
        for number, line in enumerate(_text_lines(path, encoding), 1):
            parts = line.split()
            if not parts or line[0] == "#":
                continue
            if len(parts) != len(fields):
                raise _fault(path, number, _of_fields(parts, fields))
            yield number, parts


def _text_lines(path: str, encoding: str) -> Iterator[str]:
    """The lines of a file that may be compressed, or at a URI."""
    is_utf8 = codecs.lookup(encoding).name == "utf-8"
    # The mark at the start of a file in UTF-8 is no part of the first query.
    decoder = codecs.getincrementaldecoder("utf-8-sig" if is_utf8 else encoding)()
    rest, count = "", 0
    try:
        for piece in read_pieces(path, _PIECE):
            *lines, rest = (rest + decoder.decode(piece)).split("\n")
            yield from lines
            count += len(lines)
        rest += decoder.decode(b"", final=True)
    except UnicodeDecodeError as error:
        number = count + 1 + bytes(error.object[: error.start]).count(b"\n")
        raise _fault(path, number, f"it is no text in {encoding}; give --encoding") from None
    if rest:
        yield rest


def _of_fields(parts: Sequence[str], fields: Sequence[str]) -> str:
    """What is wrong with a line that has another number of fields."""
    other = _QRELS if fields is _RUN else _RUN
    hint = ""
    if len(parts) == len(other):
        hint = f"; it looks like a line of {'a run' if other is _RUN else 'judgements'}"
    elif len(parts) > len(fields):
        hint = "; names of queries and documents have no white space"
    return (
        f"it has {len(parts)} field{'s' * (len(parts) != 1)}; expected {len(fields)}: "
        f"{' '.join(fields)}{hint}"
    )


def _score(text: str) -> float | None:
    """A number; None if the text is none."""
    try:
        value = float(text)
    except ValueError:
        return None
    return None if math.isnan(value) or "_" in text else value


def _fault(path: str, number: int, said: str) -> MetricInputError:
    return MetricInputError(f"{path}: line {number:,}: {said}")


def _twice(document: str, query: str) -> str:
    return f"the document {document!r} is there twice for the query {query!r}; expected it once"


def _of_queries(
    path: str,
    run: Run,
    judged: Mapping[str, Documents],
    qrels: str,
    counted: Sequence[str],
    all_queries: bool,
) -> Iterator[str]:
    """Says which queries do not count, or count as 0."""
    unjudged = [q for q in run.documents if q not in judged]
    if unjudged:
        yield (
            f"{path}: {len(unjudged):,} of {len(run.documents):,} queries have no judgement in "
            f"{qrels} ({_some(unjudged)}); they are left out"
        )
    absent = [q for q in judged if q not in run.documents]
    if absent:
        what = (
            "nothing was retrieved for them, which counts"
            if all_queries
            else "they are left out, as by trec_eval; --all-queries counts them with nothing "
            "retrieved"
        )
        yield (
            f"{path}: {len(absent):,} of {len(judged):,} judged queries are not in the run "
            f"({_some(absent)}); {what}. {len(counted):,} queries count"
        )
    without = [q for q in counted if max(judged[q].values()) <= 0]
    if without:
        yield (
            f"{qrels}: {len(without):,} of {len(counted):,} queries have no relevant document "
            f"({_some(without)}); they count as 0, as in trec_eval, unless a metric has empty=skip"
        )


def _of_documents(
    path: str, run: Run, judged: Mapping[str, Documents], counted: Sequence[str]
) -> Iterator[str]:
    """Says how many documents have no judgement, and where scores leave the order open."""
    queries = [q for q in counted if q in run.documents]
    retrieved = sum(len(run.documents[q]) for q in queries)
    unjudged = sum(judged[q].get(doc, -1) < 0 for q in queries for doc in run.documents[q])
    if unjudged:
        yield (
            f"{path}: {unjudged:,} of {retrieved:,} retrieved documents have no judgement; they "
            f"count as not relevant, except in bpref and inferred_ap"
        )
    tied = sum(run.tied[q] for q in queries)
    if tied:
        yield (
            f"{path}: {tied:,} of {retrieved:,} retrieved documents have the score of the one "
            f"before; of equal scores the greater name comes first, as in trec_eval"
        )
    disordered = [q for q in queries if q in run.disordered]
    if disordered:
        yield (
            f"{path}: in {len(disordered):,} of {len(queries):,} queries ({_some(disordered)}) the "
            f"ranks are in another order than the scores; the highest score is the first, as in "
            f"trec_eval, whatever the rank"
        )


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")


def _columns(
    own: Run, runs: Sequence[Run], judged: Mapping[str, Documents], counted: Sequence[str]
) -> "dict[str, pyarrow.Array | np.ndarray]":
    """A row for each document: the retrieved ones of each run by rank, then the other judged."""
    pa = optional("pyarrow", "parquet", "reading files of TREC")
    sizes, place, target = list[int](), array("q"), array("q")
    judgement = array("b")
    for query in counted:
        found, known = own.documents.get(query, []), judged[query]
        rank = dict(zip(found, range(len(found)), strict=True))
        listed = dict.fromkeys(doc for each in runs for doc in each.documents.get(query, ()))
        listed |= dict.fromkeys(known)
        sizes.append(len(listed))
        for doc in listed:
            relevance = known.get(doc)
            place.append(rank.get(doc, -1))
            judgement.append(0 if relevance is None else 1 if relevance < 0 else 2)
            target.append(max(relevance or 0, 0))
    places, states = np.asarray(place, np.int64), np.asarray(judgement, np.int8)
    indices = pa.array(np.repeat(np.arange(len(counted), dtype=np.int32), sizes))
    queries = pa.DictionaryArray.from_arrays(indices, pa.array(list(counted), pa.string()))
    return {
        "query": queries.dictionary_decode(),
        "preds": np.where(places < 0, 0.0, -1.0 - places),
        "target": np.asarray(target, np.int64),
        "retrieved": places >= 0,
        "judged": states == 2,
        "pooled": states >= 1,
    }
