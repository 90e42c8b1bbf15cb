"""numba's cache protocol on the store of compiled kernels."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

from numba.core import sigutils
from numba.core.caching import CompileResultCacheImpl
from numba.core.serialize import dumps

from tightz.runtime.kernels import registry, store
from tightz.runtime.kernels.signatures import to_text


class _Results(CompileResultCacheImpl):
    """What of a compiled function is kept; the locators of the base class are not wanted."""

    def __init__(self) -> None:
        pass


class KernelCache:
    """What a dispatcher asks before it compiles, and tells afterwards."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = f"{function.__module__}:{function.__qualname__}"
        # A file that the registry does not list is not in the folder's hash: what was compiled
        # from it could be stale.
        source = function.__module__.removeprefix("tightz.").replace(".", "/") + ".py"
        listed = source in registry.sources() and function.__closure__ is None
        self._enabled = listed and store.unchanged(source)

    @property
    def cache_path(self) -> str | None:
        folders = store.places() if self._enabled else ()
        return str(folders[0]) if folders else None

    def _name(self, signature: Any) -> str | None:
        arguments, _ = sigutils.normalize_signature(signature)
        text = to_text(arguments)
        if not self._enabled or " at 0x" in text:  # a function's address: never the same again
            return None
        return registry.file_name(self._function, text)

    def load_overload(self, signature: Any, target: Any) -> Any:
        target.refresh()
        name = self._name(signature)
        if name is None or not store.places():
            return None
        found = self._read(name, target)
        if found is None:
            store.claim(name)
            found = self._read(name, target)
            if found is not None:
                store.release(name)
        return found

    def _read(self, name: str, target: Any) -> Any:
        data = store.read(name)
        if data is None:
            return None
        try:
            return _Results().rebuild(target, pickle.loads(data))
        except Exception:  # another numba wrote it, whatever that raises: compile anew
            return None

    def save_overload(self, signature: Any, compiled: Any) -> None:
        name = self._name(signature)
        if name is None:
            return
        try:
            # code that holds addresses of this process, as some of numba's settings make it
            bound = compiled.lifted or compiled.library.has_dynamic_globals
            if store.places() and store.unchanged() and not bound:
                store.write(name, dumps(_Results().reduce(compiled)))
        finally:
            store.release(name)

    def guard(self, dispatcher: Any) -> None:
        """Let others go on where compiling fails or is interrupted: nothing is saved then."""
        compiler = dispatcher._compiler
        compile_ = compiler.compile

        def guarded(arguments: Any, returned: Any) -> Any:
            try:
                return compile_(arguments, returned)
            except BaseException:
                if (name := self._name(arguments)) is not None:
                    store.release(name)
                raise

        compiler.compile = guarded

    def enable(self) -> None:
        self._enabled = True

    def disable(self) -> None:
        self._enabled = False

    def flush(self) -> None:
        """Nothing is held back."""
