"""Take the pictures of docs/live-page.md and docs/report.md in Chromium: a real run with a live page, and the demo's report.

    python benchmarks/pictures/page_image.py [--output docs]

Needs Debian's chromium and playwright, as the tests of pages do, and pdftoppm for the printed page.
"""

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
RUN = "-k 5 --sites 8 --epsilon 1 --delta 1e-6 --method power --row-bound 12 --dead 3@9 --quorum 0.5 --seed 4 --page 0"


def main() -> None:
    """Run a simulation, open its page while it runs, and take two pictures of how it ends: a desk and a telephone."""
    from playwright.sync_api import sync_playwright

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=ROOT / "docs")
    given: Path = parser.parse_args().output
    folder = given / "images"
    rows = np.random.default_rng(0).standard_normal((20_000, 60)) * 4 / np.sqrt(np.arange(1, 61))
    with tempfile.TemporaryDirectory() as made, sync_playwright() as started:
        table = Path(made) / "people.npy"
        np.save(table, rows)
        command = [sys.executable, "-m", "eigenveil", "simulate", str(table), *RUN.split()]
        browser = started.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox", "--headless"])
        process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
        assert process.stderr is not None
        found = re.search(r"http://\S+", process.stderr.readline())
        assert found is not None
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        page.goto(found.group())
        page.wait_for_selector("text=The command ended", timeout=120_000)
        for name, width in (("live-page", 1280), ("live-page-narrow", 390)):
            page.set_viewport_size({"width": width, "height": 900})
            page.screenshot(path=folder / f"{name}.png", full_page=True)
            print(folder / f"{name}.png")
        process.wait(60)
        report_pictures(browser, Path(made), given / "pictures")
        browser.close()


def report_pictures(browser: Any, made: Path, folder: Path) -> None:
    """The demo's report on a screen, on a telephone in the dark, and its page to sign as it is printed."""
    command = [sys.executable, "-m", "eigenveil", "demo", "-o", str(made / "demo.safetensors")]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    report = (made / "demo.html").as_uri()
    for name, width, height, scheme in (("screen", 1280, 1180, "light"), ("phone", 390, 1430, "dark")):
        page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)
        page.goto(report)
        page.screenshot(path=folder / f"report-{name}.png")
        print(folder / f"report-{name}.png")
    page.pdf(path=made / "demo.pdf", prefer_css_page_size=True)
    subprocess.run(["pdftoppm", "-r", "75", "-png", made / "demo.pdf", made / "sheet"], check=True)
    # The guarantee is the last page.
    shutil.copy(max(made.glob("sheet-*.png")), folder / "report-guarantee.png")
    print(folder / "report-guarantee.png")


if __name__ == "__main__":
    main()
