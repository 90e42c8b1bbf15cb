"""A projected polynomial, factored so that one coordinate step is cheap.

Terms of the model that share the same constrained spins share a long product of free spins. With
S_g the symmetric difference of those spins' supports and P_g = prod_{k in S_g} v_k, the terms with
at most one free member j read P_g * u_j, where u_j = v_j outside S_g and 1 / v_j inside it
(S_g with j toggled). So

    objective = constant + sum_k field_k v_k + sum_{k<j} w_kj v_k v_j
              + sum_g P_g(v) * (coef_g + sum_j theta_gj u_gj) + entropy.

A pairwise model with m parities has about m such groups (plus one per edge between constrained
spins) where a term-by-term expansion would have m times the degree. Every other long term is a
group of its own, with a coefficient and no linear part.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tightz.models.selection import ranges
from tightz.models.spin_polynomial import SpinPolynomial
from tightz.runtime.kernels import kernel


class _Substitution(NamedTuple):
    """What a spin becomes on the coset: free spin `free_index[i]` where pivot_row[i] is -1, else
    sign[row] times the product over the packed set support[row] of free spins."""

    pivot_row: NDArray[np.int64]
    free_index: NDArray[np.int64]
    support: NDArray[np.uint64]
    sign: NDArray[np.float64]


class GroupedPolynomial(NamedTuple):
    """Arrays of the factored polynomial over `n` free spins; CSR lists are per free spin k.

    field (n,); adj_*: plain pairs of k. Group g has members `base_spins[base_ptr[g]:...]`
    (ascending) and coefficient `coef[g]`. in_*: groups that contain k, with theta_gk
    (0 where k is not in the linear part); out_*: groups whose linear part holds k although k is
    not a member. `inverse[k]` tells that some group needs 1 / v_k.
    """

    constant: float
    field: NDArray[np.float64]
    adj_ptr: NDArray[np.int64]
    adj_to: NDArray[np.int32]
    adj_w: NDArray[np.float64]
    base_ptr: NDArray[np.int64]
    base_spins: NDArray[np.int32]
    coef: NDArray[np.float64]
    in_ptr: NDArray[np.int64]
    in_group: NDArray[np.int32]
    in_theta: NDArray[np.float64]
    out_ptr: NDArray[np.int64]
    out_group: NDArray[np.int32]
    out_theta: NDArray[np.float64]
    inverse: NDArray[np.bool_]

    @property
    def n(self) -> int:
        return int(self.field.size)


def group_terms(
    poly: SpinPolynomial,
    pivot_row: NDArray[np.int64],
    free_index: NDArray[np.int64],
    support: NDArray[np.uint64],
    sign: NDArray[np.float64],
    n_free: int,
) -> GroupedPolynomial:
    """Substitute the coset into `poly` and factor it. See the module's formula."""
    # Sort the terms: without constrained members and of one or two spins they stay plain fields
    # and pairs; with constrained members and at most one free one they share a group with all
    # terms of the same constrained set; everything else is a group of its own.
    owner = np.repeat(np.arange(poly.n_terms), poly.arities)
    row = pivot_row[poly.spins]
    held = np.bincount(owner, row >= 0, minlength=poly.n_terms).astype(np.int64)
    loose = poly.arities - held  # free members of each term

    field = np.zeros(n_free)
    lone = np.flatnonzero((held == 0) & (poly.arities == 1))
    field[free_index[poly.spins[poly.ptr[lone]]]] = poly.theta[lone]
    pair = np.flatnonzero((held == 0) & (poly.arities == 2))
    ends = free_index[poly.spins[poly.ptr[pair][:, None] + np.arange(2)]]
    adj_ptr, adj_to, adj_w = _adjacency(ends, poly.theta[pair], n_free)

    shared = np.flatnonzero((held > 0) & (loose <= 1))
    single = np.flatnonzero(((held > 0) & (loose > 1)) | ((held == 0) & (poly.arities > 2)))
    group_of, n_shared = _signatures(poly, row, owner, shared, len(sign))
    n_groups = n_shared + len(single)

    # Images: for a shared group, of its constrained members; for a lone long term, of all. A term
    # without constrained members is its own image: bit sets as long as the model for each of them
    # would be quadratic.
    as_is = np.concatenate([np.zeros(n_shared, dtype=bool), held[single] == 0])
    packed = np.flatnonzero(~as_is)
    words = np.zeros((packed.size, support.shape[1]), dtype=np.uint64)
    flips = np.ones(n_groups)
    # Any term of a group serves as leader, since all share the same constrained members; writing
    # backwards leaves the first.
    first = np.full(n_shared, -1, dtype=np.int64)
    first[group_of[::-1]] = shared[::-1]
    leaders = np.concatenate([first, single])
    whole = packed >= n_shared
    given = _Substitution(pivot_row, free_index, support, sign)
    turned = np.ones(packed.size)
    _group_images(poly.ptr, poly.spins, given, leaders[packed], whole, words, turned)
    flips[packed] = turned
    sizes = poly.arities[leaders]
    sizes[packed] = np.bitwise_count(words).sum(axis=1, dtype=np.int64)
    base_ptr = np.zeros(n_groups + 1, dtype=np.int64)
    base_ptr[1:] = np.cumsum(sizes)
    base_spins = np.empty(base_ptr[-1], dtype=np.int32)
    listed = np.empty(int(sizes[packed].sum()), dtype=np.int32)
    _members(words, listed)
    copied = np.repeat(as_is, sizes)
    base_spins[~copied] = listed
    base_spins[copied] = free_index[poly.spins[ranges(poly.ptr[leaders[as_is]], sizes[as_is])]]

    coef = np.zeros(n_groups)
    coef[n_shared:] = poly.theta[single] * flips[n_shared:]
    # A term with no free member adds to its group's coefficient; one with a free member j is
    # linear in u_j.
    bare = loose[shared] == 0
    theta = poly.theta[shared] * flips[group_of]
    np.add.at(coef, group_of[bare], theta[bare])

    linked = np.flatnonzero(~bare)
    is_free = row < 0
    partner = np.zeros(poly.n_terms, dtype=np.int64)
    partner[owner[is_free]] = free_index[poly.spins[is_free]]
    lin_spin = partner[shared[linked]]
    lin_group = group_of[linked]
    # j may itself be in S_g: multiplying by v_j again takes it out of the product (s_j^2 = 1), so
    # the factor is 1 / v_j and the kernels must guard v_j near 0.
    member = _is_member(words, lin_group, lin_spin)

    in_spin = base_spins
    in_group = np.repeat(np.arange(n_groups), np.diff(base_ptr))
    in_theta = np.zeros(base_spins.size)
    inside = np.flatnonzero(member)
    at = _position(base_ptr, base_spins, lin_group[inside], lin_spin[inside])
    np.add.at(in_theta, at, theta[linked[inside]])
    in_ptr, by_spin = _csr(in_spin, n_free)
    outside = np.flatnonzero(~member)
    out_ptr, by_out = _csr(lin_spin[outside], n_free)
    inverse = np.zeros(n_free, dtype=bool)
    inverse[lin_spin[inside]] = True
    return GroupedPolynomial(
        constant=poly.constant,
        field=field,
        adj_ptr=adj_ptr,
        adj_to=adj_to,
        adj_w=adj_w,
        base_ptr=base_ptr,
        base_spins=base_spins,
        coef=coef,
        in_ptr=in_ptr,
        in_group=in_group[by_spin].astype(np.int32),
        in_theta=in_theta[by_spin],
        out_ptr=out_ptr,
        out_group=lin_group[outside][by_out].astype(np.int32),
        out_theta=theta[linked[outside]][by_out],
        inverse=inverse,
    )


def _csr(keys: NDArray, n: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(pointer, stable order) that lists the positions of each key 0..n-1 together."""
    ptr = np.zeros(n + 1, dtype=np.int64)
    ptr[1:] = np.cumsum(np.bincount(keys, minlength=n))
    return ptr, np.argsort(keys, kind="stable")


def _adjacency(ends: NDArray, theta: NDArray, n: int) -> tuple[NDArray, NDArray, NDArray]:
    both = np.concatenate([ends, ends[:, ::-1]])
    ptr, order = _csr(both[:, 0], n)
    return ptr, both[order, 1].astype(np.int32), np.concatenate([theta, theta])[order]


def _signatures(
    poly: SpinPolynomial, row: NDArray, owner: NDArray, shared: NDArray, rank: int
) -> tuple[NDArray[np.int64], int]:
    """Number the sets of constrained spins that occur in the `shared` terms."""
    if not len(shared):
        return np.zeros(0, dtype=np.int64), 0
    # A set of constrained spins as a bit mask over the rows; equal masks are equal groups.
    words = max(1, -(-rank // 64))
    place = np.full(poly.n_terms, -1, dtype=np.int64)
    place[shared] = np.arange(len(shared))
    mine = (row >= 0) & (place[owner] >= 0)
    signature = np.zeros((len(shared), words), dtype=np.uint64)
    bit = np.uint64(1) << (row[mine] & 63).astype(np.uint64)
    np.bitwise_or.at(signature, (place[owner[mine]], row[mine] >> 6), bit)
    if words == 1:
        distinct, number = np.unique(signature[:, 0], return_inverse=True)
    else:
        distinct, number = np.unique(signature, axis=0, return_inverse=True)
    return number.ravel(), len(distinct)


def _is_member(words: NDArray, groups: NDArray, spins: NDArray) -> NDArray[np.bool_]:
    bits = words[groups, spins >> 6] >> (spins & 63).astype(np.uint64)
    return (bits & np.uint64(1)).astype(bool)


def _position(base_ptr: NDArray, base_spins: NDArray, groups: NDArray, spins: NDArray) -> NDArray:
    """Index into base_spins of spin `spins[i]` in group `groups[i]` (it is a member)."""
    n = int(base_spins.max(initial=0)) + 1
    owner = np.repeat(np.arange(base_ptr.size - 1), np.diff(base_ptr))
    return np.searchsorted(owner * n + base_spins, groups * n + spins)


@kernel
def _group_images(ptr, spins, given, leaders, whole, words, flips):  # type: ignore[no-untyped-def]
    """Symmetric difference of the supports of each leader's constrained (or all) members."""
    pivot_row, free_index, support, sign = given
    for g in range(leaders.size):
        a = leaders[g]
        for p in range(ptr[a], ptr[a + 1]):
            i = spins[p]
            row = pivot_row[i]
            if row >= 0:
                flips[g] *= sign[row]
                for w in range(words.shape[1]):
                    words[g, w] ^= support[row, w]
            elif whole[g]:
                k = free_index[i]
                words[g, k >> 6] ^= np.uint64(1) << np.uint64(k & 63)


@kernel
def _members(words, base_spins):  # type: ignore[no-untyped-def]
    """List the set bits of each row, ascending."""
    at = 0
    for g in range(words.shape[0]):
        for w in range(words.shape[1]):
            bits = words[g, w]
            k = w << 6
            while bits != np.uint64(0):
                if bits & np.uint64(1):
                    base_spins[at] = k
                    at += 1
                bits >>= np.uint64(1)
                k += 1
