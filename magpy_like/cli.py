"""The command ``magpy``."""

from __future__ import annotations

import importlib
import importlib.util

import click

from magpy_like.disk_cache import sealed_entries


@click.group()
def main() -> None:
    """Tools around compiled PyTorch programs."""


@main.group()
def cache() -> None:
    """Kernels and graphs kept on disk (MAGPY_CACHE_DIR)."""


@cache.command()
def info() -> None:
    """Where the cache is, and what it holds."""
    _show(sealed_entries.info())


@cache.command()
def clear() -> None:
    """Delete all entries; they are compiled again when needed."""
    click.echo("deleted:")
    _show(sealed_entries.clear())


def _show(held: sealed_entries.CacheInfo) -> None:
    click.echo(f"path     {held.path}")
    for kind, label in (("cpp", "kernels"), ("blob", "graphs")):
        click.echo(f"{label:<8} {held.entries[kind]}, {held.size[kind] / 2**20:.2f} MiB")


if importlib.util.find_spec("magpy_like.annotation.annotation_command") is not None:
    main.add_command(
        importlib.import_module("magpy_like.annotation.annotation_command").annotations
    )
