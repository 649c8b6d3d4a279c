"""Numbers as text: as many digits as are known, and readable at any magnitude."""

import math
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal

NO_DATA = "—"
MINUS, TIMES = "\u2212", "\u00d7"
SIGNIFICANT = 4  # digits of a number if nothing else is known
MOST_DECIMALS = 8
SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def known_decimals(lower: float | None, upper: float | None, digits: int = 2) -> int | None:
    """How many decimals an interval justifies: half of its width has this many digits.

    Less than zero if digits before the point are unknown; `None` if the interval says nothing.

    >>> known_decimals(0.927, 0.9354), known_decimals(None, None)
    (4, None)
    """
    if lower is None or upper is None or not 0 < (half := (upper - lower) / 2) < math.inf:
        return None
    # The first digit of the half stands for 10**floor(log10(half)).
    return digits - 1 - math.floor(math.log10(half))


def number(value: float | None, decimals: int | None = None) -> str:
    """`value` with this many decimals, or with four significant digits.

    A number with many digits before the point, or zeros after it, is written with a power of ten.

    >>> number(0.93127), number(0.93127, 2), number(1234567.8), number(3.2e-9)[-4:], number(None)
    ('0.9313', '0.93', '1,234,568', '10⁻⁹', '—')
    """
    if value is None or math.isnan(value):
        return NO_DATA
    if math.isinf(value):
        return "∞" if value > 0 else f"{MINUS}∞"
    exponent = math.floor(math.log10(abs(value))) if value else 0
    if decimals is None:
        decimals = SIGNIFICANT - 1 - exponent
        # Down to 0.01 there are at most four decimals, so that shares have equally many.
        decimals = min(decimals, SIGNIFICANT) if exponent >= -2 else decimals
    if exponent >= 9 or (exponent < -4 and decimals > MOST_DECIMALS - 2):
        digits = min(max(0, exponent + decimals), MOST_DECIMALS)
        mantissa, power = f"{value:.{digits}e}".split("e")
        text = f"{mantissa}{TIMES}10{str(int(power)).translate(SUPERSCRIPTS)}"
    else:
        # "z": what rounds to zero has no minus sign.
        text = f"{value:z,.{min(max(0, decimals), MOST_DECIMALS)}f}"
    return text.replace("-", MINUS)


def count(value: int | None) -> str:
    """A number of things, with all its digits.

    >>> count(12345678901)
    '12,345,678,901'
    """
    return NO_DATA if value is None else f"{value:,}"


def outward(
    lower: float | None, upper: float | None, decimals: int | None
) -> tuple[float | None, float | None]:
    """Bounds with this many decimals, rounded so that what was between them still is.

    >>> outward(0.12345, 0.12345, 3)
    (0.123, 0.124)
    """
    if lower is None or upper is None or decimals is None or not math.isfinite(upper - lower):
        return lower, upper
    unit = Decimal(1).scaleb(-decimals)
    # As decimals: a product of floats could round inward.
    low = Decimal(repr(lower)).quantize(unit, ROUND_FLOOR)
    return float(low), float(Decimal(repr(upper)).quantize(unit, ROUND_CEILING))


def trimmed(text: str) -> str:
    """A number without zeros at its end, which a scale does not need.

    >>> trimmed("0.50"), trimmed("100"), trimmed("3.0")
    ('0.5', '100', '3')
    """
    mantissa, times, power = text.partition(TIMES)
    return (mantissa.rstrip("0").rstrip(".") if "." in mantissa else mantissa) + times + power


def interval(lower: float | None, upper: float | None, decimals: int | None = None) -> str:
    """Both ends, or a dash where one is not known.

    >>> interval(0.91, 0.9312, 3)
    '0.910 to 0.931'
    """
    ends = number(lower, decimals), number(upper, decimals)
    return NO_DATA if NO_DATA in ends else " to ".join(ends)
