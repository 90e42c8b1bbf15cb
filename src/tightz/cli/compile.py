"""`tightz compile`: every kernel before it is needed, for images, clusters and integration runs."""

from __future__ import annotations

import click

from tightz.cli.options import emit


@click.command("compile")
@click.argument("tasks", nargs=-1)
@click.option("--processes", "-j", type=int, help="Processes to compile in.  [default: all cores]")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON record.")
def compile_kernels(tasks: tuple[str, ...], processes: int | None, as_json: bool) -> None:
    """Compile the kernels that are not compiled yet, for TASKS or for everything.

    Kernels are compiled at first use anyway; this does it beforehand, as in building an image or
    before a cluster starts. They are kept in the user's cache folder, or in $NUMBA_CACHE_DIR, which
    must then be set when they are to be found. A task is a function (exact, ais, ...) or a stream
    of log_partition (annealed, capped, ...). Exit code 1: some could not be kept.

    \b
    Example: tightz compile
             tightz compile exact ais
             NUMBA_CACHE_DIR=/opt/kernels tightz compile
    """
    from tightz.errors import ParameterError, require_range
    from tightz.runtime.kernels import registry, store
    from tightz.runtime.kernels.farm import Farm, missing, said

    if processes is not None:
        require_range("--processes", processes, 1)
    unknown = [task for task in tasks if task not in registry.tasks()]
    if unknown:
        raise ParameterError(
            f"{unknown[0]!r} is no task; expected some of {', '.join(registry.tasks())}, or none"
        )
    wanted = registry.for_all_kinds(tasks) if tasks else registry.everything()
    todo = sorted(missing(wanted), key=lambda kernel: -kernel.seconds)

    def told(done: int, total: int) -> None:
        if not as_json:
            click.echo(said(done, total), err=True)

    with Farm(processes=processes, told=told, here=False) as farm:
        farm.want(todo)
        farm.wait()
    for kernel in wanted:  # into the folder that was asked for
        store.bring(kernel.file)
    lacking = missing(wanted)
    place = str(store.places()[0]) if store.places() else None
    if as_json:
        emit(
            "compile",
            kernels=len(wanted),
            compiled=len(todo) - len(lacking),
            lacking=[kernel.function for kernel in lacking],
            folder=place,
            seconds=farm.elapsed,
            cpu_seconds=farm.seconds,
            failed=farm.failed,
        )
    elif lacking:
        click.echo(f"{len(lacking)} of {len(wanted)} kernels are not kept in {place}")
        for line in farm.failed:
            click.echo(f"  {line}")
    else:
        click.echo(
            f"{len(wanted)} kernels in {place}; {len(todo)} compiled now, "
            f"{farm.seconds:.0f} CPU seconds in {farm.elapsed:.0f} s"
        )
    if lacking:
        click.get_current_context().exit(1)
