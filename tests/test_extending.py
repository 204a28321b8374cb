"""The examples of docs/extending.md: each is built as the page says, in a copy of the package, and used."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import eigenveil

PAGE = Path(__file__).parents[1] / "docs" / "extending.md"


def examples() -> dict[str, str]:
    """The code of the page by the file that it is for."""
    found = re.findall(
        r"^```python\n# (\S+)\n(.*?)^```", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL
    )
    return dict(found)


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A folder with the package as the page changes it, and the laws of formats."""
    # With what Python has compiled of it, or each command would compile it once more.
    shutil.copytree(Path(eigenveil.__file__).parent, tmp_path / "src" / "eigenveil")
    for name, code in examples().items():
        if name == "src/eigenveil/data/formats/registry.py":
            imported, formats = code.strip().split("\n\n")
            text = (tmp_path / name).read_text()
            old = re.search(r"^FORMATS: Final = .*$", text, flags=re.MULTILINE)
            # The line of the page is the line of the registry, with one more word.
            assert old is not None and formats == old[0].replace(")", f", {imported.split()[-1]})")
            text = text.replace(old[0], formats)
            (tmp_path / name).write_text(
                text.replace("from eigenveil.data.formats.npy", f"{imported}\nfrom eigenveil.data.formats.npy", 1)
            )
        else:
            (tmp_path / name).write_text(code)
    shutil.copy(Path(__file__).parent / "laws" / "test_format_laws.py", tmp_path / "laws.py")
    return tmp_path


def run(copy: Path, *words: str) -> str:
    """What Python prints in the copy."""
    done = subprocess.run(
        [sys.executable, *words],
        cwd=copy,
        env={**os.environ, "PYTHONPATH": str(copy / "src"), "COLUMNS": "120"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_format_is_added_as_the_page_says(copy: Path) -> None:
    values = np.random.default_rng(0).normal(size=(300, 4))
    np.savetxt(copy / "table.dat", values, fmt="%.17g", header="a b c d", comments="")
    code = "from eigenveil.data.tables import read_table; print(read_table('table.dat').rows.shape)"
    assert run(copy, "-c", code) == "(300, 4)\n"
    fit = ["-k", "2", "--epsilon", "1", "--delta", "1e-6", "--row-bound", "4", "--seed", "1"]
    assert "2 components of 4 columns" in run(copy, "-m", "eigenveil", "fit", "table.dat", *fit)
    run(copy, "-m", "eigenveil", "transform", "table.dat", "-m", "model.safetensors", "-o", "scores.dat")
    assert np.loadtxt(copy / "scores.dat", skiprows=1).shape == (300, 2)
    assert "svm, xlsx or blanks" in re.sub(r"[\s│]+", " ", run(copy, "-m", "eigenveil", "fit", "--help"))
    # The laws know of it, and it keeps them.
    laws = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "laws.py"]
    assert "100%" in run(copy, *laws, "-k", "(dat or DAT or blanks or words_and_endings) and not damaged")
