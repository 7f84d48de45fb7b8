"""``python -m magpy_like`` is the command ``magpy``."""

from magpy_like.cli import main

main(prog_name="magpy")
