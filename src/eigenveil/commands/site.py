"""`eigenveil site`: take part in a study with one's own table, after a person or a policy has agreed to what leaves."""

from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, final

from eigenveil.commands import _network as network
from eigenveil.commands._command import Command
from eigenveil.commands._files import PassphraseFile, require_file
from eigenveil.commands._joining import Joining, JoinOptions, Kind, take_part
from eigenveil.commands._network import require_grpc
from eigenveil.commands._options import DaskCluster, Page, PageToken, page_at
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


def site(
    study: network.Study,
    settings: dict[str, Any],
    data: network.SiteSource = None,
    follow: network.Follow = None,
    keys: network.Keys = None,
    policy: network.PolicyFile = None,
    ledger: network.Ledger = Path("ledger.db"),
    dataset: network.Dataset = None,
    connect: network.Connect = None,
    yes: network.Yes = False,
    model: network.HeldModel = None,
    scores: network.Scores = None,
    passthrough: network.OwnPassthrough = None,
    report: network.OwnReport = None,
    rehearsal: network.Rehearsal = False,
    dry_run: network.DryRun = False,
    memory: network.Memory = network.MEMORY,
    force: network.Force = False,
    passphrase_file: PassphraseFile = None,
    require_head: network.RequireHead = None,
    dask: DaskCluster = None,
    page: Page = None,
    page_token: PageToken = None,
) -> None:
    """Take part in a study with the table of this site.

    With the keys of the site beside the study file:

      eigenveil site heart.toml --data patients.parquet \\
        --policy policy.toml --dataset patients

    First it shows what it would reveal, to whom and at what cost, and
    asks. --dry-run stops there. Then it calls the hub and answers what
    the study asks, nothing else. Every answer and its charge are in the
    ledger before the answer leaves. After a stop the same command goes
    on, and nothing is charged twice.

    It writes the model, its guarantee in a text file beside it, and the
    scores of this site's own rows. SCORES ARE RAW DATA: only you can read
    them (mode 0600), and they go to nobody. --passthrough id,label puts columns
    of your table beside them.

    --page 127.0.0.1:8080 shows in a browser what happens after you have
    agreed: questions, answers and charges, and nothing about your rows.

    Unattended, rules consent in place of a person:

      eigenveil site heart.toml --data patients.parquet \\
        --policy policy.toml --yes

    In a study of streams, a site follows a file that grows. Each slot
    and its charge are in the ledger before anybody can ask for it:

      eigenveil site sensors.toml --follow sensor.csv --dataset sensor

    Exit codes: 1 if the person says no or the total budget is too small,
    2 if the policy refuses or the hub has another study file. It is 130
    after Ctrl-C and 143 after SIGTERM.
    """
    require_file(study)
    require_grpc()
    from eigenveil.network.study import address

    # Made first, because it refuses --yes without a policy before any file is opened.
    allowed = network.bytes_allowed(memory)
    require((data is None) != (follow is None), "give --data with your table, or --follow in a study of streams")
    options = JoinOptions(
        study=study,
        data=data if data is not None else Path("-"),
        keys=keys,
        policy=policy,
        ledger=ledger,
        dataset=dataset,
        yes=yes,
        model=model,
        scores=scores,
        rehearsal=rehearsal,
        dry_run=dry_run,
        force=force,
        memory=allowed,
        reading=settings,
        passphrase_file=passphrase_file,
        require_head=require_head,
        dask=dask,
        page=page_at(page, page_token),
        report=report,
        passthrough=tuple(passthrough or ()),
        followed=follow is not None,
    )
    # Checked before the study is read: a typing error should not take as long as a table.
    where = None if connect is None else address("--connect", connect)
    if follow is not None:
        from eigenveil.commands.watch import followed

        # A stream has no end at which this site could write something of its own. Nothing given is silently ignored.
        unused = {
            "--output": model,
            "--scores": scores,
            "--passthrough": passthrough,
            "--report": report,
            "--page": page,
            "--dask": dask,
        }
        given_too = [name for name, value in unused.items() if value]
        require(not given_too, f"with --follow the hub has the model and the report. Leave out {', '.join(given_too)}")
        followed(options, follow, connect=where)
        return
    take_part(options, _Site(where))


@final
@dataclass(frozen=True, slots=True)
class _Site(Kind["SiteAgent"]):
    """A site calls the hub or node above it, at `connect` if given, and can come back whenever it was stopped."""

    connect: str | None

    @property
    def role(self) -> Literal["site"]:
        return "site"

    def agent(self, study: "StudyFile", **settings: Any) -> "SiteAgent":
        from eigenveil.network.agents.star import SiteAgent

        return SiteAgent(study, **settings)

    def leaving(self, agent: "SiteAgent") -> Iterator["Fact"]:
        above = agent.study.place(agent.above)
        return disclosure.site_disclosures(agent.study, agent.parties, above=above, address=self.connect)

    def joined(self, state: "StudyReplay") -> str:
        return f"This site joined the study on {state.joined} and goes on with it."

    def run(
        self, agent: "SiteAgent", deliver: Callable[["Model"], None], *, note: str | None, voice: StatusWriter
    ) -> Coroutine[Any, Any, "Model"]:
        return agent.run(deliver, address=self.connect, note=note)

    def left(self, agent: "SiteAgent", standing: Joining) -> str:
        # What the site has said is in its ledger, word for word, so a resend costs nothing.
        return "nothing is lost: the same command goes on where it stopped. What was charged stays charged"

    def lost(self, agent: "SiteAgent", error: ProtocolError, standing: Joining) -> str | None:
        return None


COMMAND = Command(run=site, params=FileParams, panel="Studies across organisations", leave=("features", "one_based"))
