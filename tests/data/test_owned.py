"""Files that decide for a site: each way in which others could change, read or exchange one is refused with what to type."""

import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from eigenveil.data.archive import read_owned, require_own_folder, text_owned, unsafe

STRANGER = 54321


@pytest.fixture
def given_away(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], None]:
    """Give a file to another user; who may not do that is another user from here on, which comes to the same."""

    def give(path: Path) -> None:
        if os.geteuid() == 0:
            os.chown(path, STRANGER, -1)
        else:
            monkeypatch.setattr(os, "geteuid", lambda: STRANGER)

    return give


@pytest.fixture
def file(tmp_path: Path) -> Path:
    folder = tmp_path / "mine"
    folder.mkdir(mode=0o700)
    found = folder / "policy.toml"
    found.write_bytes(b"text")
    found.chmod(0o600)
    return found


def refusal(path: Path, *, private: bool = False) -> str:
    """Why it is refused; the same whether it is only looked at or read."""
    why = unsafe(path, private=private)
    assert why is not None
    with pytest.raises(ValueError, match=re.escape(why)):
        read_owned(path, max_bytes=100, private=private)
    return why


def repair(why: str) -> None:
    """Do what the refusal says."""
    command = re.search(r"(chmod go-w|chmod 600) (\S+?),?(?: |$)", why)
    assert command is not None, why
    subprocess.run([*command[1].split(), command[2]], check=True)


def test_a_file_of_ones_own_is_read(file: Path) -> None:
    assert unsafe(file, private=True) is None
    assert read_owned(file, max_bytes=4, private=True) == b"text" and text_owned(file) == "text"
    file.chmod(0o644)
    assert unsafe(file) is None
    with pytest.raises(ValueError, match="larger than 3 bytes"):
        read_owned(file, max_bytes=3)


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
def test_a_file_that_others_may_change_is_refused(file: Path, mode: int) -> None:
    file.chmod(mode)
    repair(refusal(file))
    assert unsafe(file) is None


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o610])
def test_a_private_file_that_others_may_read_is_refused(file: Path, mode: int) -> None:
    file.chmod(mode)
    assert unsafe(file) is None
    repair(refusal(file, private=True))
    assert unsafe(file, private=True) is None


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o1777])
def test_a_file_in_a_folder_where_others_may_write_is_refused(file: Path, mode: int) -> None:
    file.parent.chmod(mode)
    with pytest.raises(ValueError, match="chmod go-w"):
        require_own_folder(file.parent / "not there yet")
    repair(refusal(file))
    assert unsafe(file) is None


def test_further_up_a_sticky_folder_is_fine_and_another_is_not(file: Path, tmp_path: Path) -> None:
    tmp_path.chmod(0o1777)
    assert unsafe(file) is None
    tmp_path.chmod(0o777)
    why = refusal(file)
    assert str(file.parent) not in why
    repair(why)
    assert unsafe(file) is None


def test_what_belongs_to_somebody_else_is_refused(file: Path, given_away: Callable[[Path], None]) -> None:
    given_away(file)
    assert re.search(rf"belongs to .*chown \S+ {file}", refusal(file)) is not None
    # A study file comes from others, and only they may be able to change it.
    assert text_owned(file, ours=False) == "text"
    file.chmod(0o646)
    with pytest.raises(ValueError, match="chmod go-w"):
        text_owned(file, ours=False)


def test_a_folder_of_somebody_else_is_refused(file: Path, given_away: Callable[[Path], None]) -> None:
    given_away(file.parent)
    assert re.search(rf"owns the folder .*chown \S+ {file.parent}", refusal(file)) is not None


def test_what_belongs_to_root_is_everybodys(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can make such a file")
    monkeypatch.setattr(os, "geteuid", lambda: STRANGER)
    assert unsafe(file, private=True) is None


def test_a_link_is_as_safe_as_its_folder_and_what_it_leads_to(file: Path, tmp_path: Path) -> None:
    other, far = tmp_path / "links", tmp_path / "links" / "folder"
    other.mkdir(mode=0o700)
    link = other / "policy.toml"
    link.symlink_to("../mine/policy.toml")
    far.symlink_to(file.parent)
    for path in (link, far / "policy.toml", other / ".." / "links" / "policy.toml"):
        assert unsafe(path) is None and text_owned(path) == "text"
        # Whoever may write there may let the link lead elsewhere, in a sticky folder too.
        for mode in (0o770, 0o1777):
            other.chmod(mode)
            assert str(other) in refusal(path)
            other.chmod(0o700)
        file.parent.chmod(0o770)
        assert str(file.parent) in refusal(path)
        file.parent.chmod(0o700)
        file.chmod(0o666)
        assert "chmod go-w" in refusal(path)
        file.chmod(0o600)
    (other / "a").symlink_to("b")
    (other / "b").symlink_to("a")
    with pytest.raises(ValueError, match="too many links"):
        require_own_folder(other / "a")


def test_a_pipe_is_not_waited_for(file: Path) -> None:
    file.unlink()
    os.mkfifo(file, 0o600)
    with pytest.raises(ValueError, match="is not a file"):
        read_owned(file, max_bytes=4)


def test_the_current_folder_counts_too(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(file.parent)
    assert text_owned(Path("policy.toml")) == "text"
    file.parent.chmod(0o775)
    assert str(file.parent) in refusal(Path("policy.toml"))
