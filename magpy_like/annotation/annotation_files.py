"""The folder of the annotation files: in the installed package, or beside it in a checkout."""

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent.parent


def annotations_dir() -> Path:
    """The folder of the YAML annotation files that come with this package.

    A wheel carries them as `magpy_like/_annotations`; a source checkout and an editable install
    read the repository's `annotations/`.

    Raises:
        FileNotFoundError: neither folder exists; the installation is incomplete.
    """
    installed = _PACKAGE / "_annotations"
    checkout = _PACKAGE.parent / "annotations"
    for folder in (installed, checkout):
        if folder.is_dir():
            return folder
    raise FileNotFoundError(
        f"no operation annotations in {installed} or {checkout}: reinstall magpy_like"
    )
