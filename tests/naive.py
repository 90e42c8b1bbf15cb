"""Plain-numpy twins of kernels and methods, written independently of the library.

Nothing here imports from tightz: a twin takes arrays and returns arrays.
"""

from __future__ import annotations

import itertools
import math

import numpy as np


def all_states(cardinalities) -> np.ndarray:
    """Every joint state, last variable fastest: (prod(cardinalities), n)."""
    states = list(itertools.product(*[range(int(c)) for c in cardinalities]))
    return np.array(states, dtype=np.int64).reshape(len(states), len(cardinalities))


def log_sum_exp(values) -> float:
    values = np.asarray(values, dtype=np.float64).ravel()
    top = values.max(initial=-np.inf)
    return -np.inf if top == -np.inf else float(top + np.log(np.exp(values - top).sum()))


def log_weights(cardinalities, factors, states) -> np.ndarray:
    """log p~ of each row of `states`, factor by factor."""
    states, out = np.asarray(states), np.zeros(len(states))
    for scope, log_table in factors:
        table = np.asarray(log_table).reshape([int(cardinalities[v]) for v in scope])
        out += table[tuple(states[:, v] for v in scope)]
    return out


def enumerate_model(cardinalities, factors, evidence=None):
    """(log Z, list of marginals) by summing over every joint state."""
    states = all_states(cardinalities)
    logs = log_weights(cardinalities, factors, states)
    for v, state in (evidence or {}).items():
        logs[states[:, v] != state] = -np.inf
    log_z = log_sum_exp(logs)
    weights = np.exp(logs - log_z) if log_z > -np.inf else np.full(len(logs), np.nan)
    marginals = [
        np.array([weights[states[:, v] == k].sum() for k in range(int(c))])
        for v, c in enumerate(cardinalities)
    ]
    return log_z, marginals


def transfer_matrix_log_z(rows, cols, horizontal, vertical, fields) -> float:
    """log Z of a planar Ising grid, site by site, over all 2^cols spins of one row.

    log p~(s) = sum horizontal[r, c] s[r, c] s[r, c+1] + sum vertical[r, c] s[r, c] s[r+1, c]
    + sum fields[r, c] s[r, c]; shapes (rows, cols-1), (rows-1, cols), (rows, cols). The vector is
    rescaled after every site and its log scale kept apart.
    """
    spin = np.array([1.0, -1.0])
    vector = np.ones(2**cols)
    spare = np.empty_like(vector)
    half = np.empty(2 ** (cols - 1))
    log_scale = 0.0
    for r in range(rows):
        for c in range(cols):
            # step[left, old, new]: weights of the site that enters in place of the one above it
            step = fields[r, c] * spin[None, None, :] + np.zeros((2, 2, 2))
            if r > 0:
                step = step + vertical[r - 1, c] * spin[None, :, None] * spin[None, None, :]
            if c > 0:
                step = step + horizontal[r, c - 1] * spin[:, None, None] * spin[None, None, :]
            top = step.max()
            step = np.exp(step - top)
            lefts = 2 if c > 0 else 1
            before = 2 ** max(c - 1, 0)
            old = vector.reshape(before, lefts, 2, -1)
            new = spare.reshape(before, lefts, 2, -1)
            for left in range(lefts):
                part = half[: old[:, left, 0].size].reshape(old[:, left, 0].shape)
                for state in range(2):
                    if r == 0:  # nothing above: the vector does not depend on `old`
                        np.multiply(old[:, left, 0], step[left, 0, state], out=new[:, left, state])
                        continue
                    np.multiply(old[:, left, 0], step[left, 0, state], out=part)
                    np.multiply(old[:, left, 1], step[left, 1, state], out=new[:, left, state])
                    new[:, left, state] += part
            vector, spare = spare, vector
            largest = vector.max()
            vector /= largest
            log_scale += top + np.log(largest)
    return float(log_scale + np.log(vector.sum()))


# --- Projections, in the paper's own notation -------------------------------------------------


def reduce_parities(matrix, rhs, order=None):
    """Row-reduce A x = b (mod 2): (C, b', pivots, feasible), C with unit columns at the pivots."""
    a = np.array(matrix, dtype=int) % 2
    b = np.array(rhs, dtype=int) % 2
    pivots: list[int] = []
    for column in range(a.shape[1]) if order is None else order:
        candidates = [r for r in range(len(pivots), len(a)) if a[r, column]]
        if not candidates:
            continue
        top = len(pivots)
        a[[top, candidates[0]]] = a[[candidates[0], top]]
        b[[top, candidates[0]]] = b[[candidates[0], top]]
        for r in range(len(a)):
            if r != top and a[r, column]:
                a[r] = (a[r] + a[top]) % 2
                b[r] = (b[r] + b[top]) % 2
        pivots.append(int(column))
        if len(pivots) == len(a):
            break
    feasible = not b[len(pivots) :].any()
    return a[: len(pivots)], b[: len(pivots)], pivots, feasible


def coset_states(matrix, rhs):
    """All x in {0,1}^n with A x = b (mod 2), one per row."""
    matrix, rhs = np.asarray(matrix, dtype=int), np.asarray(rhs, dtype=int)
    states = all_states([2] * matrix.shape[1])
    return states[((states @ matrix.T) % 2 == rhs).all(axis=1)]


class PaperProjection:
    """Proposition 1, the objective (6) and the appendix's gradients, as printed.

    The model is pairwise with 0/1 variables: unary (n,), pair {(k, j): weight}, so that
    log p~ = const + sum_k unary_k x_k + sum_kl pair_kl x_k x_l. `mu` is a length-n vector whose
    entries at free variables are the free marginals. Two misprints are corrected: item 7's C_kl
    is C_lk, and item 8's second product runs over C_li.
    """

    def __init__(self, const, unary, pair, matrix, rhs, order=None):
        self.const, self.unary, self.pair = const, np.asarray(unary, float), pair
        self.c, self.b, self.pivots, self.feasible = reduce_parities(matrix, rhs, order)
        self.n = len(self.unary)
        self.free = [k for k in range(self.n) if k not in self.pivots]
        self.row = {k: r for r, k in enumerate(self.pivots)}

    def _sign(self, k):
        return 1 - 2 * self.b[self.row[k]]

    def _product(self, k, mu, skip=()):
        c = self.c[self.row[k]]
        return np.prod([1 - 2 * c[i] * mu[i] for i in self.free if i not in skip])

    def single(self, k, mu):
        if k in self.free:
            return mu[k]
        return (1 - self._sign(k) * self._product(k, mu)) / 2

    def pairwise(self, k, j, mu):
        if k in self.free and j in self.free:
            return mu[k] * mu[j]
        if j in self.free:
            k, j = j, k
        if k in self.free:  # j constrained
            if self.c[self.row[j]][k]:
                return mu[k] * (1 + self._sign(j) * self._product(j, mu, skip=(k,))) / 2
            return mu[k] * self.single(j, mu)
        ck, cl = self.c[self.row[k]], self.c[self.row[j]]
        both = np.prod([1 - mu[i] * (2 * ck[i] + 2 * cl[i] - 4 * ck[i] * cl[i]) for i in self.free])
        return (
            1
            + self._sign(k) * self._sign(j) * both
            - self._sign(k) * self._product(k, mu)
            - self._sign(j) * self._product(j, mu)
        ) / 4

    def entropy(self, mu):
        total = 0.0
        for k in self.free:
            for p in (mu[k], 1 - mu[k]):
                if p > 0:
                    total -= p * np.log(p)
        return total

    def objective(self, mu):
        value = self.const + sum(self.unary[k] * self.single(k, mu) for k in range(self.n))
        value += sum(w * self.pairwise(k, j, mu) for (k, j), w in self.pair.items())
        return value + self.entropy(mu)

    def single_gradient(self, j, k, mu):
        """d mu_l / d mu_k for free k (items 1 to 3)."""
        if j in self.free:
            return 1.0 if j == k else 0.0
        return self._sign(j) * self.c[self.row[j]][k] * self._product(j, mu, skip=(k,))

    def pair_gradient(self, p, j, k, mu):
        """d mu_pl / d mu_k for free k (items 4 to 8)."""
        if j in self.free and p not in self.free:
            p, j = j, p
        if p in self.free and j in self.free:  # items 4 and 5
            return mu[j] if p == k else mu[p] if j == k else 0.0
        if p in self.free:
            c = self.c[self.row[j]]
            if p == k and not c[k]:  # item 6
                return (1 - self._sign(j) * self._product(j, mu, skip=(k,))) / 2
            if p == k:
                return (1 + self._sign(j) * self._product(j, mu, skip=(k,))) / 2
            if not c[p]:  # item 7
                return mu[p] * self.single_gradient(j, k, mu)
            return -mu[p] * c[k] * self._sign(j) * self._product(j, mu, skip=(k, p))
        cp, cl = self.c[self.row[p]], self.c[self.row[j]]  # item 8
        mixed = 2 * cp + 2 * cl - 4 * cp * cl
        rest = np.prod([1 - mu[i] * mixed[i] for i in self.free if i != k])
        return (
            self.single_gradient(p, k, mu) / 2
            + self.single_gradient(j, k, mu) / 2
            - self._sign(p) * self._sign(j) * mixed[k] / 4 * rest
        )

    def slope(self, k, mu):
        """The constant c of the appendix: gradient of theta . mu in mu_k, entropy left out."""
        total = sum(self.unary[j] * self.single_gradient(j, k, mu) for j in range(self.n))
        return total + sum(w * self.pair_gradient(p, j, k, mu) for (p, j), w in self.pair.items())

    def ascend(self, mu, sweeps):
        """Coordinate ascent in the paper's order and closed form: mu_k <- 1 / (1 + exp(-c))."""
        mu = np.array(mu, dtype=float)
        for _ in range(sweeps):
            for k in self.free:
                c = self.slope(k, mu)
                mu[k] = 1 / (1 + np.exp(-c)) if c > -700 else 0.0
        return mu


def product_weights(means):
    """Probability of every state of independent spins with the given means; states 0/1 rows."""
    states = all_states([2] * len(means))
    up = (1 + np.asarray(means)) / 2
    return states, np.prod(np.where(states == 0, up, 1 - up), axis=1)


def brute_bound(log_weight_of_states, free_states_to_states, means):
    """E_q[log p~] + H(q) by enumeration of q over the free spins."""
    states, q = product_weights(means)
    logs = np.asarray(log_weight_of_states(free_states_to_states(states)))
    live = q > 0
    return float((q[live] * logs[live]).sum() - (q[live] * np.log(q[live])).sum())


def parse_uai(text):
    """(cardinalities, [(scope, flat table on the ordinary scale)]), word by word, no checks."""
    words = iter(text.split()[1:])
    cardinalities = [int(next(words)) for _ in range(int(next(words)))]
    scopes = [[int(next(words)) for _ in range(int(next(words)))] for _ in range(int(next(words)))]
    return cardinalities, [
        (scope, [float(next(words)) for _ in range(int(next(words)))]) for scope in scopes
    ]


def power_sum(log_table, weight) -> np.ndarray:
    """w log sum_v exp(f / w) over the last axis, with the limits of a zero potential."""
    rows = np.asarray(log_table, dtype=np.float64)
    out = np.empty(rows.shape[:-1])
    for index in np.ndindex(out.shape):
        row = rows[index]
        if weight < 0 and (row == -np.inf).any():
            out[index] = -np.inf  # a zero raised to a negative power is infinite
        else:
            out[index] = weight * log_sum_exp(row / weight) if row.max() > -np.inf else -np.inf
    return out


# --- Spin polynomials: constant + sum theta * prod of spins, terms as (members, theta) pairs ----


def all_spins(n) -> np.ndarray:
    """Every state of n spins as +1 / -1, last spin fastest: (2^n, n)."""
    return 1 - 2 * all_states([2] * n).reshape(2**n, n)


def polynomial_log_weights(constant, terms, spins) -> np.ndarray:
    """log p~ of each row of `spins`, term by term."""
    out = np.full(len(spins), float(constant))
    for members, theta in terms:
        sign = np.ones(len(spins))
        for i in members:
            sign = sign * spins[:, i]
        out += theta * sign
    return out


def loopy_belief_propagation(cardinalities, factors, iterations=2000):
    """(Bethe log Z, marginals) by parallel updates of probability messages, damped by half.

    The value is the Bethe free energy of the final beliefs: energy plus factor entropies plus
    (1 - degree) times variable entropies.
    """
    n = len(cardinalities)
    tables = [
        np.exp(np.asarray(t).reshape([int(cardinalities[v]) for v in scope]))
        for scope, t in factors
    ]
    scopes = [tuple(scope) for scope, _ in factors]
    sent = {(f, v): np.ones(int(cardinalities[v])) for f, s in enumerate(scopes) for v in s}

    def product(v, without=None):
        out = np.ones(int(cardinalities[v]))
        for f, s in enumerate(scopes):
            if v in s and f != without:
                out = out * sent[f, v]
        return out / out.sum()

    def joint(f, without=None):
        out = tables[f]
        for axis, u in enumerate(scopes[f]):
            if u != without:
                shape = [1] * len(scopes[f])
                shape[axis] = -1
                out = out * product(u, f).reshape(shape)
        return out

    def entropy(p):
        p = p[p > 0]
        return -(p * np.log(p)).sum()

    for _ in range(iterations):
        fresh = {}
        for f, v in sent:
            axis = scopes[f].index(v)
            message = np.moveaxis(joint(f, v), axis, 0).reshape(int(cardinalities[v]), -1).sum(1)
            fresh[f, v] = 0.5 * sent[f, v] + 0.5 * message / message.sum()
        moved = max(np.abs(fresh[k] - sent[k]).max() for k in sent)
        sent.update(fresh)
        if moved < 1e-13:
            break
    marginals = [product(v) for v in range(n)]
    value = 0.0
    for f, scope in enumerate(scopes):
        belief = joint(f) / joint(f).sum()
        positive = belief > 0
        value += (belief[positive] * np.log(tables[f][positive])).sum() + entropy(belief)
        value -= sum(entropy(marginals[v]) for v in scope)
    return value + sum(entropy(m) for m in marginals), marginals


def grid_log_z(rows, cols, factors) -> float:
    """log Z of a spin grid given as (scope, log table) factors, row by row, state 0 spin +1."""
    fields = np.zeros((rows, cols))
    horizontal = np.zeros((rows, cols - 1))
    vertical = np.zeros((rows - 1, cols))
    for scope, table in factors:
        row, col = divmod(scope[0], cols)
        if len(scope) == 1:
            fields[row, col] += table[0]
        elif scope[1] == scope[0] + 1:
            horizontal[row, col] += table[0, 0]
        else:
            vertical[row, col] += table[0, 0]
    return transfer_matrix_log_z(rows, cols, horizontal, vertical, fields)


def heaviest_in_coset(n, constant, terms, matrix, rhs) -> float:
    """max of constant + sum theta * prod (1 - 2 x_i) over x with matrix x = rhs mod 2; or -inf."""
    best = -np.inf
    for x in itertools.product((0, 1), repeat=n):
        if ((np.asarray(matrix, dtype=int) @ np.array(x, dtype=int)) % 2 == rhs).all():
            weight = constant
            for members, theta in terms:
                weight += theta * (-1) ** sum(x[i] for i in members)
            best = max(best, weight)
    return float(best)


# --- Structured distributions: q(y) = prod_k q(y_k | y_sep(k)), by their joint table -----------


def conditional_joint(spins, separators, tables) -> np.ndarray:
    """Probability of every state (rows of all_spins(n)) of a product of conditional tables.

    spins[k] has the table tables[k] (2^s, 2): row j is the state of separators[k] with member i
    as bit i of j (bit 1 is spin -1), columns are spin +1 and spin -1.
    """
    states = all_spins(len(spins))
    out = np.ones(len(states))
    for k, spin in enumerate(spins):
        row = np.zeros(len(states), dtype=int)
        for i, other in enumerate(separators[k]):
            row += (states[:, other] < 0).astype(int) << i
        out *= np.asarray(tables[k])[row, (states[:, spin] < 0).astype(int)]
    return out


def spin_gibbs(terms, n, beta=1.0):
    """(states, energies, probabilities) of exp(beta * sum of terms) by enumeration."""
    states = all_spins(n)
    energies = polynomial_log_weights(0.0, terms, states)
    weights = np.exp(beta * (energies - energies.max()))
    return states, energies, weights / weights.sum()


def joint_marginal(cardinalities, factors, scope, evidence=None) -> np.ndarray:
    """p(x_scope) by summing over every joint state, shaped by the scope."""
    states = all_states(cardinalities)
    logs = log_weights(cardinalities, factors, states)
    for v, state in (evidence or {}).items():
        logs[states[:, v] != state] = -np.inf
    out = np.zeros([int(cardinalities[v]) for v in scope])
    for x, weight in zip(states, np.exp(logs - log_sum_exp(logs)), strict=True):
        out[tuple(x[v] for v in scope)] += weight
    return out


def rbm_by_hidden_states(weights, visible_bias, hidden_bias):
    """(log Z, p(v_i = 1), p(h_j = 1)) of a binary RBM, summing over every hidden state."""
    hidden = all_states([2] * len(hidden_bias)).astype(np.float64)
    inputs = visible_bias + hidden @ weights.T
    logs = hidden @ hidden_bias + np.logaddexp(0.0, inputs).sum(axis=1)
    log_z = log_sum_exp(logs)
    posterior = np.exp(logs - log_z)
    return log_z, posterior @ (1.0 / (1.0 + np.exp(-inputs))), posterior @ hidden


def rbm_expectations(w, b, c):
    """(log Z, E[v h'], E[v], E[h]) of an RBM with units in {0, 1}, by listing every joint state."""
    visible, hidden = len(b), len(c)
    total, vh, ev, eh = 0.0, np.zeros((visible, hidden)), np.zeros(visible), np.zeros(hidden)
    for v in itertools.product((0.0, 1.0), repeat=visible):
        for h in itertools.product((0.0, 1.0), repeat=hidden):
            va, ha = np.array(v), np.array(h)
            weight = np.exp(float(b @ va + c @ ha + va @ w @ ha))
            total += weight
            vh += weight * np.outer(va, ha)
            ev += weight * va
            eh += weight * ha
    return float(np.log(total)), vh / total, ev / total, eh / total


def elimination_game(adjacency, key, limit=math.inf):
    """(order, neighbours touched): take the vertex of least key(near, v), join its neighbours.

    Ends when the cheapest has more than `limit` neighbours. `near` maps vertices to sets.
    """
    near = {v: set(np.flatnonzero(row).tolist()) for v, row in enumerate(adjacency)}
    order, touched = [], []
    while near:
        v = min(near, key=lambda v: (*key(near, v), v))
        if len(near[v]) > limit:
            break
        ring = near.pop(v)
        order.append(v)
        touched.append(len(ring))
        for a in ring:
            near[a] = (near[a] | ring) - {a, v}
    return order, touched


def fill_in(near, v, weight=None):
    """Weight of the pairs of neighbours of v that are not joined."""
    pairs = [(a, b) for a in near[v] for b in near[v] if a < b and b not in near[a]]
    return sum(1 if weight is None else weight[a] * weight[b] for a, b in pairs)


def degree_then_fill(near, v):
    return len(near[v]), fill_in(near, v)


def buckets(scopes, order):
    """(scope, parent, scopes at home) per bucket, variables and buckets as in `order`."""
    waiting = [(set(s), ("scope", f)) for f, s in enumerate(scopes)]
    found, parents, homes = [], {}, {}
    for b, v in enumerate(order):
        here = [item for item in waiting if v in item[0]]
        waiting = [item for item in waiting if v not in item[0]]
        for _, (kind, k) in here:
            (homes if kind == "scope" else parents)[k] = b
        union = set().union({v}, *(s for s, _ in here))
        found.append(union)
        if union - {v}:
            waiting.append((union - {v}, ("bucket", b)))
    return found, parents, homes


def log_wealth_of_bets(log_weights, log_z, stakes, weights, log_cap=None) -> float:
    """log of sum_j weights_j prod_t factor_j(W_t), draw by draw in extended precision.

    Against Z <= z without a cap, against Z >= z with one; stakes above z / (cap - z) are cut there.
    """
    real = np.longdouble
    ratios = np.exp(np.asarray(log_weights, dtype=real) - real(log_z))
    logs = []
    for stake, weight in zip(stakes, weights, strict=True):
        c = real(stake)
        if log_cap is None:
            factors = (1 - c) + c * ratios
        else:
            room = np.expm1(real(log_cap) - real(log_z))
            # 1 + c - c W / z as c ((1 / c - room) + (cap - W) / z): both terms are at least zero.
            spare = max(1 / c - room, real(0))
            c = min(c, 1 / room)
            short = -np.expm1(np.asarray(log_weights, dtype=real) - real(log_cap))
            factors = c * (spare + short * (1 + room))
        with np.errstate(divide="ignore"):
            logs.append(np.log(real(weight)) + np.log(factors).sum())
    top = max(logs)
    return float(top if np.isinf(top) else top + np.log(np.exp(np.array(logs) - top).sum()))


def kac_ward_log_z(points, pairs, couplings) -> float:
    """log Z of spins without fields on a graph drawn in the plane with straight edges.

    Z = 2^n prod cosh(J) sqrt(det(1 - T)), T over directed edges: tanh(J) exp(i turn / 2), without
    turning back (Kac and Ward 1952).
    """
    points = np.asarray(points, dtype=float)
    directed = [(a, b, j) for (a, b), j in zip(pairs, couplings, strict=True)]
    directed += [(b, a, j) for a, b, j in directed]
    angle = [math.atan2(*(points[b] - points[a])[::-1]) for a, b, _ in directed]
    matrix = np.eye(len(directed), dtype=complex)
    for e, (a, b, j) in enumerate(directed):
        for f, (c, d, _) in enumerate(directed):
            if b == c and d != a:
                turn = (angle[f] - angle[e] + math.pi) % (2.0 * math.pi) - math.pi
                matrix[e, f] -= math.tanh(j) * np.exp(0.5j * turn)
    _, log_det = np.linalg.slogdet(matrix)
    cosh = sum(abs(j) + math.log1p(math.exp(-2.0 * abs(j))) - math.log(2.0) for j in couplings)
    return len(points) * math.log(2.0) + cosh + 0.5 * float(log_det)


def kaufman_log_z(rows: int, cols: int, coupling: float) -> float:
    """log Z of the uniform ferromagnet on a torus (Kaufman 1949, equation 7)."""
    k = coupling
    base = math.cosh(2 * k) / math.tanh(2 * k)
    gamma = [math.acosh(base - math.cos(math.pi * r / cols)) for r in range(2 * cols)]
    gamma[0] = 2 * k + math.log(math.tanh(k))
    cosh = [abs(rows * g) / 2 + math.log1p(math.exp(-abs(rows * g))) for g in gamma]
    sinh = [abs(rows * g) / 2 + math.log(-math.expm1(-abs(rows * g))) for g in gamma]
    logs = [sum(cosh[1::2]), sum(sinh[1::2]), sum(cosh[0::2]), sum(sinh[0::2])]
    signs = [1.0, 1.0, 1.0, math.copysign(1.0, gamma[0])]
    top = max(logs)
    total = sum(s * math.exp(x - top) for s, x in zip(signs, logs, strict=True))
    return -math.log(2) + rows * cols / 2 * math.log(2 * math.sinh(2 * k)) + top + math.log(total)


def onsager_log_z(coupling: float) -> float:
    """log Z per site of the square ferromagnet without end (Onsager 1944, equation 108)."""
    k = coupling
    kappa = 2.0 * math.sinh(2 * k) / math.cosh(2 * k) ** 2
    angle = (np.arange(20_000) + 0.5) * (0.5 * math.pi / 20_000)
    mean = np.log(0.5 * (1.0 + np.sqrt(np.maximum(0.0, 1.0 - (kappa * np.sin(angle)) ** 2)))).mean()
    return math.log(2.0 * math.cosh(2 * k)) + 0.5 * float(mean)


def triangular_log_z(rows: int, cols: int, coupling: float) -> float:
    """log Z of the uniform triangular torus: four products over momenta (Houtappel 1950).

    The sector without shifts changes its sign where the ferromagnet orders.
    """
    c, s = math.cosh(2 * coupling), math.sinh(2 * coupling)
    cubes = math.exp(2 * coupling) * (c * c - c * s + s * s)  # c^3 + s^3 without cancelling
    logs, signs = [], []
    for a in (0.0, 0.5):
        for b in (0.0, 0.5):
            p = 2 * math.pi * (np.arange(rows)[:, None] + a) / rows
            q = 2 * math.pi * (np.arange(cols)[None, :] + b) / cols
            terms = cubes - s * (np.cos(p) + np.cos(q) + np.cos(p + q))
            logs.append(0.5 * math.fsum(np.log(terms).ravel().tolist()))
            signs.append(-1.0 if a == b == 0.0 and coupling < math.log(3.0) / 4.0 else 1.0)
    top = max(logs)
    total = math.fsum(w * math.exp(x - top) for w, x in zip(signs, logs, strict=True))
    return rows * cols * math.log(2.0) + top + math.log(0.5 * total)


def pattern_log_z(patterns: np.ndarray, beta: float) -> float:
    """log Z of Hopfield's model by counting the spins of each class that agree with a pattern.

    Spins whose entries agree in all patterns form a class; the energy depends only on the sums of
    spins over the classes.
    """
    n = patterns.shape[1]
    columns, sizes = np.unique(patterns, axis=1, return_counts=True)
    sums = np.array(list(itertools.product(*(range(-m, m + 1, 2) for m in sizes.tolist()))))
    counts = sum(
        np.array([math.log(math.comb(int(m), (int(m) + x) // 2)) for x in range(-m, m + 1)])[
            sums[:, k] + m
        ]
        for k, m in enumerate(sizes.tolist())
    )
    overlaps = sums @ columns.T
    energies = ((overlaps**2).sum(axis=1) / n - len(patterns)) / 2.0
    return float(np.logaddexp.reduce(counts + beta * energies))


def splitmix(position: np.ndarray) -> np.ndarray:
    """64 mixed bits (Steele, Lea and Flood 2014)."""
    z = position ^ (position >> np.uint64(30))
    z = z * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def counted_coins(keys: np.ndarray, position: int, number=0) -> np.ndarray:
    """Uniform numbers of 52 bits, hashed twice, for each row of keys (C, 2 or more)."""
    golden = np.uint64(0x9E3779B97F4A7C15)
    with np.errstate(over="ignore"):
        begin = splitmix(keys[:, 0] + np.uint64(position) * golden) + keys[:, 1]
        bits = splitmix(begin + np.asarray(number, dtype=np.uint64) * golden)
    return (bits >> np.uint64(12)) / 2.0**52


def annealed_layers(weights, kept, base, summed, betas, keys):
    """(log weights, kept units x) of block Gibbs chains from independent units; layers 0/1.

    The path: log p(x) = ((1 - beta) base + beta kept) x + sum_j log(1 + e^(summed + beta x W)_j).
    Coin k (A + B) + j is for summed unit j at step k, k (A + B) + B + i for kept unit i.
    """
    (a, b), chains = weights.shape, len(keys)

    def drawn(fields, first):
        coins = np.stack([counted_coins(keys, first + u) for u in range(fields.shape[1])], axis=1)
        return (coins < 1.0 / (1.0 + np.exp(-fields))).astype(np.float64)

    def log_p(x, beta):
        inner = np.logaddexp(0.0, summed + beta * (x @ weights))
        return x @ ((1.0 - beta) * base + beta * kept) + inner.sum(axis=1)

    x = drawn(np.tile(base, (chains, 1)), b)
    log_w = np.logaddexp(0.0, base).sum() + np.logaddexp(0.0, summed).sum() + np.zeros(chains)
    for k in range(1, len(betas)):
        log_w += log_p(x, betas[k]) - log_p(x, betas[k - 1])
        if k < len(betas) - 1:
            y = drawn(summed + betas[k] * (x @ weights), k * (a + b))
            x = drawn((1 - betas[k]) * base + betas[k] * (kept + y @ weights.T), k * (a + b) + b)
    return log_w, x


def annealed_spins(members, start, goal, parents, order, betas, words, size=0):
    """(log weights, spins) of single-site Gibbs chains between two polynomials of few spins.

    members: the spins of each term; start, goal: their coefficients in the base and the target.
    parents: (spin, parent or -1) in the order of drawing the base, which is a forest. Spins are
    visited in `order`. Eight chains share a key, the first one's words; coin k (n + 1) + i is for
    spin i at step k, that of i = n is for the comb of a population of `size` chains, which is
    resampled where fewer than half of them are effective.
    """
    chains, n = len(words), len(order)
    keys, number = np.repeat(words[::8], 8, axis=0)[:chains], np.arange(chains) % 8

    def log_p(s, coefficients):
        products = [s[:, list(m)].prod(axis=1) for m in members]
        return np.array(coefficients) @ np.array(products)

    states = 1 - 2 * all_states([2] * n).astype(np.int64)
    law = np.exp(log_p(states, start))
    s = np.ones((chains, n), dtype=np.int64)
    for i, above in parents:
        coin = counted_coins(keys, i, number)
        for sign in (1, -1):
            like = states[:, above] == sign if above >= 0 else np.ones(len(states), bool)
            bound = law[like & (states[:, i] > 0)].sum() / law[like].sum()
            mine = s[:, above] == sign if above >= 0 else np.ones(chains, bool)
            s[mine, i] = np.where(coin[mine] < bound, 1, -1)
    log_w, before = np.zeros(chains), np.zeros(chains) + math.log(law.sum())
    for k in range(1, len(betas)):
        log_w += (betas[k] - betas[k - 1]) * (log_p(s, goal) - log_p(s, start))
        if k == len(betas) - 1:
            break
        for low in range(0, chains if size else 0, size or 1):
            w = np.exp(log_w[low : low + size])
            if w.sum() ** 2 / (w**2).sum() >= 0.5 * size:
                continue
            teeth = np.arange(size) + counted_coins(keys, k * (n + 1) + n)[low]
            s[low : low + size] = s[low + np.searchsorted(np.cumsum(w / w.sum()), teeth / size)]
            before[low : low + size] += math.log(w.mean())
            log_w[low : low + size] = 0.0
        mixed = (1.0 - betas[k]) * np.array(start) + betas[k] * np.array(goal)
        for i in order:
            up, down = s.copy(), s.copy()
            up[:, i], down[:, i] = 1, -1
            gap = log_p(down, mixed) - log_p(up, mixed)
            coin = counted_coins(keys, k * (n + 1) + i, number)
            s[:, i] = np.where(coin < 1.0 / (1.0 + np.exp(gap)), 1, -1)
    return before + log_w, s


def quadratic_elimination(couplings, fields, c, mu, v):
    """(constant, J, h) once the first spins are summed out, log 2cosh b <= c + mu b + v b^2 / 2."""
    j, h, constant = couplings.copy(), fields.copy(), 0.0
    for k in range(len(c)):
        row = j[0, 1:]
        constant += c[k] + mu[k] * h[0] + v[k] * h[0] ** 2 / 2 + v[k] / 2 * (row**2).sum()
        h = h[1:] + (mu[k] + v[k] * h[0]) * row
        j = j[1:, 1:] + v[k] * np.outer(row, row)
        np.fill_diagonal(j, 0.0)
    return constant, j, h


def inverse_hessian_product(d, pairs):
    """d times the matrix of limited-memory BFGS; pairs (step, change), the oldest first."""
    step, change = pairs[-1]
    matrix = np.eye(d.size) * (step @ change) / (change @ change)
    for step, change in pairs:
        rho = 1.0 / (step @ change)
        left = np.eye(d.size) - rho * np.outer(step, change)
        matrix = left @ matrix @ left.T + rho * np.outer(step, step)
    return matrix @ d


def inequality(s, spins, signs):
    """1 + a b s_i s_j + a c s_i s_k + b c s_j s_k of each row, s with a last spin that is 1."""
    t = signs * np.append(s, 1.0)[spins]
    return (t.sum(axis=1) ** 2 - 1.0) / 2.0
