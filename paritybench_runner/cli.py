"""The command line: options, the course of a run, the progress bar."""

import dataclasses
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
_INTERRUPTED_EXIT_CODE = 130
_FOLDER = click.Path(path_type=Path)


@dataclasses.dataclass(frozen=True)
class RunSettings:
    """The options of a run. The attributes have the names of the command's parameters.

    Attributes:
        root: `--corpus`.
        listing: `--files`, the file that lists the corpus files to run.
        compilers: names of compilers, in order.
        backend: backend of the compilers.
        device: "cpu" or "cuda".
        train: training mode, gradients compared.
        jobs: number of files at once.
        timeout: seconds for each step of a file.
        memory: GiB for each file's process.
        pattern: `--filter`.
        shard: `--shard`, "i/n".
        resume: continue the run in `out`.
        out: folder for the results.
    """

    root: Path
    listing: Path | None
    compilers: tuple[str, ...]
    backend: str
    device: str
    train: bool
    jobs: int
    timeout: float
    memory: float
    pattern: str | None
    shard: str | None
    resume: bool
    out: Path

    def describe(self, file_count: int) -> dict[str, Any]:
        """Returns the contents of `run.json` for a run of `file_count` files."""
        return {
            "corpus": str(self.root.absolute()),
            "compilers": list(self.compilers),
            "backend": self.backend,
            "device": self.device,
            "train": self.train,
            "filter": self.pattern,
            "shard": self.shard,
            "timeout": self.timeout,
            "memory": self.memory,
            "files": file_count,
            "torch": torch.__version__,
            "python": platform.python_version(),
        }

    def job(self, path: Path) -> Job:
        """Returns the job that runs one corpus file."""
        return Job(str(path), self.compilers, self.backend, self.device, self.train, self.pattern)

    def supervisor(self) -> Supervisor:
        """Starts a supervisor with the limits of this run."""
        limits = Limits(self.timeout, int(self.memory * _GIB))
        return Supervisor(limits, self.jobs, self.compilers, self.device, self.backend)


def _parse_compilers(_: click.Context, __: click.Parameter, value: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(name.strip() for name in value.split(",") if name.strip()))
    unknown = [name for name in names if name not in COMPILERS]
    if unknown or not names:
        raise click.BadParameter(f"{value!r}: choose from {', '.join(COMPILERS)}")
    return names


@click.group(invoke_without_command=True)
@click.option("--corpus", "root", type=_FOLDER, help="Folder of test_*.py, or one with generated/.")
@click.option("--files", "listing", type=_FOLDER, help="List of the files to run, one per line.")
@click.option(
    "--compilers",
    default="magpy",
    callback=_parse_compilers,
    show_default=True,
    help=f"One or several of {','.join(COMPILERS)}.",
)
@click.option(
    "--backend",
    type=click.Choice(["eager", "magpy"]),
    default="eager",
    show_default=True,
    help="Backend that runs the operator graphs.",
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
    help="Limit of each file's process in GiB: of its address space; with --device cuda, of its "
    "memory, and the same again on the GPU.",
)
@click.option("--filter", "pattern", help="Part of a file or module name, or FILE::MODULE.")
@click.option("--shard", help="i/n: part i of n of the files.")
@click.option("--resume", is_flag=True, help="Continue the run in --out.")
@click.option("--out", type=_FOLDER, help="Folder for the results.")
@click.pass_context
def main(context: click.Context, **options: Any) -> None:
    """Runs a corpus of PyTorch programs through compilers and classifies the results.

    Writes results.jsonl, summary.md and report.html to --out.
    """
    if context.invoked_subcommand is not None:
        return
    for parameter, option in (("root", "--corpus"), ("out", "--out")):
        if options[parameter] is None:
            raise click.UsageError(f"Missing option '{option}'.")
    try:
        _run(RunSettings(**options))
    except (corpus.CorpusError, run_results.RunError) as error:
        raise click.ClickException(str(error)) from None


def _run(settings: RunSettings) -> None:
    if settings.device == "cuda" and not torch.cuda.is_available():
        raise click.UsageError("--device cuda: PyTorch finds no GPU here")
    files = _select_files(settings)
    description = settings.describe(len(files))
    writer = run_results.ResultsWriter(settings.out, description, settings.resume)
    was_interrupted = _run_files(settings, files, writer)
    lines = _read_in_order(settings.out, files)
    _write_reports(settings.out, description, lines)
    if was_interrupted:
        done = f"{len(lines)} of {len(files)} files"
        click.echo(f"Stopped after {done}; --resume continues the run.", err=True)
        sys.exit(_INTERRUPTED_EXIT_CODE)


def _select_files(settings: RunSettings) -> list[Path]:
    folder = corpus.find_test_folder(settings.root.absolute())
    files = corpus.select_shard(corpus.discover(folder, settings.listing), settings.shard)
    return corpus.filter_files(files, settings.pattern)


def _run_files(settings: RunSettings, files: list[Path], writer: run_results.ResultsWriter) -> bool:
    """Runs the files without results; returns True if the run was interrupted.

    SIGTERM interrupts like Ctrl-C: the files' processes end, and the results so far are reported.
    """
    done = {line["file"] for line in writer.done}
    jobs = [settings.job(path) for path in files if path.name not in done]
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with (
            settings.supervisor() as supervisor,
            _ProgressBar(len(files), settings.compilers) as bar,
        ):
            for line in writer.done:
                bar.count(line)
            for line in supervisor.run(jobs):
                writer.append(line)
                bar.count(line)
    except KeyboardInterrupt:
        return True
    finally:
        writer.close()
    return False


def _read_in_order(out: Path, files: list[Path]) -> list[dict[str, Any]]:
    """Returns the results of a run in the order of its files."""
    _, lines = run_results.read_run(out)
    order = {path.name: number for number, path in enumerate(files)}
    return sorted(lines, key=lambda line: order.get(line["file"], -1))


def _write_reports(out: Path, description: dict[str, Any], lines: list[dict[str, Any]]) -> None:
    text = report.render_summary(description, lines)
    (out / "summary.md").write_text(text)
    (out / "report.html").write_text(report.render_html(description, lines))
    click.echo(text.partition("## Reasons")[0])
    click.echo(f"{out / 'summary.md'}, {out / 'report.html'}")


class _ProgressBar:
    """Files done, tests by class for each compiler, time left."""

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

    def __enter__(self) -> "_ProgressBar":
        self._progress.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._progress.stop()

    def count(self, line: dict[str, Any]) -> None:
        """Adds one file's results."""
        self._lines.append(line)
        counts = []
        for compiler in self._compilers:
            classes = [test.klass for test in run_results.iterate_tests(self._lines, compiler)]
            by_class = [(name, classes.count(name)) for name in run_results.CLASSES]
            shown = " ".join(f"{name} {count}" for name, count in by_class if count)
            counts.append(f"{compiler}: {shown or '–'}")
        self._progress.update(self._task, advance=1, counts="  ".join(counts))


@main.command()
@click.argument("before", type=_FOLDER)
@click.argument("after", type=_FOLDER)
def compare(before: Path, after: Path) -> None:
    """Lists the tests whose class changed between runs BEFORE and AFTER.

    Exits with 1 if a test got worse.
    """
    try:
        old_run, old_lines = run_results.read_run(before)
        new_run, new_lines = run_results.read_run(after)
    except run_results.RunError as error:
        raise click.ClickException(str(error)) from None
    common = [name for name in old_run["compilers"] if name in new_run["compilers"]]
    if not common:
        raise click.ClickException("the two runs have no compiler in common")
    changes = report.find_changes(old_lines, new_lines, common)
    unshared = report.count_unshared_tests(old_lines, new_lines, common[0])
    click.echo(report.render_comparison(changes, unshared))
    sys.exit(any(change.worse for change in changes))
