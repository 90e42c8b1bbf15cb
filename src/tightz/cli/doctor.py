"""`tightz doctor`: what this installation has, what it lacks, and what mends it."""

from __future__ import annotations

import os
import platform
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import click

from tightz.cli.options import emit
from tightz.version import __version__

OK, LACKING, BROKEN = "ok", "lacking", "broken"
"""What works; what is optional and not there; what the core needs and does not find."""

FOR_DEVELOPERS = ("lint", "test")
_MARKS = {OK: ("ok", "green"), LACKING: ("--", "yellow"), BROKEN: ("!!", "red")}


@dataclass(frozen=True)
class Check:
    """One line of the report. `remedy` is what to do, empty where there is nothing to mend."""

    group: str
    name: str
    status: str
    found: str
    remedy: str = ""


@click.command("doctor")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON record.")
def doctor(as_json: bool) -> None:
    """Versions, cores, memory, GPU, compiled kernels, optional extras, and a self-check.

    The self-check brackets log Z of a 4x4 grid. It takes about a second; where its kernels are not
    compiled yet, half a minute, once. Exit code 0: the core works, whatever optional part is
    lacking. Exit code 1: it does not.

    \b
    Example: tightz doctor
             tightz doctor --json | python -m json.tool
    """
    checks = []
    for check in examine():
        checks.append(check)
        if not as_json:
            _show(check, new_group=len(checks) == 1 or checks[-2].group != check.group)
    works = all(check.status != BROKEN for check in checks)
    if as_json:
        emit("doctor", works=works, checks=checks)
    else:
        click.echo()
        click.echo("tightz works here." if works else "tightz does not work here: see !! above.")
    if not works:
        click.get_current_context().exit(1)


def examine() -> Iterator[Check]:
    """Every check, one after the other; none of them raises."""
    steps: list[tuple[str, str, Callable[[], Iterator[Check]]]] = [
        ("versions", BROKEN, _versions),
        ("machine", LACKING, _machine),
        ("gpu", LACKING, _gpu),
        ("extras", LACKING, _extras),
        ("data", LACKING, _data),
        ("self-check", BROKEN, _self_check),
        ("kernels", LACKING, _kernels),
    ]
    for group, gravity, step in steps:
        try:
            yield from step()
        except Exception as error:  # a broken installation may raise anything
            yield Check(group, "error", gravity, f"{type(error).__name__}: {error}", _advice(error))


def _show(check: Check, *, new_group: bool) -> None:
    if new_group:
        click.secho(check.group, bold=True)
    mark, colour = _MARKS[check.status]
    advice = f"; {check.remedy}" if check.remedy else ""
    click.echo(f"  {click.style(mark, fg=colour)}  {check.name:<14} {check.found}{advice}")


def _advice(error: Exception) -> str:
    if isinstance(error, ImportError | metadata.PackageNotFoundError):
        return "pip install --upgrade --force-reinstall tightz"
    return ""


def _versions() -> Iterator[Check]:
    import tightz

    place = str(Path(tightz.__file__).parent)
    yield Check("versions", "tightz", OK, f"{metadata.version('tightz')} in {place}")
    system = f"{platform.system()} {platform.machine()}"
    yield Check("versions", "python", OK, f"{platform.python_version()} on {system}")
    for requirement, extra in _requirements():
        if not extra:
            status, found = _installed(requirement)
            remedy = "" if status == OK else "pip install --upgrade tightz"
            yield Check("versions", _name(requirement), status or BROKEN, found, remedy)


def _extras() -> Iterator[Check]:
    """Each extra that a user may install; developers' ones are left out."""
    for requirement, extra in _requirements():
        if extra and extra not in FOR_DEVELOPERS:
            status, found = _installed(requirement)
            remedy = "" if status == OK else f"pip install --upgrade 'tightz[{extra}]'"
            yield Check("extras", extra, status or LACKING, f"{_name(requirement)} {found}", remedy)


def _requirements() -> list[tuple[str, str]]:
    """(requirement, extra or nothing) as this installation's metadata lists them."""
    found = []
    for line in metadata.requires("tightz") or []:
        requirement, _, condition = line.partition(";")
        extra = re.search(r"extra == ['\"]([\w-]+)['\"]", condition)
        found.append((requirement.strip(), extra[1] if extra else ""))
    return found


def _name(requirement: str) -> str:
    match = re.match(r"[\w.-]+", requirement)
    return match[0] if match else requirement


def _installed(requirement: str) -> tuple[str, str]:
    """(OK or nothing, the version or what is wrong with it)."""
    wanted = re.search(r">=\s*([\d.]+)", requirement)
    try:
        version = metadata.version(_name(requirement))
    except metadata.PackageNotFoundError:
        return "", "is not installed"
    if wanted and _numbers(version) < _numbers(wanted[1]):
        return "", f"{version} is too old, expected {wanted[1]} or later"
    return OK, version


def _numbers(version: str) -> list[int]:
    return [int(n) for n in re.findall(r"\d+", version)[:3]]


def _machine() -> Iterator[Check]:
    from tightz.runtime.cores import usable_cores

    usable = usable_cores()
    yield Check("machine", "cores", OK, f"{usable} usable of {os.cpu_count()}")
    yield Check("machine", "memory", OK, _memory())


def _memory() -> str:
    from tightz.runtime.memory import format_bytes

    try:
        page = os.sysconf("SC_PAGE_SIZE")
        total, free = (page * os.sysconf(f"SC_{kind}PHYS_PAGES") for kind in ("", "AV"))
    except (AttributeError, OSError, ValueError):
        return "not told by this system"
    return f"{format_bytes(total)}, {format_bytes(free)} free"


def _gpu() -> Iterator[Check]:
    from tightz.paper.gpu.availability import why_no_device

    reason = why_no_device()
    if reason:
        yield Check("gpu", "cuda", LACKING, f"the CPU does the work: {reason}")
        return
    from tightz.runtime.gpu.device import cuda, free_bytes
    from tightz.runtime.memory import format_bytes

    device = cuda.get_current_device()
    name = device.name.decode() if isinstance(device.name, bytes) else device.name
    capability = ".".join(map(str, device.compute_capability))
    driver = ".".join(map(str, cuda.cudadrv.driver.driver.get_version()))
    yield Check(
        "gpu", "cuda", OK,
        f"{name}, {format_bytes(free_bytes())} free, compute capability {capability}, "
        f"driver for CUDA {driver}, numba-cuda {_installed('numba-cuda')[1]}",
    )  # fmt: skip


def _data() -> Iterator[Check]:
    folder = os.environ.get("TIGHTZ_DATA")
    if not folder:
        found = "unset: MNIST is downloaded when it is asked for"
        yield Check("data", "TIGHTZ_DATA", LACKING, found)
    elif not Path(folder).is_dir():
        remedy = "set it to a folder with mnist/ or rbm/ in it, or unset it"
        yield Check("data", "TIGHTZ_DATA", LACKING, f"{folder} is not a folder", remedy)
    else:
        inside = sorted(entry.name for entry in Path(folder).iterdir() if entry.is_dir())
        yield Check("data", "TIGHTZ_DATA", OK, f"{folder}: {', '.join(inside) or 'no folders'}")


def _self_check() -> Iterator[Check]:
    """Mean field, elimination and mini-buckets on a small grid, which must bracket log Z."""
    import tightz as tz

    start = time.perf_counter()
    grid = tz.ising_grid(4, coupling=(-2, 2), seed=0)
    lower = tz.mean_field(grid, family=tz.MeanField(restarts=4), seed=0).log_z
    exact = tz.exact(grid, marginals=False).log_z
    upper = tz.upper_bound(grid, method=tz.MiniBucket(ibound=2, iterations=10)).log_z
    holds = lower <= exact + 1e-9 and exact <= upper + 1e-9
    yield Check(
        "self-check", "4x4 grid", OK if holds else BROKEN,
        f"{lower:.4f} <= {exact:.4f} <= {upper:.4f} (mean field, exact, mini-bucket) "
        f"{'holds' if holds else 'does not hold'}, {time.perf_counter() - start:.1f} s",
        "" if holds else "reinstall numba; a bound that fails here fails everywhere",
    )  # fmt: skip


def _kernels() -> Iterator[Check]:
    """Which kernels are compiled, where, and for which version."""
    from tightz.runtime.kernels import registry, store
    from tightz.runtime.kernels.farm import missing
    from tightz.runtime.memory import format_bytes

    remedy = f"set {store.CHOSEN} to a folder that you can write"
    kept = [folder for folder in store.places() if folder.is_dir()]
    taken = next((folder for folder in store.places() if store.takes_files(folder)), None)
    for folder in dict.fromkeys([*kept, *([taken] if taken else [])]):
        size = format_bytes(sum(file.stat().st_size for file in folder.iterdir()))
        how = "new kernels go there" if folder == taken else "not writable, read"
        yield Check("kernels", "folder", OK, f"{folder}, {size}, {how}")
    if taken is None:
        yield Check("kernels", "folder", LACKING, "none takes files: runs compile anew", remedy)
    total, lacking = len(registry.everything()), missing(registry.everything())
    seconds = sum(kernel.seconds for kernel in lacking)
    told = (
        f"{total - len(lacking)} of {total} for tightz {__version__}, sources {store.fingerprint()}"
    )
    advice = f"tightz compile takes about {seconds:.0f} CPU seconds, once" if lacking else ""
    yield Check("kernels", "compiled", LACKING if lacking else OK, told, advice)
