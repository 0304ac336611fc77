"""`python -m transduce` is `transduce`."""

from transduce.cli import main

__all__: list[str] = []

if __name__ == "__main__":
    main()
