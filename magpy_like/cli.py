"""The command ``magpy``: the cache on disk, and operation annotations."""

from __future__ import annotations

import importlib
import importlib.util

import click

from magpy_like.disk_cache import cache_entries


@click.group()
def main() -> None:
    """Tools around compiled PyTorch programs."""


@main.group()
def cache() -> None:
    """Compiled kernels and graphs on disk (MAGPY_CACHE_DIR)."""


@cache.command()
def info() -> None:
    """Path, number of entries and size of the cache."""
    _show(cache_entries.info())


@cache.command()
def clear() -> None:
    """Delete all entries; they are compiled again on the next use."""
    click.echo("deleted:")
    _show(cache_entries.clear())


def _show(held: cache_entries.CacheInfo) -> None:
    click.echo(f"path     {held.path}")
    for kind, label in (("cpp", "kernels"), ("blob", "graphs")):
        click.echo(f"{label:<8} {held.entries[kind]}, {held.size[kind] / 2**20:.2f} MiB")


if importlib.util.find_spec("magpy_like.annotation.annotation_command") is not None:
    main.add_command(
        importlib.import_module("magpy_like.annotation.annotation_command").annotations
    )
