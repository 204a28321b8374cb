"""The README and the pages behind it: short, every link leads somewhere, and what it shows is what a reader gets."""

import itertools
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from xml.etree import ElementTree

import pytest
from typer.testing import CliRunner

from each import each
from eigenveil import Model
from eigenveil.commands import app

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "eigenveil"
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")])
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]+))?\)")
MAX_LINES = 120


def test_the_readme_is_short() -> None:
    assert len(README.splitlines()) <= MAX_LINES


def anchors(page: Path) -> set[str]:
    """What a link to a heading of the page may say after `#`."""
    headings = re.findall(r"^#+ (.*)$", BLOCK.sub("", page.read_text(encoding="utf-8")), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@each("page", PAGES)
def test_every_link_leads_somewhere(page: Path) -> None:
    for path, anchor in LINK.findall(BLOCK.sub("", page.read_text(encoding="utf-8"))):
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{page.name} links to {path}"
        assert not anchor or anchor in anchors(target), f"{page.name} links to {path}#{anchor}"


def places() -> Iterator[tuple[str, str]]:
    """Every file, and the function that is named beside it, in the two tables that say where to look."""
    told = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8").partition("## Where to look")[2].partition("## ")[0]
    yield from re.findall(r"`(\w+/[\w/]+\.py)`(?:: `([\w.]+)`)?", told)
    shown = README.partition("## Where to look")[2]
    yield from re.findall(r"\(src/eigenveil/([\w/]+\.py)\)(?:, `([\w.]+)`)?", shown)


@each(("file", "name"), sorted(set(places())))
def test_what_a_reader_is_sent_to_is_there(file: str, name: str) -> None:
    assert (SOURCE / file).is_file()
    found: object = import_module("eigenveil." + file.removesuffix(".py").replace("/", "."))
    for part in filter(None, name.split(".")):
        found = getattr(found, part)


def test_five_questions_are_answered_from_the_readme() -> None:
    asked = ("noise is added", "clipped", "charge is written", "study file may contain", "new method is added")
    answers = README.partition("## Where to look")[2]
    for question in asked:
        (line,) = (line for line in answers.splitlines() if question in line)
        assert LINK.search(line), question


def shape(line: str) -> str:
    """A line without what noise changes: numbers, bars and the blanks between them."""
    return " ".join(re.sub(r"[+-]?\d[\d.,e+-]*", "#", re.sub(r"[┊█▏▎▍▌▋▊▉│]", " ", line)).split())


def test_the_three_commands_print_what_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (made,) = (text for kind, text in BLOCK.findall(README) if kind == "sh")
    first, *script, last = made.splitlines()
    assert (first, last) == ("python3 - <<'END'", "END")
    subprocess.run([sys.executable, "-"], input="\n".join(script), text=True, check=True)
    (session,) = (text for kind, text in BLOCK.findall(README) if kind == "console" and text.startswith("$ "))
    commands = re.split(r"^\$ ", session, flags=re.MULTILINE)[1:]
    assert len(commands) == 3
    for command, _, shown in (text.partition("\n") for text in commands):
        program, *arguments = shlex.split(command)
        result = CliRunner().invoke(app, arguments, env={"COLUMNS": "80"})
        assert (program, result.exit_code) == ("eigenveil", 0), result.output
        printed = iter(map(shape, result.stdout.splitlines()))
        for line in shown.splitlines():
            # Membership moves the iterator on, so that the order counts too.
            assert line == "..." or shape(line) in printed, f"not printed, or not in this order: {line}\n{result.stdout}"
    model = Model.load("model.safetensors")
    assert model.components.shape == (2, 4)
    assert model.guarantee.private


def test_every_figure_names_its_command_its_commit_and_its_date() -> None:
    text = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    for section in text.split("\n## ")[1:]:
        lines = section.splitlines()
        commands = [line for line in lines if line.startswith("- Command: ")]
        commits = [line for line in lines if line.startswith("- Commit: ")]
        assert len(commands) == len(commits) > 0, lines[0]
        for script in itertools.chain.from_iterable(re.findall(r"`python (\S+\.py)", line) for line in commands):
            assert (ROOT / script).is_file()
        for line in commits:
            assert re.search(r"`[0-9a-f]{7}`, \d{4}-\d\d-\d\d", line), line


def test_every_script_that_is_named_is_there() -> None:
    pages = [*PAGES, ROOT / "CHANGELOG.md", *SOURCE.rglob("*.py"), *(ROOT / "benchmarks").rglob("*.py")]
    for page in pages:
        for script in re.findall(r"benchmarks/[\w/]+\.py", page.read_text(encoding="utf-8")):
            assert (ROOT / script).is_file(), f"{page.name} names {script}"
    # In a Makefile a loop gives the names of the scripts.
    loops = re.findall(r"for name in ([^;]+); do .*?(benchmarks/[\w/]*)\$\$name\.py", (ROOT / "Makefile").read_text())
    assert loops
    for names, folder in loops:
        assert all((ROOT / f"{folder}{name}.py").is_file() for name in names.split())


def test_the_picture_says_in_words_what_it_shows_and_where_it_came_from() -> None:
    picture = ElementTree.parse(ROOT / "docs" / "accuracy.svg").getroot()
    space = "{http://www.w3.org/2000/svg}"
    assert picture.findtext(f"{space}title")
    told = picture.findtext(f"{space}desc") or ""
    assert "load_digits" in told
    assert re.search(r"python benchmarks/readme_figure\.py .* at commit [0-9a-f]{7,12} on \d{4}-\d\d-\d\d", told)
    assert "docs/accuracy.svg" in README
