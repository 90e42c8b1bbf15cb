"""`python -m tightz`."""

from tightz.cli import main

main()
