"""How many bytes the state of a metric takes: what one copy, on one device, holds.

python benchmarks/memory.py          prints the table
python benchmarks/memory.py --write  writes it into docs/memory.md
"""

import argparse
import sys
from pathlib import Path

import jax

from datarax import Bootstrap, Collection, Metric, Sliced
from datarax import metrics as m

PAGE = Path(__file__).parent.parent / "docs" / "memory.md"
START, END = "<!-- table -->", "<!-- /table -->"

CASES = {
    "`Mean`, `Sum`, `MeanSquaredError`": m.Mean(),
    "`Accuracy`, any number of classes": m.Accuracy(num_classes=1000),
    "`F1`, `Precision`, `Recall` and others by class, 10 classes": m.F1(num_classes=10),
    "`F1` and those, 1,000 classes": m.F1(num_classes=1000),
    "`ConfusionMatrix`, 10 classes": m.ConfusionMatrix(num_classes=10),
    "`ConfusionMatrix`, 1,000 classes": m.ConfusionMatrix(num_classes=1000),
    "`AUROC` and other metrics of curves, binary": m.AUROC(),
    "`AUROC`, 10 classes": m.AUROC(num_classes=10),
    "`AUROC`, 100 classes": m.AUROC(num_classes=100),
    "`AUROC`, 1,000 classes": m.AUROC(num_classes=1000),
    "`AUROC(exact=True, capacity=1_000_000)`": m.AUROC(exact=True, capacity=1_000_000),
    "`CalibrationError`, 15 bins": m.CalibrationError(),
    "`Quantile`, `Median`": m.Quantile(0.9),
    "`NDCG`, `MRR`": m.NDCG(),
    "`BLEU`": m.BLEU(),
    "`SpearmanCorrCoef`, `KendallTau`": m.SpearmanCorrCoef(),
    "`SpearmanCorrCoef(exact=True, capacity=1_000_000)`": m.SpearmanCorrCoef(
        exact=True, capacity=1_000_000
    ),
    "`PearsonCorrCoef`, `R2Score`": m.R2Score(),
    "`FID`, 2,048 features": m.FID(num_features=2048),
    "`Sliced(Accuracy, 1000)`": Sliced(m.Accuracy(num_classes=10), 1000),
    "`Bootstrap(Accuracy)`, 200 replicas": Bootstrap(m.Accuracy(num_classes=10)),
    "`Bootstrap(AUROC)`, 200 replicas": Bootstrap(m.AUROC()),
    "a `Collection` of accuracy, F1, precision and recall, 10 classes": Collection(
        {
            "accuracy": m.Accuracy(num_classes=10),
            "f1": m.F1(num_classes=10),
            "precision": m.Precision(num_classes=10),
            "recall": m.Recall(num_classes=10),
        }
    ),
}


def nbytes(metric: Metric) -> int:
    """The bytes of all arrays of a metric."""
    return sum(leaf.nbytes for leaf in jax.tree.leaves(metric))


def shown(count: int) -> str:
    for size, unit in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count} bytes"


def table() -> str:
    lines = ["| metric | state |", "| --- | ---: |"]
    lines += [f"| {name} | {shown(nbytes(metric))} |" for name, metric in CASES.items()]
    return "\n".join(lines)


def written(page: str) -> str:
    """The page with the table of now."""
    head, rest = page.split(START)
    return f"{head}{START}\n\n{table()}\n\n{END}{rest.split(END)[1]}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="write the table into docs/memory.md")
    if parser.parse_args().write:
        PAGE.write_text(written(PAGE.read_text()))
    else:
        sys.stdout.write(table() + "\n")


if __name__ == "__main__":
    main()
