"""`eigenveil policy`: a file to begin with, and what it says about a study before anything runs."""

import os
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from eigenveil.commands.policy import COMMAND
from eigenveil.network.policy import Policy
from eigenveil.network.study import StudyFile
from network.study_parties import document


def run(*arguments: object) -> Result:
    result = CliRunner().invoke(COMMAND.app, [str(argument) for argument in arguments], env={"COLUMNS": "100"})
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


@pytest.fixture
def heart(tmp_path: Path) -> Path:
    path = tmp_path / "heart.toml"
    path.write_text(StudyFile.of(document(3)).text())
    path.chmod(0o644)
    return path


def test_a_new_policy_is_the_defaults_and_the_owners_alone(tmp_path: Path, heart: Path) -> None:
    for number, more in enumerate([(), ("--study", heart)]):
        file = tmp_path / f"policy {number}.toml"
        assert run("new", file, *more).exit_code == 0
        assert Policy.read(file) == Policy()
        assert os.name == "nt" or file.stat().st_mode & 0o777 == 0o600
        result = run("new", file, *more)
        assert result.exit_code == 2 and "already exists" in result.stderr
        assert run("new", file, *more, "--force").exit_code == 0


def test_check_says_every_reason_and_ends_with_two(tmp_path: Path, heart: Path) -> None:
    file = tmp_path / "policy.toml"
    run("new", file, "--study", heart)
    result = run("check", file, heart, "--as", "site 1")
    assert result.exit_code == 2
    lines = result.output.splitlines()
    assert lines[0] == "site 1 would refuse heart:"
    assert [line[:14] for line in lines[1:]] == ["- [pins] hub: ", "- [pins.peers]", "- [pins.peers]"]
    file.write_text(
        "\n".join(
            line.removeprefix("# ") if "= [" in line or '" = "' in line else line
            for line in file.read_text().splitlines()
            if "columns =" not in line
        )
    )
    result = run("check", file, heart, "--as", "site 1")
    assert result.exit_code == 0 and "site 1 would take part in heart" in result.output


def test_check_knows_who_has_rows(tmp_path: Path, heart: Path) -> None:
    file = tmp_path / "policy.toml"
    run("new", file)
    result = run("check", file, heart, "--as", "hub")
    assert result.exit_code == 2 and "--as hub: no site or peer of that name" in result.stderr


@pytest.mark.skipif(os.name == "nt", reason="Windows keeps its permissions elsewhere")
def test_check_reads_nothing_that_others_can_change(tmp_path: Path, heart: Path) -> None:
    file = tmp_path / "policy.toml"
    run("new", file)
    file.chmod(0o666)
    result = run("check", file, heart, "--as", "site 0")
    assert result.exit_code == 2 and "chmod go-w" in result.stderr
