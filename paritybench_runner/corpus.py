"""Corpus files: a folder of Python files `test_*.py`, each with a list `TESTCASES`.

The first three items of an entry of `TESTCASES` are an `nn.Module` class, a function that returns
the arguments of its constructor, and a function that returns the arguments of its `forward`, both
as `(args, kwargs)`. Further items are ignored; ParityBench has one, "TorchScript accepts it".
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
    """The corpus, the list of files or the shard does not exist. The message names the remedy."""


@dataclasses.dataclass(frozen=True)
class Case:
    """One entry of a file's `TESTCASES`."""

    index: int
    module: str
    build: Callable[..., Any]
    init_arguments: Callable[[], Arguments]
    forward_arguments: Callable[[], Arguments]


def find_test_folder(corpus: Path) -> Path:
    """Returns the folder of the tests: `generated/` in a ParityBench checkout, else `corpus`.

    Raises:
        CorpusError: `corpus` is no folder.
    """
    if not corpus.is_dir():
        raise CorpusError(f"--corpus {corpus}: no such folder")
    generated = corpus / "generated"
    return generated if generated.is_dir() else corpus


def discover(folder: Path, listing: Path | None = None) -> list[Path]:
    """Returns the corpus files of `folder`, sorted; only those named in `listing`, if there is one.

    `listing` has one name per line; lines that begin with `#` are comments.

    Raises:
        CorpusError: `folder` has no corpus file, or `listing` or a file that it names is missing.
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


def select_shard(files: list[Path], shard: str | None) -> list[Path]:
    """Returns part i of n of the files; `shard` is `"i/n"`, i from 1, or None for all files.

    A hash of its name assigns a file to its part, so that adding and removing files moves no other.

    Raises:
        CorpusError: `shard` does not have that form.
    """
    if shard is None:
        return files
    part, _, parts = shard.partition("/")
    if not (part.isdigit() and parts.isdigit() and 1 <= int(part) <= int(parts)):
        raise CorpusError(f"--shard {shard}: expected i/n with 1 <= i <= n, such as 1/4")
    wanted = int(part) - 1
    return [path for path in files if _shard_of(path.name, int(parts)) == wanted]


def _shard_of(name: str, parts: int) -> int:
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big") % parts


def filter_files(files: Iterable[Path], pattern: str | None) -> list[Path]:
    """Returns the files that may contain a test matched by `--filter`; decided without import.

    Raises:
        CorpusError: no file does.
    """
    if pattern is None:
        return list(files)
    in_file, named, _ = pattern.partition("::")
    # The text of a file contains the names of its modules, at least in TESTCASES.
    found = [
        path
        for path in files
        if in_file in path.name or (not named and pattern.encode() in path.read_bytes())
    ]
    if not found:
        raise CorpusError(f"--filter {pattern}: no file contains such a test")
    return found


def matches_filter(pattern: str | None, file: str, module: str) -> bool:
    """True if `--filter` selects the test: part of the file or module name, or `FILE::MODULE`."""
    if pattern is None:
        return True
    if "::" in pattern:
        in_file, _, name = pattern.partition("::")
        return in_file in file and name == module
    return pattern in file or pattern in module


def load_cases(path: Path) -> list[Case]:
    """Imports a corpus file and returns its tests.

    The module is registered under the file's stem, so that its classes can be pickled.

    Raises:
        Exception: any exception that the import raises.
    """
    module = types.ModuleType(path.stem)
    module.__file__ = str(path)
    sys.modules[path.stem] = module
    # The import system would write bytecode files into the user's checkout.
    exec(compile(path.read_bytes(), str(path), "exec"), module.__dict__)
    return [_parse_case(*entry) for entry in enumerate(getattr(module, "TESTCASES", []))]


def _parse_case(index: int, entry: Any) -> Case:
    """Returns the test of one entry of `TESTCASES`.

    Raises:
        TypeError: the entry has another form.
    """
    if not isinstance(entry, tuple | list) or len(entry) < 3 or not all(map(callable, entry[:3])):
        raise TypeError(
            f"TESTCASES[{index}] is not (module class, function that returns the constructor's "
            "arguments, function that returns forward's arguments)"
        )
    build, init, forward = entry[:3]
    return Case(index, getattr(build, "__name__", str(build)), build, init, forward)
