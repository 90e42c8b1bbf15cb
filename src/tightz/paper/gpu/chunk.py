"""One chunk of projections on the device, stage by stage."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tightz.paper.gpu.ascent import SMALLEST, ascent_kernel
from tightz.paper.gpu.draws import draw_rows, draw_starts, start_from_heaviest, weigh_repaired
from tightz.paper.gpu.evaluation import batch_moments, best_expectations, evaluate
from tightz.paper.gpu.model import DeviceModel, slots_for
from tightz.paper.gpu.reduction import list_members, reduce_rows, substitute
from tightz.runtime.gpu import alone
from tightz.runtime.gpu.device import GROUPS, THREADS, WIDTH, cuda
from tightz.runtime.gpu.streams import pcg64_states


class Alike(NamedTuple):
    """Projections that one kernel size ascends: which (indices), and their substituted terms:
    coefficients, where the masks of each start, and the masks."""

    slots: int
    which: Any
    long_terms: tuple[Any, Any, Any]


class Chunk:
    """Projections at (levels[p], trials[p]); call the stages in order, `run` does.

    On the device: rows (reduced parities), pivot_row (P, n), free (P, n), v (P, restarts, n);
    on the host after `reduce`: ranks, feasible, n_free, n_long; after `evaluate`: log_gammas,
    sweeps and gains (P, restarts).
    """

    @alone
    def __init__(
        self, model: DeviceModel, levels: NDArray[np.int64], trials: NDArray[np.int64]
    ) -> None:
        self.model, self.levels, self.trials = model, levels, trials
        self.size = len(levels)
        self.d_levels = cuda.to_device(levels)

    @alone
    def run(self) -> None:
        self.draw()
        self.reduce()
        self.substitute()
        self.ascend()
        self.evaluate()

    def draw(self) -> None:
        """The parities, as the CPU draws them."""
        words = self.model.n // 64 + 1
        ends = np.cumsum(self.levels * words)
        row_at = cuda.to_device(ends - self.levels * words)
        self.rows = cuda.device_array(max(1, int(ends[-1])), np.uint64)
        states = cuda.to_device(self._states(0))
        draw_rows[self.size, THREADS](
            self.d_levels, states, self.model.n, self.model.density, row_at, self.rows
        )
        self.pivot_row = self._device((self.model.n,), np.int32)
        self.cosets = (self.d_levels, row_at, self.rows, self.pivot_row)

    def reduce(self) -> None:
        """Row reduction, then the lists of free spins and of long terms."""
        n, terms = self.model.n, self.model.plan.polynomial.n_terms
        free, n_free = self._device((n,), np.uint32), self._device((), np.int32)
        n_long = self._device((), np.int32)
        self.lists = (free, n_free, self._device((max(1, terms),), np.int32), n_long)
        taken = self._device((max(1, int(self.levels.max())),), np.int8)
        self.d_feasible = self._device((), np.int32)
        ranks = self._device((), np.int32)
        reduce_rows[self.size, THREADS](
            self.cosets, self.model.order, taken, ranks, self.d_feasible
        )
        ptr, spins, _ = self.model.terms
        list_members[self.size, THREADS](ptr, spins, self.pivot_row, self.lists)
        self.ranks = ranks.copy_to_host()
        self.feasible = self.d_feasible.copy_to_host().astype(bool)
        self.n_free, self.n_long = n_free.copy_to_host(), n_long.copy_to_host()

    def substitute(self) -> None:
        """Images and masks of the long terms, kernel size by kernel size, dearest first."""
        slots = slots_for(self.n_long)
        self.alike = [
            self._substitute_alike(int(size), np.flatnonzero((slots == size) & self.feasible))
            for size in np.unique(slots[self.feasible])[::-1]
        ]

    def _substitute_alike(self, slots: int, mine: NDArray[np.int64]) -> Alike:
        model = self.model
        # Longest first: blocks start in order, so the short ones fill the end.
        which = mine[np.argsort(-self.n_free[mine], kind="stable")]
        mask_words = -(-slots // 32)
        image_at, image_size = self._places(which, (model.n // 64 + 1) * self.n_long)
        mask_at, mask_size = self._places(which, mask_words * WIDTH * self.n_free)
        images = cuda.device_array(image_size, np.uint64)
        coefs = cuda.device_array((len(which), slots * WIDTH), np.float32)
        masks = cuda.device_array(mask_size, _mask_type(slots))
        alike = Alike(slots, cuda.to_device(which), (coefs, mask_at, masks))
        substitute[len(which), THREADS](
            alike.which, model.terms, self.cosets, self.lists, image_at, images, mask_words,
            alike.long_terms,
        )  # fmt: skip
        return alike

    def ascend(self) -> None:
        """Draw the starts and ascend from them."""
        model, family = self.model, self.model.family
        self.v = self._device((family.restarts, model.n), np.float32)
        self.d_sweeps = cuda.to_device(np.zeros((self.size, family.restarts), np.int32))
        self.d_gains = cuda.to_device(np.zeros((self.size, family.restarts), np.float32))
        states = cuda.to_device(self._states(1))
        draw_starts[self.size, THREADS](states, *self.lists[:2], model.spread, SMALLEST, self.v)
        if model.states is not None:
            self._start_from_states(model.states)
        for alike in self.alike:  # streams of their own, so that the slowest ascents overlap
            blocks = -(-alike.which.size * family.restarts // GROUPS)
            ascent_kernel(alike.slots, model.crowded)[blocks, (WIDTH, GROUPS), cuda.stream()](
                alike.which, model.pairs, self.lists, alike.long_terms, model.betas,
                np.float32(family.tol), model.sweep_limit, (self.v, self.d_sweeps, self.d_gains),
            )  # fmt: skip

    def _start_from_states(self, states: Any) -> None:
        """Three quarters of the restarts, as `MeanField.project` does."""
        repaired = self._device(states.shape, np.uint64)
        weights = self._device(states.shape[1:], np.float64)
        weigh_repaired[self.size, THREADS](
            self.model.terms, self.model.plan.polynomial.constant, states, self.cosets,
            self.d_feasible, repaired, weights,
        )  # fmt: skip
        most = -(-3 * self.model.family.restarts // 4)
        start_from_heaviest[self.size, THREADS](
            repaired, weights, self.pivot_row, self.d_feasible, most, self.v
        )

    def evaluate(self) -> None:
        """Every restart's bound in float64."""
        self.d_log_gammas = self._device((self.model.family.restarts,), np.float64)
        evaluate[self.size, THREADS](
            self.model.terms, self.model.plan.polynomial.constant, self.cosets, self.d_feasible,
            self.v, self.d_log_gammas,
        )  # fmt: skip
        self.log_gammas = self.d_log_gammas.copy_to_host()
        self.sweeps, self.gains = self.d_sweeps.copy_to_host(), self.d_gains.copy_to_host()
        # The bounds come from the final means alone, so float32 on the way cannot make one false;
        # a NaN would mean that the means are none.
        if bad := int(np.isnan(self.log_gammas).sum()):
            raise ArithmeticError(
                f"{bad} of {self.log_gammas.size} ascents left a mean outside [-1, 1]: this is a "
                "bug in the ascent kernel; backend='cpu' does without it"
            )

    @alone
    def moments(self, products: tuple[Any, Any], log_weights: Any, batch: int) -> NDArray:
        """Averages over each batch of E_q of `products`, rows as `WeightedMoments.to_array`."""
        width = products[0].size - 1
        batches = -(-self.size // batch)
        packed = cuda.device_array((batches, 2 + 2 * width), np.float64)
        values = self._device((max(1, width),), np.float64)[:, :width]
        if width:
            best_expectations[self.size, THREADS](
                products, self.cosets, self.v, self.d_log_gammas, values,
            )  # fmt: skip
        batch_moments[batches, THREADS](log_weights, values, batch, packed)
        return packed.copy_to_host()

    def _states(self, part: int) -> NDArray[np.uint64]:
        return pcg64_states(self.model.plan.seed, self.levels, self.trials, part)

    def _device(self, shape: tuple[int, ...], dtype: Any) -> Any:
        return cuda.device_array((self.size, *shape), dtype)

    def _places(self, which: NDArray[np.int64], sizes: NDArray) -> tuple[Any, int]:
        """(P,) where each projection's part starts in an array that holds those of `which`."""
        places = np.zeros(self.size, np.int64)
        ends = np.cumsum(sizes[which], dtype=np.int64)
        places[which] = ends - sizes[which]
        return cuda.to_device(places), max(1, int(ends[-1]))


def _mask_type(slots: int) -> Any:
    """The smallest word that holds a lane's bits: masks are most of what an ascent reads."""
    return np.uint8 if slots <= 8 else np.uint16 if slots <= 16 else np.uint32
