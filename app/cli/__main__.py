"""Runs the command line: `python -m app.cli`."""

from app.cli import main

if __name__ == "__main__":
    main()
