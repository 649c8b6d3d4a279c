"""Safe arithmetic: double-floats, 64-bit integers in limbs, sums, exact results, float grids."""

from datarax.numerics.double_float import DoubleFloat as DoubleFloat
from datarax.numerics.exact import Exact as Exact
