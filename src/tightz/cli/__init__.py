"""The command line: every command is a few lines over one public function."""

from tightz.cli.main import main

__all__ = ["main"]
