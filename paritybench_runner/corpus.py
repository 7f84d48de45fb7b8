"""A corpus: a folder of Python files `test_*.py`, each with a list `TESTCASES`.

An entry of `TESTCASES` is a tuple whose first three items are an `nn.Module` class, a function that
returns the arguments of its constructor and one that returns the arguments of its `forward`, both
as `(args, kwargs)`. Further items (ParityBench has one, "does TorchScript take it") are ignored.
"""

import dataclasses
import hashlib
import sys
import types
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

Arguments = tuple[list[Any], dict[str, Any]]


class CorpusError(Exception):
    """The corpus, a list of files or a shard is not there; the text says what to do."""


@dataclasses.dataclass(frozen=True)
class Case:
    """One entry of a file's `TESTCASES`."""

    index: int
    module: str
    build: Callable[..., Any]
    init_arguments: Callable[[], Arguments]
    forward_arguments: Callable[[], Arguments]


def find_test_folder(corpus: Path) -> Path:
    """The folder with the files: `generated/` in a checkout of ParityBench, else `corpus` itself.

    Raises:
        CorpusError: there is no such folder.
    """
    if not corpus.is_dir():
        raise CorpusError(f"--corpus {corpus}: no such folder")
    generated = corpus / "generated"
    return generated if generated.is_dir() else corpus


def discover(folder: Path, listing: Path | None = None) -> list[Path]:
    """The corpus files of `folder`, sorted; with `listing` (one name a line) only those it names.

    Raises:
        CorpusError: there is no file, no `listing`, or `listing` names one that does not exist.
    """
    if listing is None:
        files = sorted(path for path in folder.glob("test_*.py") if path.is_file())
        if not files:
            raise CorpusError(f"{folder}: no files test_*.py there")
        return files
    if not listing.is_file():
        raise CorpusError(f"--files {listing}: no such file")
    names = [line.strip() for line in listing.read_text().splitlines()]
    files = sorted(folder / Path(name).name for name in names if name and not name.startswith("#"))
    missing = [path.name for path in files if not path.is_file()]
    if missing:
        raise CorpusError(
            f"{listing}: {len(missing)} files are not in {folder}, {missing[0]} first"
        )
    return files


def select_shard(files: list[Path], which: str | None) -> list[Path]:
    """Part i of n (`"i/n"`, i from 1), by a hash of the name: it stays when files come and go.

    Raises:
        CorpusError: `which` is not of that form.
    """
    if which is None:
        return files
    part, _, parts = which.partition("/")
    if not (part.isdigit() and parts.isdigit() and 1 <= int(part) <= int(parts)):
        raise CorpusError(f"--shard {which}: expected i/n with 1 <= i <= n, such as 1/4")
    wanted = int(part) - 1
    return [path for path in files if _shard_of(path.name, int(parts)) == wanted]


def _shard_of(name: str, parts: int) -> int:
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big") % parts


def filter_files(files: Iterable[Path], pattern: str | None) -> list[Path]:
    """The files that can hold a test which `matches_filter` takes; only loading a file tells for sure.

    Raises:
        CorpusError: there is none.
    """
    if pattern is None:
        return list(files)
    in_file, named, _ = pattern.partition("::")
    # A module's name stands in the file, if only in TESTCASES.
    found = [
        path
        for path in files
        if in_file in path.name or (not named and pattern.encode() in path.read_bytes())
    ]
    if not found:
        raise CorpusError(f"--filter {pattern}: no file holds such a test")
    return found


def matches_filter(pattern: str | None, file: str, module: str) -> bool:
    """Whether `--filter` takes this test: part of `file.py::Module`, of either side of a `::`."""
    if pattern is None:
        return True
    if "::" in pattern:
        in_file, _, name = pattern.partition("::")
        return in_file in file and name == module
    return pattern in file or pattern in module


def load_cases(path: Path) -> list[Case]:
    """Imports a corpus file (under its stem, so that classes can be pickled) and lists its tests.

    Raises:
        Exception: whatever importing the file raises.
    """
    module = types.ModuleType(path.stem)
    module.__file__ = str(path)
    sys.modules[path.stem] = module
    # Not through the import system: that would write compiled files into somebody's checkout.
    exec(compile(path.read_bytes(), str(path), "exec"), module.__dict__)
    return [_parse_case(*entry) for entry in enumerate(getattr(module, "TESTCASES", []))]


def _parse_case(index: int, entry: Any) -> Case:
    """
    Raises:
        TypeError: an entry of `TESTCASES` is something else.
    """
    if not isinstance(entry, tuple | list) or len(entry) < 3 or not all(map(callable, entry[:3])):
        raise TypeError(
            f"TESTCASES[{index}] is not (module class, function that gives the constructor's "
            "arguments, function that gives forward's arguments)"
        )
    build, init, forward = entry[:3]
    return Case(index, getattr(build, "__name__", str(build)), build, init, forward)
