"""The options of `eigenveil hub`, `site`, `peer` and `node`, with their help, and the defaults that are looked up."""

import ipaddress
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, TypeAlias

from eigenveil.commands._files import require_output
from eigenveil.commands._option import argument, flag, option
from eigenveil.errors import require
from eigenveil.params.texts import bytes_from
from eigenveil.params.values import Expected

if TYPE_CHECKING:
    from eigenveil.network.identity.certificates import Keys as PrivateKeys
    from eigenveil.network.identity.certificates import Passphrase
    from eigenveil.network.study.file import StudyFile

__all__ = [
    "MEMORY",
    "bytes_allowed",
    "keys_beside",
    "listening_address",
    "of_this_study",
    "require_listen",
    "require_outputs",
]

Study: TypeAlias = Annotated[Path, argument("STUDY", "The study file, a .toml from the coordinator.")]
# The study file says where others reach a party. Behind a router or in a container it listens elsewhere.
Listen: TypeAlias = Annotated[
    str | None,
    option(
        "HOST:PORT",
        "Where to listen.",
        unset="the port in the study file, on all interfaces, or on loopback if the study says loopback",
    ),
]
Connect: TypeAlias = Annotated[
    str | None, option("HOST:PORT", "Where to reach the hub, or the node above.", unset="the address in the study file")
]
HubKeys: TypeAlias = Annotated[
    Path | None, option("--keys", "FILE", "The hub's keys.", unset="hub.key beside the study file")
]
Keys: TypeAlias = Annotated[
    Path | None,
    option(
        "FILE",
        "The keys of this party, NAME.key.",
        unset="the only .key file beside the study file that belongs to the study",
    ),
]
Transcript: TypeAlias = Annotated[
    Path | None,
    option(
        "FILE",
        "Where everything that happens is written, so that a stopped hub can go on. Never overwritten.",
        unset="STUDY.transcript beside the study file",
    ),
]
# Models go to the current folder and the transcript beside the study: one is for people, the other for the next run.
HubModel: TypeAlias = Annotated[
    Path | None, option("--output", "-o", "FILE", "Where the model goes.", unset="STUDY.safetensors in this folder")
]
Report: TypeAlias = Annotated[
    Path | None,
    option(
        "FILE",
        "Where the model, the rounds, their traffic and charges go, all public: .json, .html, or .pdf if Chromium is "
        "installed.",
        unset="MODEL.report.json beside the model",
    ),
]
# Optional for `site` alone, which may have --follow instead. A peer always has a table.
SiteSource: TypeAlias = Annotated[
    Path | None,
    option(
        "--data",
        "FILE",
        "Your table: csv (also .gz, .zst), Parquet (a file or a folder), Arrow, xlsx, jsonl, .npy or .npz. Columns that the "
        "study does not name are not read.",
    ),
]
Follow: TypeAlias = Annotated[
    Path | None,
    option(
        "WHERE",
        "For a study of streams, in place of --data: a csv file that grows, or a folder of csv files. Where slots have so "
        "many rows, also a pipe, or - for standard input.",
    ),
]
Serve: TypeAlias = Annotated[
    bool, flag("--serve", "For a study of streams: ask for slot after slot, and keep the current answer on disk.")
]
Data: TypeAlias = Annotated[
    Path,
    option(
        "--data",
        "FILE",
        "Your table: csv (also .gz, .zst), Parquet (a file or a folder), Arrow, xlsx, jsonl, .npy or .npz. Columns that the "
        "study does not name are not read.",
    ),
]
PolicyFile: TypeAlias = Annotated[
    Path | None, option("--policy", "FILE", "Your rules; `eigenveil policy new` writes them.", unset="none")
]
Ledger: TypeAlias = Annotated[Path, option("FILE", "Your ledger: what all studies have spent in total.", shows=True)]
# Only a copy kept elsewhere shows that an old ledger was put back.
RequireHead: TypeAlias = Annotated[
    Path | None,
    option(
        "FILE",
        "Refuse a ledger without the head in this file, and bring the file up to date. `eigenveil ledger head --to` "
        "writes it.",
        unset="none",
    ),
]
# No default from the file name: a copy of the table under another name would get a second budget.
Dataset: TypeAlias = Annotated[
    str | None,
    option(
        "NAME",
        "Your name for the people in the table. Budgets attach to this name for as long as it is used.",
        unset="the only name in the ledger",
    ),
]
Yes: TypeAlias = Annotated[
    bool, flag("--yes", "Do not ask: --policy, which must say who is protected, consents to what it does not refuse.")
]
HeldModel: TypeAlias = Annotated[
    Path | None,
    option("--output", "-o", "FILE", "Where the model goes.", unset="STUDY-NAME.safetensors in this folder"),
]
Scores: TypeAlias = Annotated[
    Path | None,
    option(
        "FILE",
        "Where the scores of your rows go: .csv, .xlsx, .jsonl, .parquet or .npy. They are raw data and stay here.",
        unset="STUDY-NAME-scores.csv in this folder",
    ),
]
OwnCarry: TypeAlias = Annotated[
    list[str] | None,
    option(
        "--carry",
        "NAMES",
        "Columns that are written beside your scores, such as an id or a label: names or patterns. They stay here, and "
        "nobody is sent them. May be repeated.",
    ),
]
Rehearsal: TypeAlias = Annotated[
    bool, flag("--rehearsal", "Take part in a study with a test seed, WHICH PROTECTS NOBODY.")
]
DryRun: TypeAlias = Annotated[
    bool, flag("--dry-run", "Show what would be revealed, and stop. Nothing is written or sent.")
]
OwnReport: TypeAlias = Annotated[
    Path | None,
    option(
        "--report",
        "FILE",
        "At the end, write a report of the result to show and sign: .html, .json, or .pdf if Chromium is installed. "
        "It has no scores.",
    ),
]
# A study file may ask for anything, so each party says what it can spare before it agrees.
Memory: TypeAlias = Annotated[
    str,
    option(
        "BYTES",
        "The most memory that a study may take at one party, such as 8GB. A study that needs more is refused.",
        shows=True,
    ),
]
MEMORY: Final = "4GiB"
Force: TypeAlias = Annotated[bool, flag("--force", "Overwrite outputs that exist; never a ledger.")]


def bytes_allowed(memory: str) -> int:
    """The value of --memory.

    >>> bytes_allowed(MEMORY) == 4 << 30
    True
    """
    try:
        return bytes_from(memory)
    except Expected as error:
        raise ValueError(f"--memory must be {error}, got {memory!r}") from None


def require_listen(given: str | None) -> None:
    """Refuse an impossible address before anything else is done."""
    from eigenveil.runtimes.grpc.credentials import host_and_port

    try:
        host_and_port("localhost:0" if given is None else given, least=0)
    except ValueError as error:
        raise ValueError(f"--listen: {error}") from error


def listening_address(given: str | None, address: str) -> str:
    """Where to listen, for callers that are given `address`.

    >>> listening_address(None, "hub.example.org:7443"), listening_address(None, "127.0.0.1:7443")
    ('[::]:7443', '127.0.0.1:7443')
    """
    if given is not None:
        return given
    host, _, port = address.rpartition(":")
    try:
        # A study on loopback is a trial on one machine, and should not be open to the network.
        here = ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        here = host == "localhost"
    return address if here else f"[::]:{port}"


def keys_beside(
    study: Path, found: "StudyFile", given: Path | None, *, role: str, passphrase: "Passphrase | None" = None
) -> "PrivateKeys":
    """The keys that were given, or the only ones beside the study file that belong to it as a `role`."""
    from eigenveil.network.identity.certificates import Certificate, Keys, in_file

    if given is not None:
        return Keys.load(given, passphrase=passphrase)
    places = {place.pin: place.certificate for place in found.places}
    # All key files are looked at, so that the message can say what each of the others is.
    fitting: list[Path] = []
    others: list[Certificate] = []
    unsigned: list[Path] = []
    for path in sorted(study.parent.glob("*.key")):
        beside = path.with_suffix(".crt")
        if not beside.exists():
            unsigned.append(path)
            continue
        try:
            # Read only public halves until it is clear which keys are wanted.
            pin = in_file(beside, Certificate.read).pin
        except ValueError:
            continue
        if pin in places and places[pin].role == role:
            fitting.append(path)
        elif pin in places:
            others.append(places[pin])
    waiting = f"; {', '.join(path.name for path in unsigned)} has no certificate beside it yet" if unsigned else ""
    instead = "; ".join(f"{one.name!r} is a {one.role}: run `eigenveil {one.role}`" for one in others)
    require(
        len(fitting) > 0,
        f"no .key file beside {study} belongs to a {role} of it{waiting}; {instead or 'give it with --keys'}",
    )
    require(
        len(fitting) == 1,
        f"several .key files beside {study} belong to it: {', '.join(path.name for path in fitting)}; give one with --keys",
    )
    return Keys.load(fitting[0], passphrase=passphrase)


def of_this_study(model: Path, digest: str) -> bool:
    """Whether the file `model` is a model of the study with this digest, from an earlier run of the same command."""
    from eigenveil.errors import ModelFileError
    from eigenveil.model import Model

    if not model.is_file():
        return False
    try:
        return Model.load(model).settings.get("study_digest") == digest
    # Something else has that name: it is not ours to overwrite without --force.
    except ModelFileError:
        return False


def require_outputs(outputs: Sequence[tuple[str, Path, Sequence[str]]], *, force: bool, inputs: Sequence[Path]) -> None:
    """Refuse outputs that cannot be written, or are the same file. Each is an option, a path and its endings."""
    for name, path, endings in outputs:
        require_output(path, endings=endings, force=force, inputs=inputs, option=name)
    paths = [path.resolve() for _, path, _ in outputs]
    require(len(set(paths)) == len(paths), "two outputs would go to the same file; give each its own name")
