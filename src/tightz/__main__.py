"""`python -m tightz`."""

from tightz.cli import entry

entry()
