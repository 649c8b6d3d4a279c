"""Arithmetic without loss of digits: double-floats, 64-bit integers, sums, special functions."""

from datarax.numerics.double_float import DoubleFloat as DoubleFloat
from datarax.numerics.exact import Exact as Exact
