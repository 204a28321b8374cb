"""`eigenveil node`: an inner node of a tree, between the hub and its sites. It has no rows and keeps nothing."""

from eigenveil.commands import _network as network
from eigenveil.commands._command import Command
from eigenveil.commands._files import PassphraseFile, passphrase_from, require_file
from eigenveil.commands._network import TOO_FEW, refused, require_grpc, run_protocol
from eigenveil.errors import OtherStudy, ProtocolError
from eigenveil.show import disclosure
from eigenveil.show.progress import PartyView, StatusWriter

__all__ = ["COMMAND"]


def node(
    study: network.Study,
    keys: network.Keys = None,
    listen: network.Listen = None,
    connect: network.Connect = None,
    passphrase_file: PassphraseFile = None,
    memory: network.Memory = network.MEMORY,
) -> None:
    """Run a node of a tree: add up what comes from below, and pass it on.

    With the keys of the node next to the study file:

      eigenveil node heart.toml

    The parties below call the node, and the node calls the one above. It
    keeps nothing on disk. After a stop, start it with the same command: it
    asks those below once more, and they repeat what they said.

    The exit code is 3 if those below it do not join in time, and 2 if
    the party above has another study file.
    """
    require_file(study)
    require_grpc()
    from eigenveil.network.agents.star import NodeAgent
    from eigenveil.network.study import StudyFile, address

    # Options are checked before the study file, and that before anything is connected.
    network.require_listen(listen)
    allowed = network.bytes_allowed(memory)
    study_file = StudyFile.read(study)
    above = None if connect is None else address("--connect", connect)
    voice = StatusWriter()
    view = PartyView(voice)
    mine = network.keys_beside(study, study_file, keys, role="node", passphrase=passphrase_from(passphrase_file))
    agent = NodeAgent(study_file, keys=mine, memory=allowed, on_event=view.on_event)
    view.of(agent, calls=agent.calls)
    assert agent.place.address is not None
    where = network.listening_address(listen, agent.place.address)
    voice.say(disclosure.title_words(study_file), style="bold")
    voice.say(f"This is the node {agent.place.name!r}, at {where}. Below it: {', '.join(agent.hears)}.")
    try:
        with voice.under(view):
            run_protocol(
                lambda: agent.run(listen=where, address=above),
                voice,
                left=lambda: "nothing is lost: a node keeps nothing, and the same command resumes",
                look=view.look,
            )
    # Starting again would not help: the files differ.
    except OtherStudy:
        raise
    except ProtocolError as error:
        refused(f"error: {error}; {disclosure.WHEN_THERE}", TOO_FEW)
    voice.say("the result has been passed on", style="green")


COMMAND = Command(run=node, panel="Studies across organisations")
