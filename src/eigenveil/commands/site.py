"""`eigenveil site`: take part in a study with one's own table, after a person or a policy has agreed to what leaves."""

from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, final

from eigenveil.commands import _network as network
from eigenveil.commands._command import Command
from eigenveil.commands._files import require_file
from eigenveil.commands._joining import TABLE, Joining, JoinOptions, Kind, take_part
from eigenveil.commands._options import DaskCluster, option
from eigenveil.data.formats import FileParams
from eigenveil.errors import ProtocolError, require
from eigenveil.show import disclosure
from eigenveil.show.progress import StatusWriter

if TYPE_CHECKING:
    from eigenveil.ledger.durable import StudyReplay
    from eigenveil.model import Model
    from eigenveil.network.agents.star import SiteAgent
    from eigenveil.network.study import StudyFile
    from eigenveil.show.agreement import Fact

__all__ = ["COMMAND"]


@final
@dataclass(frozen=True, kw_only=True)
class _SiteOptions(JoinOptions):
    data: Annotated[Path | None, option("--data", "FILE", TABLE)] = None
    follow: Annotated[
        Path | None,
        option(
            "WHERE",
            "For a study of streams, in place of --data: a csv file that grows, or a folder of csv files. Where slots have so "
            "many rows, also a pipe, or - for standard input.",
        ),
    ] = None
    connect: network.Connect = None
    dask: DaskCluster = None


def site(settings: dict[str, Any], options: _SiteOptions) -> None:
    """Take part in a study with the table of this site.

    With the keys of the site next to the study file:

      eigenveil site heart.toml --data patients.parquet \\
        --policy policy.toml --dataset patients

    First it shows what it would reveal, to whom and at what cost, and
    asks. --dry-run stops there. Then it calls the hub and answers what
    the study asks, nothing else. Every answer and its charge are in the
    ledger before the answer leaves. After a stop the same command
    resumes, and nothing is charged twice.

    It writes the model, its guarantee in a text file next to it, and the
    scores of this site's own rows. SCORES ARE RAW DATA: only you can read
    them (mode 0600), and they never leave. --passthrough id,label puts columns
    of your table next to them.

    --page 127.0.0.1:8080 shows in a browser what happens after you have
    agreed: questions, answers and charges, and nothing about your rows.

    Unattended, rules consent in place of a person:

      eigenveil site heart.toml --data patients.parquet \\
        --policy policy.toml --yes

    In a study of streams, a site follows a file that grows. Each slot
    and its charge are in the ledger before the hub can ask for it:

      eigenveil site sensors.toml --follow sensor.csv --dataset sensor

    Exit codes: 1 if the person says no or the total budget is too small,
    2 if the policy refuses or the hub has another study file. It is 130
    after Ctrl-C and 143 after SIGTERM.
    """
    require_file(options.study)
    network.require_grpc()
    from eigenveil.network.study import address

    data, follow = options.data, options.follow
    # Checked before the study is read: a typing error should not take as long as a table.
    require((data is None) != (follow is None), "give --data with your table, or --follow in a study of streams")
    elsewhere = options.dask is not None
    require(not (elsewhere and options.scores), "--scores copies rows here, and with --dask they stay on the cluster")
    require(
        not (elsewhere and options.passthrough),
        "--passthrough puts columns next to scores, and with --dask there are none: rows stay on the cluster. Leave it out",
    )
    where = None if options.connect is None else address("--connect", options.connect)
    options.address()
    if data is not None:
        take_part(options, data, settings, _Site(where), dask=options.dask)
    elif follow is not None:
        from eigenveil.commands.watch import follow_source

        # A stream has no end at which this site could write something of its own. No option is silently ignored.
        names = {"model": "output"} | {name: name for name in ("scores", "passthrough", "report", "page", "dask")}
        unused = [f"--{name}" for field, name in names.items() if getattr(options, field)]
        require(not unused, f"with --follow the hub has the model and the report. Leave out {', '.join(unused)}")
        follow_source(options, follow, settings, connect=where)


@final
@dataclass(frozen=True, slots=True)
class _Site(Kind["SiteAgent"]):
    """A site calls the hub or node above it, at `connect` if given, and can come back whenever it was stopped."""

    role = "site"
    connect: str | None

    def agent(self, study: "StudyFile", **settings: Any) -> "SiteAgent":
        from eigenveil.network.agents.star import SiteAgent

        return SiteAgent(study, **settings)

    def leaving(self, agent: "SiteAgent") -> Iterator["Fact"]:
        above = agent.study.place(agent.above)
        return disclosure.site_disclosures(agent.study, agent.parties, above=above, address=self.connect)

    def joined(self, state: "StudyReplay") -> str:
        return f"This site joined the study on {state.joined} and continues with it."

    def run(
        self, agent: "SiteAgent", deliver: Callable[["Model"], None], *, note: str | None, voice: StatusWriter
    ) -> Coroutine[Any, Any, "Model"]:
        return agent.run(deliver, address=self.connect, note=note)

    def left(self, agent: "SiteAgent", standing: Joining) -> str:
        # What the site has said is in its ledger, word for word, so a resend costs nothing.
        return "nothing is lost: the same command resumes where it stopped. What was charged stays charged"

    def lost(self, agent: "SiteAgent", error: ProtocolError, standing: Joining) -> str | None:
        return None


COMMAND = Command(
    run=site, params=FileParams, panel="Studies across organisations", leave=("features", "one_based"), ahead=("data", "follow")
)
