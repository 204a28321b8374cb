"""Writing a report: the ending of the name chooses HTML, JSON or PDF. A file is written whole or not at all."""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Final

from eigenveil.data.archive import whole_file
from eigenveil.errors import require
from eigenveil.show.pages import to_html
from eigenveil.show.schema import from_json, to_json
from eigenveil.show.values import Report

__all__ = ["ENDINGS", "read_report", "require_printer", "write_report"]

ENDINGS: Final = (".html", ".json", ".pdf")
_BROWSERS: Final = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
# Printing must work without a network, and must not call anybody.
_QUIET: Final = (
    "--headless",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-pdf-header-footer",
)
_PRINTING: Final = 120.0


def write_report(report: Report, path: Path) -> None:
    """Write `report` to `path`, readable by all, or by its owner alone if it shows raw data."""
    ending = path.suffix.lower()
    require(ending in ENDINGS, f"a report must end in {', '.join(ENDINGS)}, got {path}")
    with whole_file(path) as temporary:
        if ending == ".pdf":
            _print(to_html(report), temporary)
        else:
            temporary.write_text(to_html(report) if ending == ".html" else to_json(report), encoding="utf-8")
        # `whole_file` makes files that only their owner can read, which is right for raw data alone.
        if not report.raw:
            temporary.chmod(0o644)


def read_report(path: Path) -> Report:
    """The report in a JSON file."""
    try:
        return from_json(path.read_text(encoding="utf-8"))
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not UTF-8 text") from None
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def require_printer(path: Path) -> None:
    """Refuse a PDF where no Chromium is installed, before any budget is spent."""
    require(
        path.suffix.lower() != ".pdf" or _browser() is not None,
        f"{path}: a PDF needs Chromium, which is not installed. Write {path.with_suffix('.html')} and print it",
    )


def _browser() -> str | None:
    return next((found for name in _BROWSERS if (found := shutil.which(name)) is not None), None)


def _print(html: str, target: Path) -> None:
    browser = _browser()
    require(browser is not None, "a PDF needs Chromium, which is not installed. Write .html and print it")
    assert browser is not None
    with tempfile.TemporaryDirectory(prefix="eigenveil-") as folder:
        source, made = Path(folder) / "report.html", Path(folder) / "report.pdf"
        source.write_text(html, encoding="utf-8")
        # The sandbox of Chromium refuses to start as root. The page is ours, and it may neither run nor load anything.
        root = ["--no-sandbox"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []
        # With the person's own profile, a browser that is open already would take the command over and print nothing.
        profile = f"--user-data-dir={folder}/profile"
        command = [browser, *_QUIET, *root, profile, f"--print-to-pdf={made}", source.as_uri()]
        try:
            subprocess.run(command, check=True, capture_output=True, timeout=_PRINTING)
        except (subprocess.SubprocessError, OSError) as error:
            raise ValueError(f"{browser} could not print the report ({type(error).__name__})") from error
        # Chromium may end with success and no file.
        require(made.is_file(), f"{browser} printed nothing")
        target.write_bytes(made.read_bytes())
