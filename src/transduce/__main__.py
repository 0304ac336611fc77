"""The entry point of `transduce` and `python -m transduce`: light, so that an interrupt is quiet at once."""

import sys

__all__ = ["main"]

INTERRUPTED = 130
"""Exit code, as of the commands."""


def main() -> None:
    """Run the command line, which takes a moment to load; it ends with SystemExit."""
    try:
        from transduce import cli

        cli.main()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


if __name__ == "__main__":
    main()
