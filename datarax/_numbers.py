"""Numbers as text: the same digits in the terminal, in figures and in reports."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal

SIGNIFICANT = 4  # digits of a number if nothing else is known
MOST_DECIMALS = 8

Ends = tuple[float | None, float | None]
"""The ends of an interval; None if there is none."""


def number(
    value: float | None,
    decimals: int | None = None,
    *,
    digits: int = SIGNIFICANT,
    sign: bool = False,
) -> str:
    """`value` with this many decimals, or with so many significant digits; integers as they are.

    A number with many digits before the point, or zeros after it, is written with a power of ten.
    `sign` asks for a plus sign, as of a difference.

    >>> number(0.0012345678), number(0.93127, 2), number(1234567.8), number(3.2e-9), number(None)
    ('0.001235', '0.93', '1,234,568', '3.200e-09', 'NaN')
    """
    plus = "+" if sign else ""
    if value is None or math.isnan(value):
        return "NaN"
    if isinstance(value, int) and decimals is None:
        return f"{value:{plus},}"
    if math.isinf(value):
        return f"{value:{plus}}"
    exponent = math.floor(math.log10(abs(value))) if value else 0
    if decimals is None:
        decimals = digits - 1 - exponent
        # Down to 0.01 there are at most so many decimals, so that shares have equally many.
        decimals = min(decimals, digits) if exponent >= -2 else decimals
    if exponent >= 9 or (exponent < -4 and decimals > MOST_DECIMALS - 2):
        return f"{value:{plus}.{min(max(0, exponent + decimals), MOST_DECIMALS)}e}"
    # "z": what rounds to zero has no minus sign.
    return f"{value:{plus}z,.{min(max(0, decimals), MOST_DECIMALS)}f}"


def trimmed(text: str) -> str:
    """A number without zeros at its end, which a scale does not need.

    >>> trimmed("0.50"), trimmed("100"), trimmed("3.0"), trimmed("2.00e+09")
    ('0.5', '100', '3', '2e+09')
    """
    mantissa, e, power = text.partition("e")
    return (mantissa.rstrip("0").rstrip(".") if "." in mantissa else mantissa) + e + power


def known_decimals(lower: float | None, upper: float | None, digits: int = 2) -> int | None:
    """Returns the number of decimals that an interval justifies: that of half of its width.

    Less than zero if digits before the point are unknown; `None` if the interval says nothing.

    >>> known_decimals(0.927, 0.9354), known_decimals(None, None)
    (4, None)
    """
    if lower is None or upper is None or not 0 < (half := (upper - lower) / 2) < math.inf:
        return None
    # The first digit of the half stands for 10**floor(log10(half)).
    return digits - 1 - math.floor(math.log10(half))


def justified(interval: Ends, bounds: Ends) -> int | None:
    """Returns the number of decimals of a value.

    Without an interval, the certain bounds say how many digits of the value are known.

    >>> justified((0.927, 0.9354), (None, None)), justified((None, None), (0.472094, 0.472176))
    (4, 5)
    """
    decimals = known_decimals(*interval)
    return known_decimals(*bounds, digits=1) if decimals is None else decimals


def aligned(rows: Sequence[tuple[int | None, Iterable[float | None]]]) -> list[int | None]:
    """Returns the decimals of each row of a column, so that all rows have equally many.

    A row is the number of decimals that its interval justifies, and what it shows. All have 3 or 4
    decimals, whichever more rows justify; and 4 if no row says. Only a row with a value of 100 or
    more, or one of which fewer than two digits would be left, keeps its own.

    >>> aligned([(3, [0.853]), (3, [0.7]), (8, [1.0]), (None, [0.12]), (5, [0.001]), (0, [812.0])])
    [3, 3, 3, 3, 5, 0]
    """
    counts = Counter(min(max(own, 3), SIGNIFICANT) for own, _ in rows if own is not None)
    common = max(counts, key=lambda decimals: (counts[decimals], decimals), default=SIGNIFICANT)
    found = []
    for own, values in rows:
        known = [abs(x) for x in values if x is not None and math.isfinite(x)]
        small = 0 < max(known, default=0) < 10 ** (1 - common) and (own is None or own > common)
        found.append(own if small or max(known, default=0) >= 100 else common)
    return found


def outward(lower: float | None, upper: float | None, decimals: int | None) -> Ends:
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
