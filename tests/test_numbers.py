"""A number has the same digits wherever it is shown."""

import pytest

from datarax._numbers import number, trimmed
from datarax.cli.console_tables import metrics_table
from datarax.evaluation.html_tables import decimals_of_metrics, metric_row
from datarax.io import ConsoleWriter


@pytest.mark.parametrize("value", [0.0012345, 0.0, 0.93127, 12.3456, 1234567.8, 3.2e9])
def test_the_terminal_and_a_report_show_the_same_and_a_log_all_digits(value, capsys):
    row = {"name": "x", "value": value, "lower": None, "upper": None, "bounds": None}
    (decimals,) = decimals_of_metrics([row])
    text = number(value, decimals)
    _, shown = metrics_table({"metrics": [row]}).columns
    assert list(shown.cells)[-1] == text
    with ConsoleWriter(on_error="raise") as writer:
        writer.write(1, {"x": value})
    assert capsys.readouterr().out.split()[-1] == number(value).replace(",", "")
    mantissa, _, power = text.partition("e")
    shown = metric_row(row, decimals)["reading"]["text"]
    assert shown.startswith(mantissa)
    assert ("10" in shown.removeprefix(mantissa)) == bool(power)


def test_signs_integers_and_what_is_no_number():
    assert [number(x, sign=True) for x in (0.05, -0.05, 0.0, -0.0, 7)] == [
        "+0.0500", "-0.0500", "+0.000", "+0.000", "+7",
    ]  # fmt: skip
    assert [number(x) for x in (2**63, None, float("nan"), float("-inf"))] == [
        "9,223,372,036,854,775,808", "NaN", "NaN", "-inf",
    ]  # fmt: skip
    assert [trimmed(number(x, digits=3)) for x in (0.5, 95.0, 1e-9)] == ["0.5", "95", "1e-09"]


def test_the_terminal_shows_the_digits_that_most_rows_know():
    """Bounds are rounded outward, so that the exact value stays between them."""
    row = {"name": "x", "value": 0.47213, "lower": None, "upper": None}
    rows = [
        row | {"lower": 0.46012, "upper": 0.48422, "bounds": None},
        row | {"bounds": [0.472094, 0.472176]},
    ]
    columns = metrics_table({"metrics": rows, "confidence": 0.95}).columns
    assert [[str(cell) for cell in column.cells] for column in columns] == [
        ["x", "x"], ["0.4721", "0.4721"], ["0.4601 to 0.4842", ""], ["", "0.47209 to 0.47218"],
    ]  # fmt: skip


def test_a_column_has_one_precision():
    """But for values that are large, or of which hardly a digit would be left."""
    value = {"bounds": None, "lower": None, "upper": None}
    rows = [
        {"value": 0.85312, "lower": 0.823, "upper": 0.879},
        {"value": 0.9, "lower": 0.879, "upper": 0.921},
        {"value": 1.0, "lower": 1 - 1e-9, "upper": 1.0},
        {"value": 0.12612},
        {"value": 0.0012345},
        {"value": 81234.5, "lower": 80000.0, "upper": 82000.0},
    ]
    rows = [value | {"name": "x"} | row for row in rows]
    table = metrics_table({"metrics": rows, "confidence": 0.95})
    shown = [*table.columns[1].cells]
    assert shown == ["0.853", "0.900", "1.000", "0.126", "0.001234", "81,234"]
    decimals = decimals_of_metrics(rows)
    assert [
        metric_row(row, n)["reading"]["text"] for row, n in zip(rows, decimals, strict=True)
    ] == (shown)
