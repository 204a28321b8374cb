"""Take the pictures of docs/live-page.md: a real run with a live page, in Chromium, on a made-up table.

    python benchmarks/pictures/page_image.py [--output docs/images]

Needs Debian's chromium and playwright, as the tests of pages do.
"""

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
RUN = "-k 5 --sites 8 --epsilon 1 --delta 1e-6 --method power --row-bound 12 --dead 3@9 --quorum 0.5 --seed 4 --page 0"


def main() -> None:
    """Run a simulation, open its page while it runs, and take two pictures of how it ends: a desk and a telephone."""
    from playwright.sync_api import sync_playwright

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=ROOT / "docs" / "images")
    folder: Path = parser.parse_args().output
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
        browser.close()


if __name__ == "__main__":
    main()
