"""The command ``magpy``: the installation, the cache on disk, and operation annotations."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import sys
from collections.abc import Iterator

import click

from magpy_like.command_group import CommandGroup
from magpy_like.disk_cache import maintenance, user_settings


@click.group(cls=CommandGroup)
@click.version_option(package_name="magpy-like", prog_name="magpy")
def main() -> None:
    """Tools around compiled PyTorch programs."""


@main.command()
def doctor() -> None:
    """Check this installation: versions, compiler, helper, cache, GPU, and a compiled program.

    Exits with 1 if something is wrong.
    """
    from magpy_like.doctor import examine  # imports torch

    faults = 0
    for finding in examine():
        click.echo(f"{finding.subject:<14} {finding.text}")
        if finding.fault:
            faults += 1
            click.echo(f"{'':<14} wrong: {finding.fault}")
    click.echo("nothing is wrong" if not faults else f"{faults} to mend")
    sys.exit(1 if faults else 0)


@main.group(cls=CommandGroup)
def cache() -> None:
    """Compiled kernels and graphs on disk.

    MAGPY_CACHE_DIR is their folder, MAGPY_CACHE_SIZE the bound on its size (10GB).
    """


@cache.command()
def info() -> None:
    """Path, number of entries and size of the cache."""
    with _refusals_reported():
        _show(maintenance.info())
    click.echo(f"limit    {_size(user_settings.size_limit())}")
    if user_settings.is_read_only():
        click.echo("MAGPY_CACHE_READONLY is set: nothing is added or deleted")


@cache.command()
@click.option("--max-size", metavar="SIZE", help="Such as 500MB or 2GiB; else MAGPY_CACHE_SIZE.")
def prune(max_size: str | None) -> None:
    """Delete the entries used least recently, down to a size.

    Entries used in the last minute stay: a process may be about to load them.
    """
    try:
        limit = None if max_size is None else user_settings.parse_size(max_size)
    except ValueError as error:
        raise click.BadParameter(f"{error}: write 500MB or 2GiB", param_hint="--max-size") from None
    with _refusals_reported():
        removed = maintenance.prune(limit)
        click.echo(f"deleted  {removed.entries}, {_size(removed.size)}")
        _show(maintenance.info())


@cache.command()
def clear() -> None:
    """Delete all entries; they are compiled again on the next use."""
    with _refusals_reported():
        before = maintenance.clear()
    click.echo("deleted:")
    _show(before)


@cache.command()
@click.option("--delete", is_flag=True, help="Delete the faulty entries.")
def verify(delete: bool) -> None:
    """Check every entry: its permissions, and that it is whole.

    Exits with 1 if an entry is faulty and stays. Faulty entries are never loaded, and are made
    again when they are needed.
    """
    left = 0
    with _refusals_reported():
        for fault in maintenance.verify(remove=delete):
            left += not fault.is_removed
            label = "deleted" if fault.is_removed else "faulty"
            click.echo(f"{label:<8} {fault.description}")
        _show(maintenance.info())
    sys.exit(1 if left else 0)


@contextlib.contextmanager
def _refusals_reported() -> Iterator[None]:
    """A cache folder that is not used ends the command with the reason and the remedy."""
    try:
        yield
    except (OSError, RuntimeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise click.ClickException(f"the cache is not used: {reason}") from None


def _show(held: maintenance.CacheInfo) -> None:
    click.echo(f"path     {held.path}")
    for kind, label in (("cpp", "kernels"), ("blob", "graphs")):
        click.echo(f"{label:<8} {held.entries[kind]}, {_size(held.size[kind])}")


def _size(count: float) -> str:
    if count == float("inf"):
        return "unlimited"
    return f"{count / 2**20:.2f} MiB" if count < 2**30 else f"{count / 2**30:.2f} GiB"


if importlib.util.find_spec("magpy_like.annotation.annotation_command") is not None:
    main.add_command(
        importlib.import_module("magpy_like.annotation.annotation_command").annotations
    )
