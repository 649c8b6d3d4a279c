"""A number has the same digits wherever it is shown."""

import pytest

from datarax._numbers import number, trimmed
from datarax.cli.console_tables import metrics_table
from datarax.evaluation.html_tables import metric_row
from datarax.io import ConsoleWriter


@pytest.mark.parametrize("value", [0.0012345, 0.0, 0.93127, 12.3456, 1234567.8, 3.2e9])
def test_the_terminal_a_log_and_a_report_show_the_same(value, capsys):
    text = number(value)
    row = {"name": "x", "value": value, "lower": None, "upper": None, "bounds": None}
    _, shown = metrics_table({"metrics": [row]}).columns
    assert list(shown.cells)[-1] == text
    with ConsoleWriter(on_error="raise") as writer:
        writer.write(1, {"x": value})
    assert capsys.readouterr().out.split()[-1] == text.replace(",", "")
    mantissa, _, power = text.partition("e")
    shown = metric_row(row)["reading"]["text"]
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


def test_the_terminal_shows_the_digits_that_are_known():
    """Bounds are rounded outward, so that the exact value stays between them."""
    row = {"name": "x", "value": 0.47213, "lower": None, "upper": None}
    rows = [
        row | {"lower": 0.46012, "upper": 0.48422, "bounds": None},
        row | {"bounds": [0.472094, 0.472176]},
    ]
    columns = metrics_table({"metrics": rows, "confidence": 0.95}).columns
    assert [[str(cell) for cell in column.cells] for column in columns] == [
        ["x", "x"], ["0.472", "0.47213"], ["0.460 to 0.484", ""], ["", "0.47209 to 0.47218"],
    ]  # fmt: skip
