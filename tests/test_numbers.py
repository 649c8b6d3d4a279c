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
    shown = metric_row(row)["reading"].text
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
