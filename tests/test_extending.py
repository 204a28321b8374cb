"""The examples of docs/extending.md: all are built as the page says, in a copy of the package, and used."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import eigenveil

TESTS = Path(__file__).parent
PAGE = TESTS.parent / "docs" / "extending.md"
# What runs in the copy: how the leaves are used, and the laws of their registries.
LAWS = {
    "uses.py": "extending_uses.py",
    "formats.py": "laws/test_format_laws.py",
    "methods.py": "methods/test_leaves.py",
    "trackers.py": "trackers/test_tracker_kinds.py",
    "sensitivities.py": "laws/sums/test_sensitivity_laws.py",
}
# Of the laws, those of the new leaves. Releases of the method are attacked together with those of all others.
CHOSEN = "uses or one-product or [every] or every_task_keeps or ((dat or DAT or blanks or words_and_endings) and not damaged)"


def blocks(language: str) -> list[tuple[str, str]]:
    """The blocks of the page that begin with the name of a file: that name, and the rest."""
    pattern = rf"^```{language}\n# (\S+)\n(.*?)^```"
    return re.findall(pattern, PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)


def patched(text: str, diff: str) -> str:
    """The text with the changes of a diff, whose hunks have an empty line between them."""
    for hunk in diff.strip("\n").split("\n\n"):
        old, new = ("".join(f"{line[1:]}\n" for line in hunk.split("\n") if line[0] in signs) for signs in (" -", " +"))
        assert text.count(old) == 1, f"the page changes what is not there once: {old}"
        text = text.replace(old, new)
    return text


def test_every_leaf_of_the_page_works(tmp_path: Path) -> None:
    # With what Python has compiled of it, or it would be compiled once more.
    shutil.copytree(Path(eigenveil.__file__).parent, tmp_path / "src" / "eigenveil")
    files, registries = blocks("python"), blocks("diff")
    assert len(files) == len(registries) == 4
    for name, code in files:
        assert not (tmp_path / name).exists()
        (tmp_path / name).write_text(code, encoding="utf-8")
    for name, diff in registries:
        path = tmp_path / name
        path.write_text(patched(path.read_text(encoding="utf-8"), diff), encoding="utf-8")
    for name, law in LAWS.items():
        shutil.copy(TESTS / law, tmp_path / name)
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", "-p", "no:xdist"),
            # The noise and the examples that all tests have.
            *("-p", "conftest", "-k", CHOSEN, *LAWS),
        ],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": f"{tmp_path / 'src'}{os.pathsep}{TESTS}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    passed = re.findall(r"^(\S+?\.py::\S.*?) PASSED", done.stdout, flags=re.MULTILINE)
    counts = {name: sum(test.startswith(f"{name}::") for test in passed) for name in LAWS}
    assert counts["uses.py"] == 4 and min(counts.values()) > 0, done.stdout
    assert counts["methods.py"] >= 7 and counts["trackers.py"] >= 4 and counts["formats.py"] >= 20, done.stdout
