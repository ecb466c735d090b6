"""Runs the command line: `python -m app.cli`."""

from app.cli import main

main()
