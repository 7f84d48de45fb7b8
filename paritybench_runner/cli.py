"""The command line."""

import platform
import signal
import sys
from pathlib import Path
from typing import Any

import click
import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from paritybench_runner import corpus, report, run_results
from paritybench_runner.compilers import COMPILERS
from paritybench_runner.supervisor import Limits, Supervisor
from paritybench_runner.worker import Job

_GIB = 1024**3
_FOLDER = click.Path(path_type=Path)


def _compilers(_: click.Context, __: click.Parameter, value: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(name.strip() for name in value.split(",") if name.strip()))
    unknown = [name for name in names if name not in COMPILERS]
    if unknown or not names:
        raise click.BadParameter(f"{value!r}: choose from {', '.join(COMPILERS)}")
    return names


@click.group(invoke_without_command=True)
@click.option("--corpus", "root", type=_FOLDER, help="Folder of test_*.py, or one with generated/.")
@click.option("--files", "listing", type=_FOLDER, help="Run the files this list names, one a line.")
@click.option(
    "--compilers",
    default="magpy",
    callback=_compilers,
    show_default=True,
    help=f"One or several of {','.join(COMPILERS)}.",
)
@click.option(
    "--backend",
    type=click.Choice(["eager", "magpy"]),
    default="eager",
    show_default=True,
    help="What runs the graphs.",
)
@click.option("--device", type=click.Choice(["cpu", "cuda"]), default="cpu", show_default=True)
@click.option("--train", is_flag=True, help="Training mode; gradients are compared as well.")
@click.option("--jobs", type=click.IntRange(1), default=1, show_default=True, help="Files at once.")
@click.option(
    "--timeout",
    type=click.FloatRange(0, min_open=True),
    default=120.0,
    show_default=True,
    help="Seconds for each step of a file: its import, a test in eager mode or in one compiler.",
)
@click.option(
    "--memory",
    type=click.FloatRange(0, min_open=True),
    default=12.0,
    show_default=True,
    help="What a file's process may take in GiB: addresses; with --device cuda, memory, and as "
    "much on the GPU.",
)
@click.option("--filter", "pattern", help="Part of a file or module name, or FILE::MODULE.")
@click.option("--shard", help="i/n: part i of n of the files.")
@click.option("--resume", is_flag=True, help="Go on with the run in --out.")
@click.option("--out", type=_FOLDER, help="Folder for the results.")
@click.pass_context
def main(context: click.Context, **options: Any) -> None:
    """Runs a corpus of PyTorch programs through compilers and says what became of each.

    Writes results.jsonl, summary.md and report.html to --out.
    """
    if context.invoked_subcommand is not None:
        return
    for needed in ("root", "out"):
        if options[needed] is None:
            name = {"root": "--corpus"}.get(needed, f"--{needed}")
            raise click.UsageError(f"Missing option '{name}'.")
    try:
        _run(**options)
    except (corpus.CorpusError, run_results.RunError) as error:
        raise click.ClickException(str(error)) from None


def _run(
    root: Path,
    listing: Path | None,
    compilers: tuple[str, ...],
    backend: str,
    device: str,
    train: bool,
    jobs: int,
    timeout: float,
    memory: float,
    pattern: str | None,
    shard: str | None,
    resume: bool,
    out: Path,
) -> None:
    if device == "cuda" and not torch.cuda.is_available():
        raise click.UsageError("--device cuda: PyTorch finds no GPU here")
    folder = corpus.folder_of(root.absolute())
    files = corpus.shard(corpus.discover(folder, listing), shard)
    files = corpus.wanted_files(files, pattern)
    described = {
        "corpus": str(root.absolute()),
        "compilers": list(compilers),
        "backend": backend,
        "device": device,
        "train": train,
        "filter": pattern,
        "shard": shard,
        "timeout": timeout,
        "memory": memory,
        "files": len(files),
        "torch": torch.__version__,
        "python": platform.python_version(),
    }
    writer = run_results.Writer(out, described, resume)
    done = {line["file"] for line in writer.done}
    todo = [
        Job(str(path), compilers, backend, device, train, pattern)
        for path in files
        if path.name not in done
    ]
    limits = Limits(timeout, int(memory * _GIB))
    interrupted = False
    # However the run is told to stop, files' processes end and what is done is summed up.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with (
            Supervisor(limits, jobs, compilers, device, backend) as supervisor,
            _Bar(len(files), compilers) as bar,
        ):
            for line in writer.done:
                bar.count(line)
            for line in supervisor.run(todo):
                writer.append(line)
                bar.count(line)
    except KeyboardInterrupt:
        interrupted = True
    finally:
        writer.close()
    _, lines = run_results.read(out)
    order = {path.name: number for number, path in enumerate(files)}
    lines.sort(key=lambda line: order.get(line["file"], -1))
    text = report.summary(described, lines)
    (out / "summary.md").write_text(text)
    (out / "report.html").write_text(report.html(described, lines))
    click.echo(text.partition("## Reasons")[0])
    click.echo(f"{out / 'summary.md'}, {out / 'report.html'}")
    if interrupted:
        click.echo(f"Stopped after {len(lines)} of {len(files)} files; --resume goes on.", err=True)
        sys.exit(130)


class _Bar:
    """The progress bar: files done, tests by class for each compiler, time left."""

    def __init__(self, total: int, compilers: tuple[str, ...]) -> None:
        self._compilers = compilers
        self._lines: list[dict[str, Any]] = []
        self._progress = Progress(
            TextColumn("files"),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[counts]}"),
            console=Console(stderr=True),
        )
        self._task = self._progress.add_task("", total=total, counts="")

    def __enter__(self) -> "_Bar":
        self._progress.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._progress.stop()

    def count(self, line: dict[str, Any]) -> None:
        self._lines.append(line)
        counts = []
        for compiler in self._compilers:
            classes = [test.klass for test in run_results.tests(self._lines, compiler)]
            by_class = [(name, classes.count(name)) for name in run_results.CLASSES]
            shown = " ".join(f"{name} {count}" for name, count in by_class if count)
            counts.append(f"{compiler}: {shown or '–'}")
        self._progress.update(self._task, advance=1, counts="  ".join(counts))


@main.command()
@click.argument("before", type=_FOLDER)
@click.argument("after", type=_FOLDER)
def compare(before: Path, after: Path) -> None:
    """Says which tests changed their class from run BEFORE to run AFTER.

    Exits with 1 when a test got worse.
    """
    try:
        (run, old), (other, new) = run_results.read(before), run_results.read(after)
    except run_results.RunError as error:
        raise click.ClickException(str(error)) from None
    common = [compiler for compiler in run["compilers"] if compiler in other["compilers"]]
    if not common:
        raise click.ClickException("the two runs have no compiler in common")
    changed = report.changes(old, new, common)
    click.echo(report.comparison(changed, report.in_one_only(old, new, common[0])))
    sys.exit(any(change.worse for change in changed))
