"""Every command's help has a worked example, and explains delta, m, T and J with numbers."""

from __future__ import annotations

import re

import click
import pytest
from click.testing import CliRunner

from tightz.cli.main import main

SYMBOLS = {
    "delta": r"delta = 0\.\d+",
    "m": r"\bm = \d+",
    "levels": r"\bm = \d+",
    "trials": r"\bT = \d+",
    "restarts": r"\bJ = \d+",
}
"""What the help of an option with that name must hold: its letter with a number."""


def commands(command=main, path=()):
    yield path, command
    if isinstance(command, click.Group):
        for name, inner in command.commands.items():
            yield from commands(inner, (*path, name))


ALL = [pytest.param(path, command, id=" ".join(path) or "tightz") for path, command in commands()]


def options_of(command):
    return [p for p in command.params if isinstance(p, click.Option)]


@pytest.mark.parametrize(("path", "command"), ALL)
def test_help_shows_a_call_of_the_command(path, command):
    CliRunner().invoke(command, ["--help"])  # click keeps the help option of the first use
    result = CliRunner().invoke(main, [*path, "--help"])
    assert result.exit_code == 0
    example = result.stdout.partition("Example")[2]
    assert " ".join(["tightz", *path]) in example
    short = CliRunner().invoke(main, [*path, "-h"])
    assert short.stdout == result.stdout


@pytest.mark.parametrize(("path", "command"), ALL)
def test_every_option_is_explained(path, command):
    for option in options_of(command):
        assert option.help, option.name
        assert len(option.help) > 5


@pytest.mark.parametrize(("path", "command"), ALL)
def test_the_letters_of_the_paper_come_with_numbers(path, command):
    for option in options_of(command):
        if option.name in SYMBOLS:
            assert re.search(SYMBOLS[option.name], option.help), (option.name, option.help)


@pytest.mark.parametrize(("path", "command"), ALL)
def test_the_worked_example_parses(path, command):
    """The first example's options exist and have values of the right type."""
    text = CliRunner().invoke(main, [*path, "--help"]).stdout
    line = re.search(rf"tightz {' '.join(path)}[^\n&|]*", text.partition("Example")[2])
    assert line, text
    words = line[0].split()[1:]
    inner: click.Command = main
    while isinstance(inner, click.Group) and words:
        inner = inner.commands[words.pop(0)]
    if not isinstance(inner, click.Group):
        inner.make_context(" ".join(path), words)


def test_the_letters_are_found_at_all():
    named = {option.name for _, command in commands() for option in options_of(command)}
    assert named >= SYMBOLS.keys()
