"""Command line: ``python -m tests.version_matrix``."""

from __future__ import annotations

from pathlib import Path

import click

from magpy_like.bytecode.supported_versions import SUPPORTED
from magpy_like.torch_compat.supported_torch import NEWEST, OLDEST
from tests.version_matrix import cells

PYTHONS = [f"{major}.{minor}" for major, minor in SUPPORTED]
TORCHES = [f"{OLDEST[0]}.{minor}" for minor in range(OLDEST[1], NEWEST[1] + 1)]


@click.command()
@click.option("--python", "pythons", multiple=True, default=PYTHONS, show_default=True)
@click.option("--torch", "torches", multiple=True, default=TORCHES, show_default=True)
@click.option("--folder", type=click.Path(path_type=Path), default=Path("build/matrix"))
@click.option("--jobs", default=2, show_default=True, help="pytest processes of a pair")
@click.argument("tests", nargs=-1)
def main(
    pythons: tuple[str, ...],
    torches: tuple[str, ...],
    folder: Path,
    jobs: int,
    tests: tuple[str, ...],
) -> None:
    """Run TESTS (default: all) for each pair of versions, and print the table."""
    rows = []
    for python in pythons:
        for torch in torches:
            click.echo(f"Python {python}, torch {torch} …", err=True)
            rows.append(cells.run(cells.Pair(python, torch), folder.resolve(), jobs, tests))
            click.echo(cells.table(rows))
    raise SystemExit(any(row.failing or row.obstacle for row in rows))


if __name__ == "__main__":
    main()
