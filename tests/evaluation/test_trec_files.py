"""`--qrels`: runs and judgements of TREC, beside trec_eval on the same files."""

import bz2
import gzip
import json
import re

import numpy as np
import pytest
import pytrec_eval

from datarax.cli import main
from datarax.evaluation.identity import identity_of
from datarax.evaluation.trec_files import table_of

# The name in trec_eval, the measure to ask for, and the metric.
METRICS = {
    "ndcg": ("ndcg", "ndcg"),
    "ndcg_cut_10": ("ndcg_cut.10", "ndcg_at_10"),
    "map": ("map", "map"),
    "map_cut_5": ("map_cut.5", "map(k=5)"),
    "recip_rank": ("recip_rank", "mrr"),
    "P_5": ("P.5", "precision_at_k(k=5)"),
    "recall_20": ("recall.20", "recall_at_k(k=20)"),
    "success_5": ("success.5", "hit_rate(k=5)"),
    "Rprec": ("Rprec", "r_precision"),
    "bpref": ("bpref", "bpref"),
    "infAP": ("infAP", "inferred_ap"),
}
ALL = ",".join(name for _, name in METRICS.values())
DOCUMENTS = [f"{name}{i:02d}" for i in range(20) for name in ("FT", "é", "雪-")]


def drawn(rng, runs=1):
    """Lines of judgements and of runs: ties, unjudged documents, queries in one of them only."""
    qrels, first = [], rng.integers(0, 3)
    for q in rng.permutation(30):
        for doc in rng.choice(DOCUMENTS, 25, replace=False):
            grades = [0, -1] if q % 10 == 9 else [0, 0, 0, 1, 2, -1]
            qrels.append((f"q{q}", "0", doc, str(rng.choice(grades))))
    found = []
    for _ in range(runs):
        lines = []
        for q in rng.permutation(np.arange(first + 1, 33)):
            for rank, doc in enumerate(rng.choice(DOCUMENTS, rng.integers(1, 40), replace=False)):
                score = rng.choice([rng.normal(), rng.integers(-3, 4) / 2])
                lines.append((f"q{q}", "Q0", doc, str(rank), f"{score:.6g}", "tag"))
        found.append([lines[i] for i in rng.permutation(len(lines))])
    return qrels, *found


def written(path, lines, sep="\t"):
    path.write_text("".join(f"{sep.join(line)}\n" for line in lines))
    return path


def by_trec_eval(qrels, run, *, all_queries=False):
    """The values of trec_eval by query."""
    judged, found = {}, {}
    for q, _, doc, relevance in qrels:
        judged.setdefault(q, {})[doc] = int(relevance)
    for q, _, doc, _, score, _ in run:
        found.setdefault(q, {})[doc] = float(score)
    if all_queries:
        found |= {q: {} for q in judged if q not in found}
    measures = {measure for measure, _ in METRICS.values()}
    return pytrec_eval.RelevanceEvaluator(judged, measures).evaluate(found)


def given(command, qrels, *runs, metrics=ALL):
    return [command, *map(str, runs), "--task", "ranking", "--qrels", str(qrels), "--metrics",
            metrics, "--no-progress"]  # fmt: skip


def summary_of(argv, output, name="metrics.json"):
    assert main([*argv, "--output", str(output)]) == 0
    return json.loads((output / name).read_text())


def refused(capsys, argv):
    with pytest.raises(SystemExit):
        main(argv)
    return capsys.readouterr().err.replace("\n", " ")


def test_equals_trec_eval(rng, tmp_path, capsys):
    qrels, run = drawn(rng)
    paths = written(tmp_path / "qrels", qrels, " "), written(tmp_path / "run.txt", run)
    for more in ((), ("--all-queries", "--batch-size", "50")):
        want = by_trec_eval(qrels, run, all_queries=bool(more))
        summary = summary_of([*given("evaluate", *paths), *more], tmp_path / f"out{len(more)}")
        got = {each["name"]: each for each in summary["metrics"]}
        assert len(got) == len(METRICS)
        for name, (_, ours) in METRICS.items():
            values = np.array([each[name] for each in want.values()])
            np.testing.assert_allclose(got[ours]["value"], values.mean(), atol=1e-12, err_msg=name)
            # Queries are the examples.
            error = values.std(ddof=1) / len(values) ** 0.5
            np.testing.assert_allclose(got[ours]["std_error"], error, rtol=1e-6, err_msg=name)
        notes = " ".join(summary["notes"])
        judged, queries = {line[0] for line in qrels}, {line[0] for line in run}
        assert f"{len(queries - judged)} of {len(queries)} queries have no judgement" in notes
        assert f"{len(judged - queries)} of {len(judged)} judged queries are not in" in notes
        assert "have the score of the one before" in notes
        assert "the ranks are in another order than the scores" in notes
        assert "3 of " in notes
        assert "have no relevant document" in notes
    assert "--all-queries counts them" in capsys.readouterr().out


def test_a_comparison_pairs_queries(rng, tmp_path):
    qrels, a, b = drawn(rng, 2)
    # Only one of the runs has these queries.
    a = [line for line in a if line[0] != "q7"]
    b = [line for line in b if line[0] not in ("q8", "q11")]
    paths = [written(tmp_path / name, x) for name, x in zip("qab", (qrels, a, b), strict=True)]
    of_a, of_b = by_trec_eval(qrels, a), by_trec_eval(qrels, b)
    for more in ((), ("--bootstrap", "2", "--all-queries")):
        summary = summary_of([*given("compare", *paths), *more], tmp_path / f"out{len(more)}")
        if more:
            of_a, of_b = (by_trec_eval(qrels, x, all_queries=True) for x in (a, b))
        both = sorted({*of_a} & {*of_b})
        got = {each["name"]: each for each in summary["metrics"]}
        for name, (_, ours) in METRICS.items():
            x, y = (np.array([each[q][name] for q in both]) for each in (of_a, of_b))
            found = got[ours]
            values = [found[key] for key in ("a", "b", "difference")]
            want = [x.mean(), y.mean(), (y - x).mean()]
            np.testing.assert_allclose(values, want, atol=1e-12, err_msg=name)


def test_any_spelling_of_the_files(rng, tmp_path):
    qrels, run = drawn(rng)
    paths = written(tmp_path / "qrels", qrels), written(tmp_path / "run", run)
    want = table_of(*map(identity_of, paths[::-1]))
    text = "# of trec_eval 10\r\n\r\n" + "".join(f"  {'   '.join(x)}\r\n" for x in qrels)
    for name, module in {"qrels.gz": gzip, "qrels.bz2": bz2}.items():
        (tmp_path / name).write_bytes(module.compress(f"\ufeff{text}".encode()))
        got = table_of(identity_of(paths[1]), identity_of(tmp_path / name))
        for column, values in got.columns.items():
            expected = np.asarray(want.columns[column])
            np.testing.assert_array_equal(np.asarray(values), expected, err_msg=column)
    (tmp_path / "run.16").write_text(paths[1].read_text(), encoding="utf-16")
    (tmp_path / "qrels.16").write_text(paths[0].read_text(), encoding="utf-16")
    sixteen = (identity_of(tmp_path / name) for name in ("run.16", "qrels.16"))
    got = table_of(*sixteen, encoding="utf-16")
    np.testing.assert_array_equal(got.columns["preds"], want.columns["preds"])


RUN, QRELS = "q1 Q0 d1 1 0.5 t\n", "q1 0 d1 1\n"
FAULTS = {
    "a field is missing": (RUN + "q1 Q0 d2 2 0.4\n", QRELS, "run: line 2: it has 5 fields; exp"),
    "a name with a space": ("q1 Q0 d 1 1 0.5 t\n", QRELS, "line 1: it has 7 fields; .*white space"),
    "no number": ("\n" + RUN + "q1 Q0 d2 2 x t\n", QRELS, "line 3: the score is 'x'"),
    "NaN": ("q1 Q0 d1 1 nan t\n", QRELS, "line 1: the score is 'nan'; expected a number"),
    "twice": (RUN * 2, QRELS, "line 2: the document 'd1' is there twice for the query 'q1'"),
    "judged twice": (RUN, QRELS * 2, "qrels: line 2: the document 'd1' is there twice"),
    "no integer": (RUN, "q1 0 d1 0.5\n", "qrels: line 1: the relevance is '0.5'; expected an int"),
    "of BEIR": (RUN, "query-id\tcorpus-id\tscore\n", "line 1: it has 3 fields; expected 4: query"),
    "the other way round": (QRELS, RUN, "qrels: line 1: it has 6 fields.*a line of a run"),
    "judgements as a run": (QRELS, QRELS, "run: line 1: it has 4 fields.*a line of judgements"),
    "other queries": (RUN, "1 0 d1 1\n", "none of its 1 queries is in .*it has 'q1'.* have '1'"),
    "empty": ("", QRELS, "run: the file is empty"),
    "no lines": ("# nothing\n", QRELS, "no line of a run: query Q0 document rank score tag"),
    "no judgement": (RUN, "\n", "qrels: the file has no line of judgements"),
    "no text far below": (
        RUN, "".join(f"q1 0 d{i} 1\n" for i in range(150_000)).encode() + b"\xff",
        "qrels: line 150,001: it is no text",
    ),
    "no text": (RUN, b"q1 0 d\xff 1\n", "qrels: line 1: it is no text in utf-8; give --encoding"),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_errors_name_the_file_and_the_line(name, tmp_path, capsys):
    run, qrels, said = FAULTS[name]
    paths = tmp_path / "qrels", tmp_path / "run"
    for path, contents in zip(paths, (qrels, run), strict=True):
        path.write_bytes(contents if isinstance(contents, bytes) else contents.encode())
    found = refused(capsys, given("evaluate", *paths))
    assert re.search(said, found), found
    assert str(tmp_path) in found


def test_arguments_that_do_not_go_together(tmp_path, capsys):
    qrels, run = (
        written(tmp_path / "qrels", [QRELS.split()]),
        written(tmp_path / "run", [RUN.split()]),
    )
    argv = given("evaluate", qrels, run)
    assert main([*given("compare", qrels, f"{tmp_path}/./run", run), "--bootstrap", "2"]) == 0
    for more in ("--preds x", "--target x", "--query x", "--slice-by x", "--cluster-by x"):
        said = refused(capsys, [*argv, *more.split()])
        assert f"{more.split()[0]}: is not for --qrels" in said
    assert "needs --qrels" in refused(capsys, [
        "evaluate", str(run), "--task", "ranking", "--preds", "x", "--target", "y", "--query", "q",
        "--all-queries",
    ])  # fmt: skip
    assert "is for --task ranking" in refused(capsys, [
        "evaluate", str(run), "--task", "binary", "--qrels", str(qrels),
    ])  # fmt: skip
    more = written(tmp_path / "more", [RUN.split()])
    assert "takes one run, got 2" in refused(capsys, [argv[0], str(more), *argv[1:]])
    assert "no such file" in refused(capsys, given("evaluate", tmp_path / "none", run))


def test_a_report_and_a_curve(rng, tmp_path, capsys):
    qrels, run = drawn(rng)
    paths = written(tmp_path / "qrels", qrels), written(tmp_path / "run", run)
    metrics = "ndcg:k=10,retrieval_precision_recall_curve,mrr:empty=skip,fall_out:k=5"
    summary = summary_of(given("evaluate", *paths, metrics=metrics), tmp_path / "out")
    assert any(
        "retrieval_precision_recall_curve: its value is an array" in x for x in summary["notes"]
    )
    assert [each["name"] for each in summary["metrics"]] == [
        "ndcg(k=10)", "mrr(empty=skip)", "fall_out(k=5)"
    ]  # fmt: skip
    assert all(each["id"].startswith("q") for each in summary["largest_losses"]["rows"])
    page = (tmp_path / "out" / "report.html").read_text()
    assert "judged queries are not in the run" in page
    again = summary_of([*given("evaluate", *paths, metrics=metrics), "--engine", "processes",
                        "--workers", "1"], tmp_path / "again")  # fmt: skip
    assert again["metrics"] == summary["metrics"]
