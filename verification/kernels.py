"""`python -m verification.kernels`: write the registry of kernels (src/tightz/runtime/kernels).

Every task runs on models of every kind; the kernels that Python calls meanwhile are what the task
needs. Then all are compiled from nothing, for their seconds. Takes about ten minutes; with names of
kinds, only those are run and only what is new is timed.
"""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

PACKAGE = Path(__file__).resolve().parent.parent / "src" / "tightz"
DECLARED = ("kernel", "inner", "spliced", "cuda.jit", "device_kernel")


# Sources ------------------------------------------------------------------------------------


def kernel_functions(tree: ast.Module) -> Iterator[ast.FunctionDef]:
    """The functions of a file that are compiled."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            words = [ast.unparse(d).partition("(")[0] for d in node.decorator_list]
            if any(word in DECLARED for word in words):
                yield node


def sources(package: Path = PACKAGE) -> list[str]:
    """Files that declare kernels, and those whose names kernels use."""
    found = {"runtime/kernels/__init__.py"}  # the options of all
    for path in package.rglob("*.py"):
        tree = ast.parse(path.read_text())
        kernels = list(kernel_functions(tree))
        if not kernels:
            continue
        found.add(path.relative_to(package).as_posix())
        used = {n.id for k in kernels for n in ast.walk(k) if isinstance(n, ast.Name)}
        for node in tree.body:
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tightz"):
                for name in node.names:
                    if (name.asname or name.name) in used:
                        found.update(_files(package, f"{node.module}", name.name))
    return sorted(found)


def _files(package: Path, module: str, name: str) -> Iterator[str]:
    """The file that a name comes from: a module of that name, or the module itself."""
    folder = package.joinpath(*module.split(".")[1:])
    for path in (folder / f"{name}.py", folder.with_suffix(".py"), folder / "__init__.py"):
        if path.exists():
            yield path.relative_to(package).as_posix()
            return


# Calls --------------------------------------------------------------------------------------


class Calls:
    """The kernels that Python calls for the first time since `clear`, as (function, signature)."""

    def __init__(self) -> None:
        self.seen: dict[tuple[str, str], None] = {}
        self.clock: Any = None
        """Held while something is compiled, so that a run reaches what it does late."""
        self._depth = 0

    @contextmanager
    def watch(self) -> Iterator[Calls]:
        from numba.core import event, sigutils

        from tightz.runtime.kernels.caching import KernelCache
        from tightz.runtime.kernels.signatures import to_text

        calls, load = self, KernelCache.load_overload

        class Depth(event.Listener):
            def on_start(self, _: Any) -> None:
                calls._depth += 1
                if calls.clock is not None:
                    calls.clock.hold()

            def on_end(self, _: Any) -> None:
                calls._depth -= 1
                if calls.clock is not None and calls._depth == 0:
                    calls.clock.release()

        def watched(cache: Any, signature: Any, target: Any) -> Any:
            if calls._depth == 0:  # not for a kernel that calls it
                arguments, _ = sigutils.normalize_signature(signature)
                calls.seen.setdefault((cache._function, to_text(arguments)))
            return load(cache, signature, target)

        depth = Depth()
        event.register("numba:compile", depth)
        KernelCache.load_overload = watched  # type: ignore[method-assign]
        try:
            yield self
        finally:
            KernelCache.load_overload = load  # type: ignore[method-assign]
            event.unregister("numba:compile", depth)

    def clear(self) -> None:
        """Forget what was called, and have every kernel loaded again at its next call."""
        from tightz.runtime.kernels.caching import KernelCache

        _settle()
        self.seen.clear()
        for name, module in list(sys.modules.items()):
            if name.startswith("tightz."):
                for value in vars(module).values():
                    if isinstance(getattr(value, "_cache", None), KernelCache):
                        value._make_finalizer()()
                        value._reset_overloads()


def _settle() -> None:
    """Wait for workers of a run that is over."""
    while any(t.name.startswith("tightz worker") for t in threading.enumerate()):
        time.sleep(0.02)


# What is run --------------------------------------------------------------------------------


def models(kind: str) -> list[Any]:
    """Models of a kind: small, one that exact sums take a while for, one beyond them."""
    import numpy as np

    import tightz as tz

    rng = np.random.default_rng(0)
    if kind == "spins":
        couplings = np.triu(rng.normal(size=(24, 24)) * (rng.random((24, 24)) < 0.2), 1)
        return [
            tz.ising_grid(5, coupling=(-2, 2), field=(-1, 1), seed=0),
            tz.ising_grid(6, coupling=(-400, 400), field=(-300, 300), seed=4),
            tz.ising_grid(24, coupling=(-10, 10), field=(-1, 1), seed=2),
            tz.ising_grid(40, coupling=(-1, 1), field=(-1, 1), seed=3),
            tz.ising_grid(34, coupling=(-1, 1), field=(-0.01, 0.01), seed=6),
            tz.ising(couplings + couplings.T, rng.normal(size=24)),
            *(_strong(seed) for seed in range(20)),
        ]
    if kind == "free":
        couplings = np.triu((rng.random((26, 26)) < 0.2) * 1.0, 1)
        return [
            tz.ising_grid(5, coupling=(-1, 1), field=(0, 0), seed=1),
            tz.ising_grid(34, coupling=(-1, 1), field=(0, 0), seed=3),
            tz.ising_grid(12, coupling=(0, 1), field=(0, 0), periodic=True, seed=4),
            tz.ising_grid(8, coupling=(-40, 40), field=(0, 0), seed=5),
            tz.ising(couplings + couplings.T),
        ]
    if kind == "dense":
        return [
            tz.rbm(rng.normal(size=(v, h)), rng.normal(size=v), rng.normal(size=h))
            for v, h in ((28, 18), (60, 40), (300, 200))
        ]
    shape = {"terms": (2, 3), "states": (3, 2), "zeros": (2, 3), "mixed zeros": (3, 3)}[kind]
    out = []
    for n, m in ((8, 10), (40, 60), (120, 260)):
        cards = np.full(n, shape[0])
        factors = []
        for _ in range(m):
            scope = rng.choice(n, shape[1], replace=False)
            table = rng.normal(size=(shape[0],) * shape[1])
            if "zeros" in kind:
                table.ravel()[rng.integers(table.size)] = -np.inf
            factors.append((scope, table))
        out.append(tz.FactorGraph(cards, factors))
    # beyond what floats hold: tables of logarithms
    deep = [(scope, 1e3 * table) for scope, table in out[0].factors]
    out.insert(1, tz.FactorGraph(out[0].cardinalities, deep))
    if kind == "zeros":
        out += [_clauses(60, 200), _clauses(150, 630)]
        hard = np.array([[0.0, 0.3], [0.3, -np.inf]])
        pairs = [(rng.choice(30, 2, replace=False), hard) for _ in range(40)]
        out.insert(1, tz.FactorGraph(np.full(30, 2), pairs))
    if kind == "mixed zeros":
        out.append(_network())
    return out


def _strong(seed: int) -> Any:
    """All pairs of nine spins, so strongly coupled that messages are tables of logarithms."""
    import numpy as np

    import tightz as tz

    rng = np.random.default_rng(seed)
    couplings = np.triu(rng.normal(size=(9, 9)) * 100.0, 1)
    return tz.ising(couplings + couplings.T, rng.normal(size=9))


def _clauses(n: int, m: int) -> Any:
    import numpy as np

    import tightz as tz

    rng = np.random.default_rng(1)
    factors = []
    for _ in range(m):
        table = np.zeros((2, 2, 2))
        table[tuple(rng.integers(2, size=3))] = -np.inf
        factors.append((rng.choice(n, 3, replace=False), table))
    return tz.FactorGraph(np.full(n, 2), factors)


def _network() -> Any:
    """A Bayesian network of mixed cardinalities with zeros and evidence."""
    import numpy as np

    import tightz as tz

    rng = np.random.default_rng(2)
    cards = rng.integers(2, 5, size=40)
    factors = []
    for v in range(40):
        parents = rng.choice(v, min(v, 2), replace=False)
        table = rng.random((*cards[parents], cards[v])) * (
            rng.random((*cards[parents], cards[v])) > 0.2
        )
        table[..., 0] += 0.1
        with np.errstate(divide="ignore"):
            logs = np.log(table / table.sum(axis=-1, keepdims=True))
        factors.append((np.array([*parents, v]), logs))
    return tz.FactorGraph(cards, factors, evidence={39: 0})


KINDS = ("spins", "free", "dense", "terms", "states", "zeros", "mixed zeros")


def streams() -> dict[str, Any]:
    """The streams of the main job by name."""
    from tightz.interval.opening import opening
    from tightz.interval.portfolio import FROM_STATES, SIDE_BY_SIDE
    from tightz.sampling.annealed import annealed

    methods = [opening, annealed, *SIDE_BY_SIDE, *FROM_STATES]
    return {m.__name__: m for m in methods}


def verbs() -> dict[str, Callable[[Any], Any]]:
    """The public functions that run kernels, as functions of a model."""
    import tightz as tz
    from tightz.reductions.preparation import substitute
    from tightz.uppers.mini_bucket.heaviest import heavy_cliques

    return {
        "exact": _exact,
        "mean_field": lambda m: (
            tz.mean_field(m, seed=0),
            tz.mean_field(m, family=tz.StructuredMeanField(restarts=2), seed=0),
            tz.mean_field(m, family=tz.LayerMeanField(restarts=1), seed=0),
        ),
        "estimate": lambda m: tz.estimate(m, levels=[0, 2, 4], trials=2, seed=0).certificate(0.05),
        "mfrp": lambda m: tz.mfrp(m, 2, trials=2, seed=0),
        "ais": lambda m: tz.ais(m, chains=16, temperatures=20, seed=0),
        "upper_bound": lambda m: (
            tz.upper_bound(m, method=tz.MiniBucket(ibound=4, iterations=3)),
            tz.upper_bound(m, method=tz.TreeReweighted()),
        ),
        "bethe": tz.bethe,
        "split": lambda m: tz.split(m, time_limit=3.0, seed=0).sample(100, 0),
        "ground_state": lambda m: (
            tz.ground_state(m, k=3, seed=0),
            tz.ground_state(m, tz.Search(enumerate_up_to=0, sweeps=40), seed=0),
            list(heavy_cliques(substitute(m).reduced, time_limit=2.0, max_memory=10**9)),
        ),
        "sample": lambda m: tz.sample(m, 10, seed=0),
        "coset_sum": lambda m: tz.coset_sum(m, 2, seed=0),
        "wish": lambda m: tz.wish(m, levels=[0, 2], trials=1, time_limit=5.0, seed=0),
    }


def _exact(model: Any) -> None:
    """log Z, all marginals, and those of factors and pairs."""
    import tightz as tz

    result = tz.exact(model)
    for f, (scope, _) in enumerate(model.factors):
        if f < 50 and len(scope) > 1:
            result.factor_marginal(f)
            result.pair_marginal(*scope[:2])


def record(kind: str) -> dict[str, list[tuple[str, str]]]:
    """What every task calls on models of this kind."""
    from tightz.errors import TightzError

    found: dict[str, dict[tuple[str, str], None]] = {}
    with Calls().watch() as calls:

        def run(task: str, call: Callable[[], Any]) -> None:
            calls.clear()
            try:
                call()
            except TightzError as error:
                print(f"  {kind}: {task}: {error}", file=sys.stderr)
            _settle()
            found.setdefault(task, {}).update(calls.seen)

        for number, model in enumerate(models(kind)):
            # the small and strong ones are there for exact sums
            streams_here = streams() if model.n_variables > 9 or number < 2 else {}
            for name, method in streams_here.items():
                run(name, partial(_stream, model, name, method, calls))
            for name, verb in verbs().items():
                if number < 2 or name in ("exact", "ais"):
                    run(name, partial(verb, model))
            print(f"{kind}: {model.n_variables} variables", file=sys.stderr)
        if kind == "zeros":
            run("counting", _by_blocks)
    return {task: list(seen) for task, seen in found.items()}


def _by_blocks() -> None:
    """Counting by blocks, which a search tries after a while: here at once."""
    import numpy as np

    from tightz.elimination.clauses import counting, plan_clauses

    rng = np.random.default_rng(0)
    clauses = [[2 * (b + v) + int(rng.integers(2)) for v in (0, 1, 2)] for b in range(0, 16, 4)]
    clauses += [[2 * v + int(rng.integers(2)) for v in range(k, 16, 2)] for k in (0, 1)]
    patience, counting._PATIENCE = counting._PATIENCE, 0
    plan_clauses(16, clauses).start(max_memory=10**7).advance(60.0)
    counting._PATIENCE = patience


LAUNCHERS = ("opening", "annealing", "elimination", "tempering")


def _stream(model: Any, name: str, method: Any, calls: Calls) -> None:
    """One stream alone, without those that it launches and that are tasks of their own."""
    import tightz as tz
    from tightz.workspace.working import Launch

    def alone(working: Any, clock: Any) -> Iterator[Any]:
        calls.clock = working.clock
        return (
            found
            for found in method(working, clock)
            if not (isinstance(found, Launch) and name in LAUNCHERS)
        )

    exact = name in ("opening", "counting")
    seconds = {"splitting": 5.0}.get(name, 8.0 if exact else 2.0)
    tz.log_partition(model, only=[alone], time_limit=seconds, seed=0, exact=exact)
    calls.clock = None


def _recorded(kind: str) -> dict[str, list[tuple[str, str]]]:
    """`record` in a process of its own."""
    run = [sys.executable, "-m", "verification.kernels", "record", kind]
    done = subprocess.run(run, check=True, stdout=subprocess.PIPE, text=True)
    answer: dict[str, list[list[str]]] = json.loads(done.stdout.splitlines()[-1])
    return {task: [(f, s) for f, s in calls] for task, calls in answer.items()}


def seconds(kernels: list[tuple[str, str]]) -> list[float]:
    """CPU seconds to compile each, from an empty folder, in a process of its own."""
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(os.cpu_count()) as pool:
        os.environ["NUMBA_CACHE_DIR"] = folder
        return list(pool.map(_seconds, kernels))


def _seconds(kernel: tuple[str, str]) -> float:
    from tightz.runtime.kernels.farm import ask
    from tightz.runtime.kernels.registry import Kernel

    worker = subprocess.Popen(
        [sys.executable, "-m", "tightz.runtime.kernels.worker"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    answer = ask(worker, Kernel(*kernel)) or {}
    worker.communicate()
    if not answer.get("kept"):
        raise SystemExit(f"{kernel[0]}: {answer}")
    return max(0.1, round(answer["seconds"], 1))


def written(tasks: dict[str, dict[str, list[tuple[str, str]]]]) -> dict[str, Any]:
    """The registry's contents: {task: {kind: calls}} with every signature listed once."""
    kernels: dict[str, dict[str, float]] = {}
    for by_kind in tasks.values():
        for calls in by_kind.values():
            for function, signature in calls:
                kernels.setdefault(function, {})[signature] = 0.0
    kernels = {f: dict(sorted(kernels[f].items())) for f in sorted(kernels)}
    return {
        "sources": sources(),
        "kernels": kernels,
        "tasks": {
            task: {
                kind: sorted(f"{f}#{list(kernels[f]).index(s)}" for f, s in calls)
                for kind, calls in by_kind.items()
                if calls
            }
            for task, by_kind in sorted(tasks.items())
        },
    }


def save(registry: dict[str, Any]) -> None:
    from tightz.runtime.kernels.registry import FILE

    FILE.write_text(json.dumps(registry, indent=1) + "\n", encoding="utf-8")


def main(arguments: list[str]) -> None:
    warnings.simplefilter("ignore")
    if arguments[:1] == ["record"]:
        print(json.dumps(record(arguments[1])))
        return
    from tightz.runtime.kernels.registry import FILE

    old = json.loads(FILE.read_text()) if FILE.exists() else {"kernels": {}, "tasks": {}}
    save({**old, "sources": sources()})
    if arguments[:1] == ["sources"]:
        return
    kinds = arguments or list(KINDS)
    tasks = {
        task: {
            kind: [(f, list(old["kernels"][f])[int(k)]) for f, k in (n.split("#") for n in names)]
            for kind, names in by_kind.items()
            if kind not in kinds
        }
        for task, by_kind in old["tasks"].items()
        if len(kinds) < len(KINDS)
    }
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for kind, answer in zip(kinds, pool.map(_recorded, kinds), strict=True):
            for task, calls in answer.items():
                tasks.setdefault(task, {})[kind] = calls
    registry = written(tasks)
    known = old["kernels"] if len(kinds) < len(KINDS) else {}
    listed = [(f, s) for f, signatures in registry["kernels"].items() for s in signatures]
    new = [(f, s) for f, s in listed if not known.get(f, {}).get(s)]
    spent = dict(zip(new, seconds(new), strict=True))
    for function, signature in listed:
        took = spent.get((function, signature)) or known[function][signature]
        registry["kernels"][function][signature] = took
    save(registry)


if __name__ == "__main__":
    main(sys.argv[1:])
