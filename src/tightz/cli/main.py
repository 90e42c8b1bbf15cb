"""The `tightz` command group and its error handling. Heavy imports stay inside the commands."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import Any

import click

from tightz.cli import (
    commands,
    compile,
    demo,
    doctor,
    ensembles,
    exits,
    experiments,
    models,
    references,
    report,
    rows,
    theorem,
    thermal,
)
from tightz.errors import TightzError
from tightz.version import __version__

_EPILOG = "\n".join(
    ["\b", "Exit codes:", *(f"  {n:>3}  {what}" for n, what in exits.CODES.items())]
)

HELP = {"help_option_names": ["-h", "--help"]}


class Group(click.Group):
    """Turns tightz errors and signals into one line on stderr and an exit code (`exits.CODES`)."""

    def add_command(self, cmd: click.Command, name: str | None = None) -> None:
        """Commands know `-h` by themselves: click keeps the help option of a command's first use,
        which may not have been through this group."""
        waiting = [cmd]
        while waiting:
            command = waiting.pop()
            command.context_settings = {**HELP, **command.context_settings}
            if isinstance(command, click.Group):
                waiting += command.commands.values()
        super().add_command(cmd, name)

    def invoke(self, ctx: click.Context) -> Any:
        exits.listen()
        try:
            return super().invoke(ctx)
        except TightzError as error:
            click.echo(f"error: {error}", err=True)
            ctx.exit(exits.code_of(error))
        except KeyboardInterrupt:
            click.echo("interrupted", err=True)
            ctx.exit(exits.interrupt_code())
        except BrokenPipeError:
            sys.stderr.close()
            ctx.exit(0)
        except OSError as error:  # a full disk, a file that vanished
            place = f"{error.filename}: " if error.filename else ""
            click.echo(f"error: {place}{error.strerror or error}", err=True)
            with contextlib.suppress(OSError):
                sys.stdout.close()
            ctx.exit(exits.code_of(error))


@click.group(cls=Group, context_settings=HELP, epilog=_EPILOG)
@click.version_option(__version__, prog_name="tightz")
def main() -> None:
    """Bounds on the log partition function of discrete graphical models.

    MODEL is a file; its ending (or --format) tells the kind: .uai, .fg (libDAI), .cnf, .bif, .xml
    (XMLBIF), or arrays in .npz, .mat or .h5: RBM weights W, visible_bias, hidden_bias, or any
    model that tz.write wrote. All values are natural logs. Results go to stdout, progress and
    errors to stderr. TIGHTZ_LOG=WARNING shows the traceback of a stream that failed.

    \b
    Examples:
      tightz generate ising-grid 20 --coupling -10 10 --seed 0 -o grid.uai
      tightz info grid.uai
      tightz logz grid.uai
      tightz mfrp grid.uai -m 5 --trials 5 --restarts 8 --seed 0
      tightz doctor
    """
    if "TIGHTZ_LOG" in os.environ:
        import logging

        logging.basicConfig(level=os.environ["TIGHTZ_LOG"].upper())


for command in (
    *commands.COMMANDS,
    thermal.free_energy,
    *rows.COMMANDS,
    models.info,
    ensembles.generate,
    *references.COMMANDS,
    *experiments.COMMANDS,
    demo.demo,
    report.report,
    theorem.theorem,
    compile.compile_kernels,
    doctor.doctor,
):
    main.add_command(command)
