"""`eigenveil keys`: identities for a study across organisations, and the authority that signs them.

Each party makes its own keys, and a private key never leaves the machine it was made on. Only a request and a
certificate travel, and both are public. What makes them trustworthy is the pin, which two people compare by telephone.
"""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, final
from unicodedata import normalize

import typer

from eigenveil.commands._command import Answer, Command, Group
from eigenveil.commands._ending import wrote
from eigenveil.commands._files import NewPassphrase, PassphraseFile, new_passphrase, passphrase_from, write_public
from eigenveil.commands._options import OptionGroup, argument, flag, option
from eigenveil.errors import require
from eigenveil.show.agreement import dates_of, facts_in, party_facts, say, say_next, show_facts
from eigenveil.show.console import Line

if TYPE_CHECKING:
    from eigenveil.network.certificates import Role
    from eigenveil.show.console import View

__all__ = ["COMMAND"]

# Certificates bind names to keys, so a party that is called must say at which names.
_HOSTS = option("--host", "HOST", "A DNS name or IP address where others reach it, without a port; may be repeated.")
OptionalHosts = Annotated[list[str] | None, _HOSTS]
NeededHosts = Annotated[list[str], _HOSTS]


@final
@dataclass(frozen=True, kw_only=True)
class _NewParty(OptionGroup):
    """The options that sites, peers and nodes share."""

    name: Annotated[str, argument("NAME", "The name of this party in the study.")]
    folder: Annotated[Path, option("FOLDER", "Where its files go; made if it does not exist.", shows=True)] = Path()
    authority: Annotated[
        Path | None,
        option("FOLDER", "To try things out on one machine: the coordinator's folder. The request is signed at once."),
    ] = None
    days: Annotated[int | None, option(None, "With --authority: how long the certificate lasts.", none_means="365")] = None
    passphrase: NewPassphrase = False
    passphrase_file: PassphraseFile = None


def group() -> None:
    """Identities for a study across organisations.

    The coordinator, once for a study:

      eigenveil keys init study --host hub.example.org

    Each site, on its own machine, then sends north.request to the
    coordinator and reads the pin aloud by telephone:

      eigenveil keys site north

    The coordinator compares the pin, signs, and sends north.crt back:

      eigenveil keys sign north.request --authority study

    To see what is in these files:

      eigenveil keys show north.key north.crt

    Certificates end. The coordinator renews them, and pins stay:

      eigenveil keys renew --authority study
    """


def init(
    folder: Annotated[Path, argument("FOLDER", "A new folder for the study.")],
    host: OptionalHosts = None,
    days: Annotated[int, option(None, "How long the authority and the hub's certificate last.", shows=True)] = 825,
    hub: Annotated[str, option("NAME", "The name of the hub in the study.", shows=True)] = "hub",
    passphrase: NewPassphrase = False,
    passphrase_file: PassphraseFile = None,
) -> None:
    """Make the authority of a study and the hub's own keys.

    For the coordinator. --host says where sites reach the hub:

      eigenveil keys init study --host hub.example.org --host 10.1.2.3

    It writes authority.key, authority.crt, hub.key and hub.crt into the
    folder. The two .key files are private: back them up, and never
    pass them on. The authority signs the certificates of sites. It cannot fake
    a site whose pin others know.
    """
    from eigenveil.network.authority import AUTHORITY, HUB, Authority, new_request, write_new

    # Asked for before anything is written: a person who gives up here leaves no folder behind.
    secret = new_passphrase(passphrase, passphrase_file)
    authority = Authority.fresh(days=days)
    csr, private = new_request(normalize("NFC", hub), "hub", host or (), passphrase=secret)
    certificate = authority.sign(csr, days=days)
    # For its owner only, because private keys go into it.
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    key = folder / f"{HUB}.key"
    write_new(
        private={folder / f"{AUTHORITY}.key": authority.private_pem(secret), key: private},
        public={folder / f"{AUTHORITY}.crt": authority.pem, key.with_suffix(".crt"): certificate.pem},
    )
    wrote(key)
    say(f"made the study's authority and the keys of its hub in {folder}")
    show_facts(party_facts(certificate) + dates_of(certificate.begins, certificate.ends))
    say_next(
        f"back up {folder}: authority.key and hub.key are private and cannot be made again",
        "read the hub's pin to every site by telephone; they write it into their policy",
        "each site runs: eigenveil keys site NAME, and sends you NAME.request",
        f"then sign each request: eigenveil keys sign NAME.request --authority {folder}",
    )


def site(party: _NewParty) -> None:
    """Make the keys of a site, and a request for the coordinator to sign.

    On the site's own machine:

      eigenveil keys site north

    It writes north.key, which is private, and north.request. A site only
    calls out, so it needs no --host.

    All on one machine, to try things out:

      eigenveil keys site north --folder north --authority study
    """
    _make_keys(party, "site", ())


def peer(party: _NewParty, host: NeededHosts) -> None:
    """Make the keys of a peer, for a study without a hub.

    Other peers call it, so it must say at which host:

      eigenveil keys peer north --host eigenveil.north.example.org

    It writes north.key, which is private, and north.request.
    """
    _make_keys(party, "peer", host)


def node(party: _NewParty, host: NeededHosts) -> None:
    """Make the keys of a node, between sites and the hub.

    Sites below it call it, so it must say at which host. In a tree the
    nodes are named "node 1", "node 2" and so on:

      eigenveil keys node "node 1" --host node1.example.org

    It writes node-1.key, which is private, and node-1.request.
    """
    _make_keys(party, "node", host)


def sign(
    path: Annotated[Path, argument("FILE.request", "What the site, peer or node sent.")],
    authority: Annotated[Path, option("FOLDER", "Your folder of the study.")],
    pin: Annotated[str | None, option("HEX", "The pin they told you; spaces do not matter.", shows=True)] = None,
    days: Annotated[int, option(None, "How long the certificate lasts, at most as long as the authority.", shows=True)] = 365,
    yes: Annotated[bool, flag("--yes", "Sign without asking, and so without comparing the pin.")] = False,
    passphrase_file: PassphraseFile = None,
) -> None:
    """Sign the request of a site, peer or node, after comparing its pin.

    For the coordinator. Anyone could have changed the request on its way,
    so call the sender and let them read their pin:

      eigenveil keys sign north.request --authority study

    The same, with the pin that you noted in that call:

      eigenveil keys sign north.request --authority study --pin "1a2b ..."

    Later, eigenveil keys renew gives the certificate new dates.
    """
    from eigenveil.network.authority import Authority, CertificateRequest, free_place, write_new

    csr = CertificateRequest.load(path)
    # Signed by mistake, such a request would make its sender the one who reads what sites send.
    require(csr.role != "hub", f"{path} asks for the role of the hub. Only `eigenveil keys init` makes a hub")
    signer = Authority.load(authority, passphrase=passphrase_from(passphrase_file))
    target = free_place(authority, csr)
    if pin is not None:
        # As people write down what they hear: in groups, in either case.
        digits = "".join(pin.split()).lower()
        require(
            digits == csr.pin,
            f"the pin of {path} is {csr.pin}, not {digits[:64]}: the request was changed on its way, or the pin was misread. "
            "Nothing was signed",
        )
    # Shown before the question: the person compares this pin with the one they heard.
    show_facts(party_facts(csr))
    # A pin from the command line was compared above, and nothing is left to ask.
    if pin is None and not yes:
        try:
            same = typer.confirm(f"\nIs this the pin that {csr.name} read to you?")
        except typer.Abort:
            # Silence must not sign anything.
            raise ValueError("there was no answer, so nothing was signed. Give the pin with --pin") from None
        require(same, f"nothing was signed. Find out who sent this request, and ask {csr.name} for the pin")
    certificate = signer.sign(csr, days=days)
    write_new(public={target: certificate.pem})
    wrote(target)
    say(f"\nsigned: {target}")
    show_facts(dates_of(certificate.begins, certificate.ends))
    say_next(
        f"send {target} back to {csr.name}, who puts it beside the .key file; it is public, so any channel will do",
        "keep your copy: the study file needs the certificates of all parties",
    )


def renew(
    authority: Annotated[Path, option("FOLDER", "Your folder of the study.")],
    files: Annotated[
        list[Path] | None, argument("[FILE.crt]...", "The certificates to renew.", none_means="all in the folder")
    ] = None,
    days: Annotated[
        int | None, option(None, "How long they last from now.", none_means="825 for authority and hub, or 365")
    ] = None,
    passphrase_file: PassphraseFile = None,
) -> None:
    """Give certificates new dates. Keys and pins stay as they are.

    For the coordinator, who signed them. All certificates of a folder,
    the authority's and the hub's among them:

      eigenveil keys renew --authority study

    Only some of them:

      eigenveil keys renew study/north.crt --authority study

    Then make a new study file. It has the new certificates in it, so
    sites, peers and nodes need nothing else: their keys and policies stay.
    The old certificates are kept as FILE.crt.old.
    """
    from eigenveil.network.authority import AUTHORITY, AUTHORITY_DAYS, DAYS, Authority
    from eigenveil.network.certificates import Certificate, in_file

    signer = Authority.load(authority, passphrase=passphrase_from(passphrase_file))
    own, chosen = authority / f"{AUTHORITY}.crt", files or sorted(authority.glob("*.crt"))
    renewed: dict[Path, str] = {}
    # First of all: no certificate lasts longer than that of the authority.
    if any(path.resolve() == own.resolve() for path in chosen):
        signer = signer.again(days=AUTHORITY_DAYS if days is None else days)
        renewed[own] = signer.pem
    shown = []
    for path in chosen:
        if path.resolve() != own.resolve():
            before = in_file(path, Certificate.read)
            usual = AUTHORITY_DAYS if before.role == "hub" else DAYS
            after = signer.renew(before, days=usual if days is None else days)
            renewed[path] = after.pem
            shown.append((path, after))
    # Only now, when all of them can be made. The old ones are kept next to them.
    for path, pem in renewed.items():
        shutil.copy2(path, path.with_name(f"{path.name}.old"))
        write_public(path, pem)
    if own in renewed:
        say(str(own))
        show_facts(dates_of(signer.begins, signer.ends))
    for path, certificate in shown:
        say(str(path))
        show_facts(party_facts(certificate) + dates_of(certificate.begins, certificate.ends))
    say_next(
        f"make a new study file: eigenveil study new FILE --authority {authority} ...",
        "send it to all parties; their keys, pins and policies stay as they are",
        "a study that has begun continues with its own file, until the certificates in that one end",
    )


def show(
    files: Annotated[list[Path], argument("FILE...", "A .crt, .request or .key file.")], passphrase_file: PassphraseFile = None
) -> Answer:
    """Show what is in certificates, requests and key files.

    Example:

      eigenveil keys show north.key north.crt

    For a private key it shows whose it is and whether the file is safe,
    never the key itself.
    """

    from eigenveil.show.terminal import labelled

    def view() -> "View":
        for index, path in enumerate(files):
            facts = facts_in(path, passphrase_from(passphrase_file))
            yield Line(f"\n{path}" if index else str(path))
            yield labelled(facts)

    return Answer(view=view)


def _make_keys(party: _NewParty, role: "Role", hosts: Sequence[str]) -> None:
    from eigenveil.network.authority import AUTHORITY, DAYS, HUB, Authority, file_stem, free_place, new_request, write_new

    days, folder, authority = party.days, party.folder, party.authority
    require(days is None or authority is not None, "--days is for --authority; the coordinator chooses the days when signing")
    # In Unicode's normal form C, because keyboards differ in how they make accents.
    name = normalize("NFC", party.name)
    csr, private = new_request(name, role, hosts, passphrase=new_passphrase(party.passphrase, party.passphrase_file))
    # Names may have blanks and accents. Files have plain letters.
    stem = file_stem(name)
    # On a disk that ignores case, "Hub" would overwrite or shadow the coordinator's own files.
    taken = stem.lower() in {AUTHORITY, HUB}
    require(not taken, f"a {role} cannot be called {name!r}: the coordinator has files of that name")
    public = {folder / f"{stem}.request": csr.pem}
    certificate = None
    if authority is not None:
        signer = Authority.load(authority, passphrase=passphrase_from(party.passphrase_file))
        copy = free_place(authority, csr)
        certificate = signer.sign(csr, days=DAYS if days is None else days)
        public |= {folder / copy.name: certificate.pem}
        # The coordinator keeps a copy of each certificate, because the study file needs them all.
        if authority.resolve() != folder.resolve():
            public |= {copy: certificate.pem}
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    key = folder / f"{stem}.key"
    require(not key.exists(), f"{key} already exists. Keys are never overwritten, because others may have pinned them")
    write_new(private={key: private}, public=public)
    wrote(key)
    say(f"made {key} (private) and {', '.join(map(str, public))} (public)")
    show_facts(party_facts(csr) + ([] if certificate is None else dates_of(certificate.begins, certificate.ends)))
    backup = f"back up {key}, and never pass it on; if it is lost, all who pinned {name} must change their policy"
    if certificate is not None:
        say_next(backup, "this was signed without comparing pins: good for a trial, not for a real study")
        return
    say_next(
        backup,
        f"send {folder / f'{stem}.request'} to the coordinator; it is public, so any channel will do",
        "read the pin above to the coordinator by telephone, and ask for the pin of the hub",
        f"put the {stem}.crt that comes back beside {key}",
    )


COMMAND = Group(
    name="keys",
    about=group,
    commands=tuple(Command(run=run) for run in (init, site, peer, node, sign, renew, show)),
    panel="Studies across organisations",
)
