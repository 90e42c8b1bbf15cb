"""The `tightz` command group and its error handling. Heavy imports stay inside the commands."""

from __future__ import annotations

import sys
from typing import Any

import click

from tightz import __version__
from tightz.cli import commands, demo, experiments, references
from tightz.errors import TightzError


class Group(click.Group):
    """Turns tightz errors into one line on stderr and exit code 2; Ctrl-C into exit code 130."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except TightzError as error:
            click.echo(f"error: {error}", err=True)
            ctx.exit(2)
        except KeyboardInterrupt:
            click.echo("interrupted", err=True)
            ctx.exit(130)
        except BrokenPipeError:
            sys.stderr.close()
            ctx.exit(0)


@click.group(cls=Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="tightz")
def main() -> None:
    """Bounds on the log partition function of discrete graphical models.

    MODEL is a UAI file (.uai) or RBM weights (.npz with W, visible_bias, hidden_bias). All values
    are natural logs. Results go to stdout, progress and errors to stderr.

    \b
    Examples:
      tightz generate ising-grid 20 --coupling -10 10 --seed 0 -o grid.uai
      tightz info grid.uai
      tightz logz grid.uai
      tightz mfrp grid.uai -m 5 --trials 5 --restarts 8 --seed 0
    """


for command in (*commands.COMMANDS, *references.COMMANDS, *experiments.COMMANDS, demo.demo):
    main.add_command(command)
