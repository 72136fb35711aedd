"""``fuzz-attn report``, ``watch`` and ``coverage``: the log of a run as a page, and its masks that lack an outcome."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import Console

from fuzz_attn.backends.kernel_coverage import FILE_NAME, load
from fuzz_attn.cli.options import FILE, exits
from fuzz_attn.errors import ReportError
from fuzz_attn.report.mask_gaps import print_gaps
from fuzz_attn.report.printing import console, show, whole

if TYPE_CHECKING:
    from fuzz_attn.report.page.run_log import RunLog

NEEDED = {"jinja2": "Jinja2", "markupsafe": "Jinja2"}


@click.command()
@click.argument("folders", metavar="DIR...", type=FILE, nargs=-1, required=True)
@click.option("--out", type=FILE, metavar="FILE", help="File of the page; of several runs, that of the trend.")
@click.option(
    "--link",
    default="",
    metavar="TEMPLATE",
    help="Link lines of source, for example https://github.com/me/repo/blob/main/{file}#L{line} or "
    "vscode://file/{path}:{line}.",
)
@exits
def report(*, folders: tuple[Path, ...], out: Path | None, link: str) -> int:
    """Write the page of a run: one HTML file that needs no network.

    DIR is the folder that a run printed; its page is report.html in that folder. Of several runs, each gets its page,
    and trend.html beside their folders shows what changed from run to run. A folder that holds folders of runs, such as
    reports/runs, stands for all of them.
    """
    _require_libraries()
    from fuzz_attn.report.page.run_log import runs_in  # noqa: PLC0415 - `run` must do without Jinja2

    runs = list(runs_in(folders))
    if len(runs) == 1:
        _write_run(runs[0], out, link)
    else:
        trend = out or _beside(runs)
        _write_trend([log for run in runs for log in _write_run(run, None, link, trend)], trend)
    return 0


def _require_libraries() -> None:
    """Raise :class:`ReportError` where the libraries of the pages are not installed."""
    try:
        import fuzz_attn.report.page.trend  # noqa: F401, PLC0415 - as above
    except ModuleNotFoundError as error:
        name = NEEDED.get((error.name or "").partition(".")[0])
        if name is None:
            raise
        raise ReportError(f"a page needs {name}: pip install 'fuzz-attn[report]'") from error


def _write_run(folder: Path, out: Path | None, link: str, trend: Path | None = None) -> list[RunLog]:
    """Write the page of a run, print where, and return its logs; a ``trend`` is written later."""
    from fuzz_attn.report.page import run_log, run_page  # noqa: PLC0415 - as above

    logs = run_log.read_run(folder)
    page = out or folder / run_page.PAGE_NAME
    targets = [log.target for log in logs]
    around = run_page.surroundings(folder, targets, page, link=link, trend=trend)
    _print(run_page.save(run_page.run_page(logs, time.time(), around=around), page))
    return logs


def _write_trend(logs: list[RunLog], out: Path) -> None:
    from fuzz_attn.report.page import run_page, trend  # noqa: PLC0415 - as above

    _print(run_page.save(trend.trend_page(logs, out.parent, time.time()), out))


def _beside(runs: list[Path]) -> Path:
    """Return the file of the trend beside the folders of the runs."""
    from fuzz_attn.report.page.run_page import PAGE_OF_RUNS  # noqa: PLC0415 - as above

    return Path(os.path.commonpath([run.resolve().parent for run in runs])) / PAGE_OF_RUNS


def _print(path: Path) -> None:
    show(console(), whole(f"Written  {path}"))


@click.command()
@click.argument("folder", metavar="DIR", type=FILE)
@click.option("--host", default="127.0.0.1", show_default=True, metavar="ADDRESS", help="Address to serve on.")
@click.option("--port", type=click.IntRange(0, 65535), default=8000, show_default=True, help="0: any free port.")
@exits
def watch(*, folder: Path, host: str, port: int) -> int:
    """Serve the page of a run while the run goes on, for this machine only.

    DIR is the folder of the run, or one that holds folders of runs, such as reports/runs: then the newest. The page
    renews itself every ten seconds. With another address, everyone who reaches it can read the page; nothing can be
    changed.
    """
    _require_libraries()
    from fuzz_attn.report.page.page_server import PageServer  # noqa: PLC0415 - as above
    from fuzz_attn.report.page.run_log import runs_in  # noqa: PLC0415 - as above

    *_, newest = runs_in((folder,))
    with PageServer(newest, host, port) as server:
        show(console(), whole(f"Serving  {newest}"))
        show(console(), whole(f"     at  {server.address}  until Ctrl-C"))
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            return 0
    return 0


@click.command()
@click.argument("run_folder", metavar="RUN_FOLDER", type=FILE)
@exits
def coverage(*, run_folder: Path) -> int:
    """List mask outcomes that a run did not exercise.

    The simulator records for the mask of every load, store and select, and for the condition of every branch and loop,
    whether it was all true, all false or mixed in some program. The list of missing outcomes names the source line. A
    mask that was never mixed is an untested boundary.

    RUN_FOLDER is the folder that a run printed, of one target or of several, or a coverage.json in it.
    """
    for file in coverage_files(run_folder):
        print_gaps(load(file), Console(highlight=False))
    return 0


def coverage_files(run_folder: Path) -> list[Path]:
    """Return the coverage files of a run: its own, or one for each of several targets.

    Return the path itself where there is none, for an error that names it.
    """
    return sorted(run_folder.glob(FILE_NAME)) or sorted(run_folder.glob(f"*/{FILE_NAME}")) or [run_folder]
