"""Lower bounds on E[log 2cosh X], X = h + sum_k J_k s_k with independent spins of means v_k.

With phi(x) = log 2cosh x and psi(t) = E exp(i t X),

    phi(x) = log 2 + integral_0^inf (1 - cos t x) / (t sinh(pi t / 2)) dt,

since both sides are even, agree at 0, and have the second derivative 1 / cosh^2 x (whose Fourier
transform is pi t / sinh(pi t / 2)). The trapezoidal rule with step tau = 2 pi / P is

    S(x) = log 2 + x^2 / P + sum_{j >= 1} (1 - cos j tau x) / (j sinh(pi j tau / 2)),

and S'' = sum over n of phi''(x + n P) by Poisson summation, so D = S - phi is even, D(0) = 0 and
D'' = sum over n /= 0 of phi''(x + n P), which gives

- for |x| <= R <= P: phi''(y) <= 4 exp(-2 |y|), so D'' <= 9 exp(-2 (P - |x|)) for P >= 3, and
  D <= 2.25 exp(-2 (P - R)) after integrating twice;
- anywhere: bumps of mass 2 at the multiples of P, so D' <= 2 |x| / P + 2 and
  D <= x^2 / P + 2 |x|.

Every term of S is non-negative, so stopping the sum at T only lowers it. Hence

    E phi(X) >= (E S, stopped) - 2.25 exp(-2 (P - R)) - (B^2 / P + 2 B) P(|X| > R),

with |X| <= B = |h| + sum |J|, and P(|X| > R) <= 2 exp(-(R - |E X|)^2 / (2 sum J^2)) (Hoeffding,
1963), or 0 where R >= B. Also, phi being convex, E phi(X) >= E phi(E[X | some spins]): spins that
matter little are replaced by their means, and phi(E X) is always a bound. A row with few spins is
enumerated.

Rounding, u = 2^-53, L = LIBRARY >= 8 u: cos and sin of j tau J come from turning by tau J once
more, each turn off by L and the first by |tau J| u + L, so after j of them by j (2 L + tau |J| u);
each complex product of factors costs 3 u, and t = j tau and exp(i t h) t B u more; all moduli are
at most 1, so psi is within K (2 L j + 3 u) + 4 u t B. The weights 1 / (j sinh) are within 8 L
relatively, and 1 - Re psi <= 2. The total is doubled.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from tightz.judge.verdict import LIBRARY, UNIT

LOG_2 = 0.6931471805599453
"""Rounded down."""

CUTOFF = 8.0
"""T: at most 2e-6 a row is lost beyond it."""

MARGIN = 9.0
"""P - R: aliasing of 4e-8."""

TAIL = 25.0
"""P(|X| > R) is at most 2 exp(-TAIL)."""

MAX_NODES = 1 << 14
"""Rows that need more nodes keep phi(E X)."""

ENUMERATED = 10
"""Rows of at most this many undecided spins may be enumerated."""

_BLOCK = 1 << 15
"""Rows times spins handled at a time: what fits in a cache."""


def log_2cosh(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """|x| + log(1 + exp(-2 |x|)), within (LIBRARY + 3 u) (value) of the truth."""
    size = np.abs(x)
    return size + np.log1p(np.exp(-2.0 * size))


def expected_log_2cosh(
    field: NDArray[np.float64], couplings: NDArray[np.float64], means: NDArray[np.float64]
) -> NDArray[np.float64]:
    """(rows,) proven lower bounds; field (rows,), couplings and means (rows, K), 0 for padding."""
    out = np.empty(field.size)
    step = max(1, _BLOCK // max(couplings.shape[1], 1))
    for low in range(0, field.size, step):
        rows = slice(low, low + step)
        with np.errstate(over="ignore", invalid="ignore"):  # absurd couplings: no bound
            out[rows] = _block(field[rows], couplings[rows], means[rows])
    return np.where(np.isnan(out), -np.inf, out)


def _block(
    field: NDArray[np.float64], couplings: NDArray[np.float64], means: NDArray[np.float64]
) -> NDArray[np.float64]:
    """One block: Jensen everywhere, then whichever of the two exact ways is cheaper."""
    count = couplings.shape[1]
    sizes = np.abs(couplings)
    reach = np.abs(field) + sizes.sum(axis=1)
    centre = field + (couplings * means).sum(axis=1)
    slip = UNIT * (count + 2.0) * reach  # error of the centre
    # phi is convex, so phi(E X) is a bound by itself: what follows can only improve on it.
    jensen = log_2cosh(centre)
    best = jensen - slip - 2.0 * LIBRARY * (jensen + 1.0)
    if not count:
        return best
    square = (couplings**2).sum(axis=1)
    # Beyond this radius X has probability at most 2 exp(-TAIL), by Hoeffding; never more than its
    # range.
    radius = np.minimum(np.abs(centre) + slip + np.sqrt(2.0 * TAIL * square), reach)
    radius *= 1.0 + 1e-9
    period = radius + MARGIN
    nodes = np.floor(CUTOFF * period / (2.0 * math.pi))
    enumerate_ = count <= ENUMERATED and bool(nodes.max() >= 1 << count)
    if enumerate_:
        return np.maximum(best, _enumerated(field, couplings, means, reach))
    finite = np.isfinite(nodes) & (nodes <= MAX_NODES)
    if finite.any():
        rows = np.flatnonzero(finite)
        rows = rows[np.argsort(-nodes[rows], kind="stable")]
        found = _quadrature(
            field[rows], couplings[rows], means[rows], reach[rows], radius[rows], period[rows],
            nodes[rows].astype(np.int64),
        )  # fmt: skip
        best[rows] = np.maximum(best[rows], found)
    return best


def _enumerated(
    field: NDArray[np.float64],
    couplings: NDArray[np.float64],
    means: NDArray[np.float64],
    reach: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Sums over all states of the spins: K roundings of q, of X and of the sum."""
    count = couplings.shape[1]
    total = np.zeros(field.size)
    for code in range(1 << count):
        sign = 1.0 - 2.0 * ((code >> np.arange(count)) & 1)
        weight = ((1.0 + sign * means) / 2.0).prod(axis=1)
        total += weight * log_2cosh(field + couplings @ sign)
    error = UNIT * ((count + 2.0) * reach + (2.0 * count + (1 << count) + 8.0) * total)
    return total - 2.0 * (error + LIBRARY * total)


def _quadrature(
    field: NDArray[np.float64],
    couplings: NDArray[np.float64],
    means: NDArray[np.float64],
    reach: NDArray[np.float64],
    radius: NDArray[np.float64],
    period: NDArray[np.float64],
    nodes: NDArray[np.int64],
) -> NDArray[np.float64]:
    """The trapezoidal sum less aliasing and rounding; rows by falling number of nodes."""
    count = couplings.shape[1]
    tau = 2.0 * math.pi / period
    centre = field + (couplings * means).sum(axis=1)
    spread = (couplings**2 * (1.0 - means**2)).sum(axis=1)
    # The term j = 0 of the trapezoidal rule is the limit E X^2 / P, and E X^2 is known exactly:
    # square of the mean plus the variance of independent spins.
    total = LOG_2 + (centre**2 + spread) / period
    weights, moments = np.zeros(field.size), np.zeros(field.size)
    steps = np.zeros(field.size)
    first = couplings * tau[:, None]
    turn_c, turn_s = np.cos(first), np.sin(first)
    c, s = turn_c, turn_s
    for j in range(1, int(nodes[0]) + 1):
        # Rows are sorted by falling number of nodes, so those still running are the first ones.
        active = int(np.searchsorted(-nodes, -j, side="right"))
        if active < len(c):
            c, s, turn_c, turn_s = c[:active], s[:active], turn_c[:active], turn_s[:active]
        if j > 1:
            c, s = c * turn_c - s * turn_s, s * turn_c + c * turn_s
        t = j * tau[:active]
        w = 1.0 / (j * np.sinh(math.pi * t / 2.0))
        psi = _real_part(t * field[:active], c, means[:active] * s)
        # 1 - Re psi lies in [0, 2]; clipping keeps rounding from making a term negative.
        total[:active] += w * np.clip(1.0 - psi, 0.0, 2.0)
        weights[:active] += w
        moments[:active] += w * t
        steps[:active] += w * j
    error = UNIT * (weights * (3.0 * count + nodes) + 4.0 * moments * reach)
    error += UNIT * (16.0 + (count + 8.0) * reach**2 / period)
    error += LIBRARY * (20.0 * weights + 2.0 * count * steps)
    tail = np.where(radius >= reach, 0.0, 2.0 * math.exp(-TAIL))
    alias = 2.25 * math.exp(-2.0 * MARGIN) + (reach**2 / period + 2.0 * reach) * tail
    return total - 2.0 * error - 1.001 * alias


def _real_part(
    turn: NDArray[np.float64], re: NDArray[np.float64], im: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Re of exp(i turn) times the product of re + i im in each row, taken in pairs."""
    while re.shape[1] > 1:
        half, odd = divmod(re.shape[1], 2)
        a, b, c, d = re[:, :half], im[:, :half], re[:, half : 2 * half], im[:, half : 2 * half]
        last = re[:, -1], im[:, -1]
        re, im = a * c - b * d, a * d + b * c
        if odd:
            x, y = re[:, 0].copy(), im[:, 0].copy()
            re[:, 0] = x * last[0] - y * last[1]
            im[:, 0] = x * last[1] + y * last[0]
    return np.asarray(np.cos(turn) * re[:, 0] - np.sin(turn) * im[:, 0])
