"""What travels with a task of the tree, and what stays where it is."""

from __future__ import annotations

import io
import pickle
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, eq=False)
class Luggage:
    """Pickles things that refer to a few large objects, which stay where they are on both sides."""

    objects: tuple[Any, ...]

    def pack(self, thing: Any) -> bytes:
        numbers = {id(one): k for k, one in enumerate(self.objects)}
        out = io.BytesIO()
        pickler = pickle.Pickler(out, protocol=pickle.HIGHEST_PROTOCOL)
        pickler.persistent_id = lambda one: numbers.get(id(one))  # type: ignore[method-assign]
        pickler.dump(thing)
        return out.getvalue()

    def unpack(self, packed: bytes) -> Any:
        unpickler = pickle.Unpickler(io.BytesIO(packed))
        unpickler.persistent_load = self.objects.__getitem__  # type: ignore[method-assign]
        return unpickler.load()
