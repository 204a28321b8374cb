"""What `eigenveil hub`, `site`, `peer` and `node` share: options, looked-up defaults, the run itself, and its results."""

import ipaddress
import os
import signal
import sys
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, NoReturn, TypeAlias, TypeVar, final

import typer

from eigenveil.commands._ending import leaves, message_of, signals_sent_to, wrote
from eigenveil.commands._files import require_output, write_public
from eigenveil.commands._options import argument, option
from eigenveil.commands.transform import scores_of, with_extra
from eigenveil.data.archive import whole_file
from eigenveil.data.formats import OUTPUTS, write_scores
from eigenveil.errors import plain, require
from eigenveil.params.values import InvalidValue, bytes_from
from eigenveil.show.console import output
from eigenveil.show.disclosure import remaining_budget_text, rounded
from eigenveil.show.live import PageBudget
from eigenveil.show.progress import StatusWriter

if TYPE_CHECKING:
    from eigenveil.core.accounting import Budget
    from eigenveil.core.rows import Rows
    from eigenveil.ledger.durable import DurableLedger, StudyBudget
    from eigenveil.model import Model
    from eigenveil.network.certificates import Keys as PrivateKeys
    from eigenveil.network.certificates import Passphrase
    from eigenveil.network.study import StudyFile

__all__ = [
    "MEMORY",
    "TOO_FEW",
    "Results",
    "bytes_allowed",
    "keys_beside",
    "listening_address",
    "of_this_study",
    "refused",
    "require_grpc",
    "require_listen",
    "require_outputs",
    "run_protocol",
    "say_red",
    "say_spent",
    "spending_of",
]

# The exit code when too few sites answered, as in `eigenveil simulate`.
TOO_FEW: Final = 3
MEMORY: Final = "4GiB"
# Seconds between looks at connections, which change without an event.
_LOOK_AFTER: Final = 3.0
_SHOW_CURSOR: Final = b"\x1b[?25h"

Study: TypeAlias = Annotated[Path, argument("STUDY", "The study file, a .toml from the coordinator.")]
# The study file says where others reach a party. Behind a router or in a container it listens elsewhere.
Listen: TypeAlias = Annotated[
    str | None,
    option(
        "HOST:PORT",
        "Where to listen.",
        none_means="the port in the study file, on all interfaces, or on loopback if the study says loopback",
    ),
]
Connect: TypeAlias = Annotated[
    str | None, option("HOST:PORT", "Where to reach the hub, or the node above.", none_means="the address in the study file")
]
Keys: TypeAlias = Annotated[
    Path | None,
    option(
        "FILE",
        "The keys of this party, NAME.key.",
        none_means="the only .key file beside the study file that belongs to the study",
    ),
]
# Only a copy kept elsewhere shows that an old ledger was put back.
RequireHead: TypeAlias = Annotated[
    Path | None,
    option(
        "FILE",
        "Refuse a ledger without the head in this file, and bring the file up to date. `eigenveil ledger head --to` writes it.",
        none_means="none",
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
Result = TypeVar("Result")


def bytes_allowed(memory: str) -> int:
    """The value of --memory.

    >>> bytes_allowed(MEMORY) == 4 << 30
    True
    """
    try:
        return bytes_from(memory)
    except InvalidValue as error:
        raise ValueError(f"--memory must be {error}, got {memory!r}") from None


def require_listen(listen: str | None) -> None:
    """Refuse an impossible address before anything else is done."""
    from eigenveil.runtimes.grpc.connection import host_and_port

    try:
        host_and_port("localhost:0" if listen is None else listen, min_port=0)
    except ValueError as error:
        raise ValueError(f"--listen: {error}") from error


def listening_address(listen: str | None, address: str) -> str:
    """Where to listen, for callers that are given `address`.

    >>> listening_address(None, "hub.example.org:7443"), listening_address(None, "127.0.0.1:7443")
    ('[::]:7443', '127.0.0.1:7443')
    """
    if listen is not None:
        return listen
    host, _, port = address.rpartition(":")
    try:
        # A study on loopback is a trial on one machine, and should not be open to the network.
        is_local = ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        is_local = host == "localhost"
    return address if is_local else f"[::]:{port}"


def keys_beside(
    study: Path, study_file: "StudyFile", key_path: Path | None, *, role: str, passphrase: "Passphrase | None" = None
) -> "PrivateKeys":
    """The keys that were given, or the only ones beside the study file that belong to it as a `role`."""
    from eigenveil.network.certificates import Certificate, Keys, in_file

    if key_path is not None:
        return Keys.load(key_path, passphrase=passphrase)
    certificates = {party.pin: party.certificate for party in study_file.places}
    # All key files are looked at, so that the message can say what each of the others is.
    fitting, others, unsigned = list[Path](), list[Certificate](), list[Path]()
    for path in sorted(study.parent.glob("*.key")):
        public = path.with_suffix(".crt")
        if not public.exists():
            unsigned.append(path)
            continue
        try:
            # Read only public halves until it is clear which keys are wanted.
            pin = in_file(public, Certificate.read).pin
        except ValueError:
            continue
        if pin in certificates and certificates[pin].role == role:
            fitting.append(path)
        elif pin in certificates:
            others.append(certificates[pin])
    waiting = f"; {', '.join(path.name for path in unsigned)} has no certificate beside it yet" if unsigned else ""
    instead = "; ".join(
        f"{certificate.name!r} is a {certificate.role}: run `eigenveil {certificate.role}`" for certificate in others
    )
    require(
        len(fitting) > 0, f"no .key file beside {study} belongs to a {role} of it{waiting}; {instead or 'give it with --keys'}"
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


def require_grpc() -> None:
    """Refuse, before anything else, to run a party without gRPC."""
    try:
        # Our module sets gRPC's environment variables, which must happen before gRPC itself is loaded.
        import_module("eigenveil.runtimes.grpc")
    except ImportError as error:
        missing = (error.name or "").partition(".")[0] == "grpc"
        require(not missing, "the network needs gRPC: pip install 'eigenveil[network]'")
        raise


def run_protocol(
    work: Callable[[], Coroutine[Any, Any, Result]],
    voice: StatusWriter,
    *,
    left: Callable[[], str],
    look: Callable[[], None] = lambda: None,
) -> Result:
    """The result of `work`, unless a signal ends it: then `left` says how to continue.

    Meanwhile `look` is called every few seconds. Ctrl-C gives exit code 130 and SIGTERM 143, as shells do.
    """
    import asyncio

    stop = _Stop()

    async def main() -> Result:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None

        def report_error(_: object, context: dict[str, Any]) -> None:
            # An error in a task that is not awaited, after a signal say. asyncio would print a traceback.
            error = context.get("exception")
            if isinstance(error, Exception) and stop.number is None:
                voice.write_line(f"an error outside the study itself: {message_of(error)}", style="yellow")

        # Cancelling ends the waiting only: the runner shields the step that the party's thread is in.
        def ending() -> None:
            voice.write_line("ending after the current step; a second signal ends at once", style="yellow")
            task.cancel()

        async def looking() -> None:
            while True:
                await asyncio.sleep(_LOOK_AFTER)
                look()

        loop.set_exception_handler(report_error)
        stop.on_first = lambda: loop.call_soon_threadsafe(ending)
        # A signal may have come before the loop was there to hear it.
        if stop.number is not None:
            ending()
        look_on = loop.create_task(looking())
        try:
            return await work()
        finally:
            look_on.cancel()
            # The work is done: a signal from here on has nothing to end.
            stop.on_first = lambda: None

    try:
        with signals_sent_to(stop.note):
            return asyncio.run(main())
    except asyncio.CancelledError:
        # Cancelled by something else than a signal, so it is not ours to explain.
        if stop.number is None:
            raise
        message = left()
        if stop.number == signal.SIGINT:
            leaves(message)
            raise KeyboardInterrupt from None
        refused(f"ended by {signal.Signals(stop.number).name}; {message}", 128 + stop.number)


def refused(message: str, code: int) -> NoReturn:
    """End with a red line on stderr."""
    say_red(message)
    raise typer.Exit(code) from None


def say_red(message: str) -> None:
    """One red line on stderr, not wrapped."""
    from rich.text import Text

    output(stderr=True).print(Text(plain(message), style="red"), soft_wrap=True)


@final
class _Stop:
    """Which signal came. Changes in place, from a signal handler."""

    def __init__(self) -> None:
        self.number: int | None = None
        self.on_first: Callable[[], object] = lambda: None

    def note(self, number: int, _frame: object) -> None:
        """Handle a signal: wake the loop at the first, and end at the second, whatever is being computed."""
        if self.number is None:
            self.number = number
            self.on_first()
            return
        # The live view hides the cursor, and `os._exit` runs no clean-up.
        if sys.stdout.isatty():
            os.write(sys.stdout.fileno(), _SHOW_CURSOR)
        # The party's thread may be in the middle of a matrix product, and any other exit would wait for it.
        os._exit(128 + number)


@final
@dataclass(frozen=True, slots=True)
class Results:
    """Where results go."""

    model: Path
    guarantee: Path  # A text next to the model.
    scores: Path | None  # Only their owner can read them. None are written of rows on a cluster: these stay there.

    @classmethod
    def named(cls, study: Path, party: str, model: Path | None, scores: Path | None, *, scored: bool = True) -> "Results":
        """The given paths; others are named after the study file and the party, so that no two studies share a name."""
        from eigenveil.network.authority import file_stem

        stem = f"{study.stem}-{file_stem(party)}"
        target = Path(f"{stem}.safetensors") if model is None else model
        guarantee = target.with_name(f"{target.stem}.guarantee.txt")
        return cls(target, guarantee, (scores or Path(f"{stem}-scores{next(iter(OUTPUTS))}")) if scored else None)

    def outputs(self) -> Sequence[tuple[str, Path, Sequence[str]]]:
        """Each output with its option and the endings it may have."""
        private = () if self.scores is None else (("--scores", self.scores, list(OUTPUTS)),)
        return (("--output", self.model, [".safetensors"]), ("the guarantee", self.guarantee, [".txt"]), *private)

    def write(self, model: "Model", rows: "Rows", extra: Any = None) -> None:
        """Write all results, the model first: `of_this_study` tells a later run by it that outputs may be overwritten.

        `extra` is an Arrow table with one line for each row, to be written beside the scores.
        """
        model.save(self.model)
        wrote(self.model)
        write_public(self.guarantee, f"{model.guarantee}\n")
        if self.scores is None:
            return
        # No chmod here: `whole_file` makes files that only their owner can read, and scores must stay so.
        names = [f"component{number}" for number in range(1, len(model.components) + 1)]
        with whole_file(self.scores) as temporary:
            write_scores(temporary, self.scores.suffix.lower(), names, with_extra(scores_of(model, rows), extra))

    def show(self, voice: StatusWriter, model: "Model", *, role: str) -> None:
        """Show what the study says of its result, the guarantee in words, and where everything is."""
        from eigenveil.show.terminal import guarantee_panel, judged, scores_warning

        voice.gap()
        for line in judged(model):
            voice.show(line, [line.plain])
        voice.show(guarantee_panel(model.guarantee), model.guarantee.to_text().splitlines())
        voice.say(f"model: {self.model}", whole=True)
        voice.say(f"look at it with: eigenveil inspect {self.model}", style="dim", whole=True)
        voice.say(f"guarantee: {self.guarantee}", whole=True)
        if self.scores is None:
            voice.say("scores: none, because the rows stay on the cluster. Compute them there, with Model.transform")
            return
        private = f"scores of this {role}'s own rows, PRIVATE, for you alone"
        voice.say(f"{private}: {self.scores}", style="bold", whole=True)
        voice.show(scores_warning(), [scores_warning().plain])


def spending_of(ledger: "DurableLedger", account: "StudyBudget") -> PageBudget:
    """What the study has been charged so far, of what it may be."""
    spent = next((state.spent for state in ledger.studies() if state.account.study == account.study), 0.0)
    if account.epsilon is None:
        return PageBudget("charged: nothing, because the study gives no guarantee")
    return PageBudget(f"charged: mu = {spent:.4g} of the {account.mu:.4g} reserved", spent / account.mu)


def say_spent(voice: StatusWriter, ledger: "DurableLedger", account: "StudyBudget", *, life: "Budget | None") -> None:
    """Say what the study was charged, and what is left of the dataset's total budget."""
    study = next(state for state in ledger.studies() if state.account.study == account.study)
    dataset = next(state for state in ledger.datasets() if state.name == account.dataset)
    # Anything that left without privacy ends the guarantee for good, whatever comes later.
    if account.epsilon is None:
        voice.say(f"charged: the study gave no guarantee, so dataset {account.dataset!r} has none any more", style="red")
        return
    delta = account.delta if life is None else life.delta
    assert delta is not None
    voice.say(f"charged: mu = {study.spent:.4g} of the {account.mu:.4g} reserved; the rest is free again")
    spent = rounded(dataset.epsilon(delta))
    voice.say(
        f"dataset {account.dataset!r} has spent epsilon {spent} at delta = {delta:g} in all; "
        f"{remaining_budget_text(dataset, life)}"
    )
    # Only a head that is kept elsewhere shows later that an old copy was put back.
    voice.say(f"head of the ledger; note it elsewhere: {ledger.head}", whole=True)
