"""Where the largest eigenvalue of noise ends: thresholds that noise alone exceeds in one fit of a hundred.

A random symmetric matrix has an edge, and its largest eigenvalue lies near it. How far beyond the edge it can be is the
Tracy-Widom law. Everything here is in units of `entry`, the standard deviation of the noise on a diagonal entry, and follows
from public numbers. benchmarks/noise_verdict.py measures how often noise exceeds each of them.
"""

import math
from typing import Final

import numpy as np

from eigenveil.core.threads import Array
from eigenveil.errors import require

__all__ = ["LEVEL", "merged_edge", "norm_edge", "product_edge", "singular_edge", "spiked_edge", "symmetric_edge"]

# Noise alone exceeds a threshold this often. Both numbers are the upper 1% point: of the Tracy-Widom law for real symmetric
# matrices (Tracy and Widom 1996; tables of Bejan 2005), and of the normal law.
LEVEL: Final = 0.01
_TRACY_WIDOM: Final = 2.0234
_NORMAL: Final = 2.3263
# How much further out the largest eigenvalue may be if a direction is about to leave the noise, in units of row^(-1/6).
_AT_TRANSITION: Final = 0.9
_HALVINGS: Final = 60
_GRID: Final = 400


def symmetric_edge(dim: int) -> float:
    """For (M + M^T) / 2, where M, (d, d), has independent standard normal entries: what is added to a covariance.

    Entries off the diagonal have the variance 1/2. So the largest eigenvalue is about sqrt(2 d) + d^(-1/6) / sqrt(2) times a
    Tracy-Widom variable (Tracy and Widom 1996; Johnstone 2001). With 2 d - 1 in place of 2 d it holds for few columns too:
    exceeded by 0.8 to 1.2% for d = 2 to 800.

    >>> round(symmetric_edge(100), 3), round(math.sqrt(200), 3)
    (14.771, 14.142)
    """
    return math.sqrt(2 * dim - 1) + _TRACY_WIDOM / math.sqrt(2) * math.pow(dim, -1 / 6)


def product_edge(dim: int, width: int) -> float:
    """For the Ritz values of a noisy product with `width` vectors, whose entries have noise of standard deviation one.

    Let X be orthonormal, (d, w), and N the noise on G X, with G = 0. In a basis [X, Q] the Ritz matrix is [[H, T^T], [T, 0]]
    with H = (X^T N + N^T X) / 2, (w, w), and T, (m, w), where m = d - w. It is symmetric with independent entries, of
    variances 1/2 in H and 1 in T. Let u and 1/y be the mean diagonal entries of its resolvent at z in the two blocks. They
    solve 1/u = z - w u / 2 - m / y and y = z - w u (Helton, Rashidi Far and Speicher 2007). So z(u) = w u + y, where
    y^2 - a y - m = 0 and a = 1/u - w u / 2. The edge z* is the least z(u) over u > 0.

    Near it the trace of the resolvent behaves like a constant less kappa sqrt(z - z*), with
    kappa = (w + m d(1/y)/du) sqrt(2 / z''). So the largest eigenvalue exceeds the edge by kappa^(-2/3) times a Tracy-Widom
    variable (Lee and Schnelli 2016). For w = d that is `symmetric_edge`. Exceeded by 0.1 to 0.8%.

    >>> round(product_edge(800, 20), 2), round(math.sqrt(800) + math.sqrt(20), 2)
    (34.25, 32.76)
    """
    require(1 <= width <= dim, f"width must lie in 1..{dim}, got {width}")
    rest = dim - width
    if rest == 0:
        return symmetric_edge(dim)

    def lower(u: float) -> tuple[float, float, float]:
        """y and its first two derivatives, from those of a."""
        a, slope, bend = 1 / u - width * u / 2, -1 / u**2 - width / 2, 2 / u**3
        # The sum of a and the root loses all digits where a is negative. The product of both roots is -m.
        root = math.sqrt(a * a + 4 * rest)
        y = (a + root) / 2 if a > 0 else 2 * rest / (root - a)
        first = slope * y / root
        return y, first, (bend * y + 2 * slope * first - 2 * first**2) / root

    # z' = w + y' runs from minus infinity to w, and all edges lie near u = 1 / sqrt(d): bisection of the logarithm.
    low, high = math.log(1e-3 / math.sqrt(dim)), math.log(1e3 / math.sqrt(dim))
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if width + lower(math.exp(middle))[1] < 0 else (low, middle)
    least = math.exp(low)
    y, _, bend = lower(least)
    # At the edge y' = -w, so d(1/y)/du = w / y^2.
    kappa = width * (1 + rest / y**2) * math.sqrt(2 / bend)
    return float(width * least + y + _TRACY_WIDOM * kappa ** (-2 / 3))


def singular_edge(dim: int, width: int) -> float:
    """For the largest singular value of a (d, w) matrix of independent standard normal entries.

    Its square is about (sqrt(d - 1) + sqrt(w))^2 plus a Tracy-Widom variable times
    (sqrt(d - 1) + sqrt(w)) (1 / sqrt(d - 1) + 1 / sqrt(w))^(1/3) (Johnstone 2001, theorem 1.1).

    >>> round(singular_edge(800, 20), 2)
    33.38
    """
    one, other = math.sqrt(max(dim - 1, 1)), math.sqrt(width)
    square = (one + other) ** 2 + _TRACY_WIDOM * (one + other) * (1 / one + 1 / other) ** (1 / 3)
    return math.sqrt(square)


def norm_edge(dim: int, *, tries: int = 1) -> float:
    """For the largest norm of `tries` vectors of `dim` standard normal entries each.

    The squared norm has the chi-squared law. Each vector gets an equal part of the level.

    >>> round(norm_edge(1), 3), norm_edge(50) < norm_edge(50, tries=4)
    (2.576, True)
    """
    from scipy.special import gammaincinv

    return math.sqrt(2 * float(gammaincinv(dim / 2, 1 - LEVEL / tries)))


def merged_edge(dim: int, width: int, *, parts: float) -> float:
    """For a sum of `parts` noise matrices, each reduced to its `width` largest eigenvalues, those above zero.

    Sites that merge, and blocks of a stream, send no negative eigenvalue. So the mean of the noise does not cancel. Parts with
    independent noise are free of each other in the limit (Voiculescu 1991). Let G be the resolvent's mean of one part. The
    edge of the sum of n parts is the least n z - (n - 1) / G(z), over z above the part's own edge. For one part that is the
    part's own edge. What the largest eigenvalue fluctuates by is at most that of the sum before the reduction.

    >>> merged_edge(50, 50, parts=1.0) == symmetric_edge(50), merged_edge(50, 10, parts=9.0) > 3 * symmetric_edge(50)
    (True, True)
    """
    require(
        1 <= width <= dim and parts >= 1, f"width must lie in 1..{dim} and parts be at least 1, got {width}, {parts}"
    )
    if parts == 1:
        return symmetric_edge(dim)
    kept = np.maximum(_semicircle(dim)[:width], 0.0)
    # A grid of points above the part's own edge, by the logarithm of the distance: the minimum is flat.
    z = float(kept[0]) * (1 + np.exp(np.linspace(-12.0, 6.0, _GRID)))
    resolvent = ((1 / (z[:, None] - kept)).sum(axis=1) + (dim - width) / z) / dim
    edge = float((parts * z - (parts - 1) / resolvent).min())
    beyond = symmetric_edge(dim) - math.sqrt(2 * dim - 1)
    return edge + math.sqrt(parts) * beyond


def spiked_edge(edge: float, *, spike: float, row: float) -> float:
    """An edge that also covers one direction of size `spike` that is no signal, such as the error of a mean.

    A direction of size theta in a symmetric matrix of noise shows as an eigenvalue of about theta + row / theta. Here `row` is
    the sum of the variances of the noise in its row. Where theta is below the root of that, it disappears in the noise (Baik,
    Ben Arous and Peche 2005; Benaych-Georges and Nadakuditi 2011). A row of a covariance has d entries of variance 1/2. In the
    Ritz matrix of a product with w vectors it has w of variance 1/2 and d - w of variance 1. A singular value is at most
    theta + (d + w) / (2 theta). The deviation of such an eigenvalue is at most one.

    At the transition the law of the largest eigenvalue is wider than Tracy and Widom's (Bloemendal and Virag 2013). Its window
    is row^(-1/3) wide, relatively, and its upper 1% point was measured to lie 0.8 row^(-1/6) further out.

    >>> spiked_edge(14.8, spike=5.0, row=50.0), round(spiked_edge(14.8, spike=20.0, row=50.0), 2)
    (14.8, 24.83)
    """
    if spike < (1 - math.pow(row, -1 / 3)) * math.sqrt(row):
        return edge
    near = edge + _AT_TRANSITION * math.pow(row, -1 / 6)
    return near if spike**2 <= row else max(near, spike + row / spike + _NORMAL)


def _semicircle(dim: int) -> Array:
    """The quantiles, (d,), of the semicircle law with edge sqrt(2 d), largest first: typical eigenvalues of the noise."""
    places = (np.arange(dim) + 0.5) / dim
    grid = np.linspace(-1.0, 1.0, 2001)
    share = 0.5 + (grid * np.sqrt(1 - grid**2) + np.arcsin(grid)) / math.pi
    found: Array = math.sqrt(2 * dim) * np.interp(1 - places, share, grid)
    return found
