"""A command is one file and one line of the registry. docs/extending.md adds one."""

from pathlib import Path

import eigenveil.commands


def test_every_file_is_in_the_registry_once() -> None:
    folder = Path(str(eigenveil.commands.__file__)).parent
    files = {path.stem for path in folder.glob("*.py") if not path.stem.startswith("_")}
    assert sorted(eigenveil.commands._NAMES) == sorted(files)
