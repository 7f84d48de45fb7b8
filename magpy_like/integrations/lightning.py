"""A callback of Lightning that compiles the ``LightningModule`` of a trainer.

For trainers that are configured where the module is not at hand, as in a configuration file. Where
it is, ``trainer.fit(magpy_like.compile(module))`` does the same.
"""

from __future__ import annotations

from typing import Any

from magpy_like.api import compile as compile_module

try:
    from lightning.pytorch import Callback
except ImportError:
    try:
        from pytorch_lightning import Callback
    except ImportError as missing:
        raise ImportError(
            "magpy_like.integrations.lightning needs Lightning, which cannot be imported "
            f"({missing}): pip install lightning"
        ) from missing


class MagpyCallback(Callback):
    """Compiles the module that a trainer fits, validates, tests or predicts with.

    ``trainer.lightning_module`` is the compiled module from then on: ``cache_info`` takes it. It
    shares its state with the module that the trainer was given, and stays the same in later runs.
    """

    def __init__(
        self,
        fullgraph: bool = False,
        dynamic: bool | None = None,
        backend: str = "magpy",
        mode: str | None = None,
        options: dict[str, Any] | None = None,
    ) -> None:
        """The arguments are those of :func:`magpy_like.compile`."""
        self._settings: dict[str, Any] = {
            "fullgraph": fullgraph,
            "dynamic": dynamic,
            "backend": backend,
            "mode": mode,
            "options": options,
        }
        self._compiled: Any = None

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Let the trainer run the compiled module; before its strategy wraps or moves it."""
        if self._compiled is None or self._compiled._orig_mod is not pl_module:
            self._compiled = compile_module(pl_module, **self._settings)
        trainer.strategy.connect(self._compiled)
