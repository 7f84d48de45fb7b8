"""The command ``magpy annotations``: load and verify annotations."""

import sys
from fnmatch import fnmatchcase
from pathlib import Path

import click

from magpy_like.errors import AnnotationError


@click.group()
def annotations() -> None:
    """Annotations of operations."""


@annotations.command()
@click.argument("files", nargs=-1, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--only", metavar="PATTERN", default="*", help="Operations by name, such as 'builtins.list.*'."
)
@click.option("--verbose", "-v", is_flag=True, help="List what could not be verified.")
def check(files: tuple[Path, ...], only: str, verbose: bool) -> None:
    """Load all annotations, and those of FILES, and verify them by running the operations.

    Exits with 1 when an annotation cannot be used as written or a claim is refuted.
    """
    from magpy_like.annotation.verify import Result, verify
    from magpy_like.annotation.verify.fact_checks import verify_facts
    from magpy_like.annotation.verify.verification import table_of_files

    try:
        table = table_of_files(files)
    except AnnotationError as error:
        click.echo(error, err=True)
        sys.exit(1)

    def show(result: Result) -> None:
        for verdict in result.refuted:
            click.echo(f"{result.source}: {result.operation}: {verdict.claim}: {verdict.detail}")

    def selected(name: str) -> bool:
        return fnmatchcase(name, only)

    report = verify(table, only=selected, progress=show)
    for result in verify_facts(selected):
        report.results.append(result)
        show(result)
    for result, verdict in report.warnings:
        click.echo(
            f"{result.source}: warning: {result.operation}: {verdict.claim}: {verdict.detail}"
        )
    if verbose:
        for result in report.untried:
            click.echo(f"{result.source}: not verified: {result.operation}: {result.problem}")
    share = 100 * report.verified / report.claims if report.claims else 100.0
    dynamic = sum(not result.verdicts for result in report.results)
    click.echo(
        f"{len(report.results)} operations, {dynamic} of them dynamic; "
        f"{report.verified} of {report.claims} claims verified ({share:.1f} %), "
        f"{sum(len(result.refuted) for result in report.refuted)} refuted, "
        f"{len(report.untried)} operations could not be tried"
    )
    sys.exit(1 if report.refuted else 0)
