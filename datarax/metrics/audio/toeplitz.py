"""Linear equations with a symmetric Toeplitz matrix."""

import jax

from datarax._xp import lax, xp


def solve_toeplitz(column: jax.Array, right: jax.Array) -> jax.Array:
    """The solution x of `A x = right`, where `A[i, j] = column[|i - j|]` is positive definite.

    The recursion of N. Levinson (1946), in L steps with L numbers of memory. Its residual is
    comparable to that of a Cholesky factorization: G. Cybenko (1980),
    https://doi.org/10.1137/0901021.

    Args:
        column: the first column of the matrix, (L,).
        right: (L,).
    """
    zero = column[:1] * 0 + right[:1] * 0
    rest = column[1:] / column[0]

    def shifted(x: jax.Array) -> jax.Array:
        return xp.concatenate([zero, x[:-1]])

    def larger(
        now: tuple[jax.Array, jax.Array, jax.Array], b: jax.Array
    ) -> tuple[tuple[jax.Array, jax.Array, jax.Array], None]:
        # Of the leading n equations: the solutions for the first and for the last unit vector, and
        # that for `right`, backwards. All entries from n on are zero.
        first, last, backwards = now
        after = shifted(last)
        error, missing = xp.sum(rest * last[:-1]), xp.sum(rest * backwards[:-1])
        scale = 1 / (1 - error * error)
        first, last = scale * (first - error * after), scale * (after - error * first)
        return (first, last, shifted(backwards) + (b - missing) * first), None

    right = right / column[0]
    unit = xp.concatenate([zero + 1, rest * 0])
    start = unit, unit, unit * right[0]
    (_, _, backwards), _ = lax.scan(larger, start, right[1:])
    return backwards[::-1]
