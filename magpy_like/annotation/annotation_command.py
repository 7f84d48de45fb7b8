"""The command ``magpy annotations``: load and verify annotations."""

import difflib
import sys
from collections import defaultdict
from collections.abc import Iterable
from fnmatch import fnmatchcase
from pathlib import Path

import click

from magpy_like.annotation.loader import is_pattern
from magpy_like.command_group import CommandGroup
from magpy_like.errors import AnnotationError


@click.group(cls=CommandGroup)
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

    Exits with 1 when an annotation cannot be used as written or a claim is refuted, and with 2 when
    no operation has such a name.
    """
    from magpy_like.annotation.verify import Result, verify
    from magpy_like.annotation.verify.fact_checks import verify_facts
    from magpy_like.annotation.verify.verification import table_of_files

    try:
        table = table_of_files(files)
    except AnnotationError as error:
        click.echo(error, err=True)
        sys.exit(1)

    if not files:
        minutes = ", which takes minutes" if only == "*" else ""
        click.echo(f"no file is given: verifies the annotations of magpy_like{minutes}", err=True)
    known: list[str] = []

    def show(result: Result) -> None:
        for verdict in result.refuted:
            click.echo(f"{result.source}: {result.operation}: {verdict.claim}: {verdict.detail}")

    def selected(name: str) -> bool:
        known.append(name)
        return fnmatchcase(name, only)

    report = verify(table, only=selected, progress=show)
    for result in verify_facts(selected):
        report.results.append(result)
        show(result)
    if not report.results:
        raise click.BadParameter(
            f"no operation is named {only!r}{_similar(only, known)}", param_hint="--only"
        )
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


_SIMILAR = 5
"""Names that a message lists."""


def _similar(pattern: str, names: Iterable[str]) -> str:
    """The names that resemble one that no operation has, in words.

    An operation of torch has its name where it is defined, so last parts are compared:
    ``torch.relu`` finds ``torch._C._VariableFunctionsClass.relu``. Of ``maths.*``, namespaces are.
    """
    owner, _, last = pattern.rpartition(".")
    patterned = is_pattern(last)
    by_part: dict[str, list[str]] = defaultdict(list)
    for name in sorted(set(names)):
        namespace, _, end = name.rpartition(".")
        found = by_part[namespace if patterned else end]
        found.append(f"{namespace}.{last}" if patterned else name)
    closest = difflib.get_close_matches(owner if patterned else last, by_part)
    similar = list(dict.fromkeys(name for part in closest for name in by_part[part]))
    shown = ", ".join(map(repr, similar[:_SIMILAR]))
    return f"; similar are {shown}" if shown else ""
