"""The torch engine: the only part of the package that imports torch."""
