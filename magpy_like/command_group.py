"""Groups of commands that say which commands they have."""

from __future__ import annotations

import click

from magpy_like.errors import known_names


class CommandGroup(click.Group):
    """A group that lists its commands where one does not exist."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name, names = args[0], self.list_commands(ctx)
        if name not in names and not name.startswith("-") and not ctx.resilient_parsing:
            ctx.fail(f"No such command {name!r}; there are {known_names(name, names)}")
        return super().resolve_command(ctx, args)
