"""Names, bytes and connections: one process talks to others over gRPC with mutual TLS. What the bytes mean is not known here.

A `Transport` listens, dials, keeps what it dialled connected, and puts all that happens into one queue. Whoever is at the
other end has shown a certificate that was expected there, and works on the same thing: it sent the same greeting.
"""

import os

# gRPC writes what strangers do wrong to the terminal, over whatever is shown there; a switchboard tells it by itself.
# It reads this when it is loaded.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

from eigenveil.runtimes.grpc.credentials import Credentials
from eigenveil.runtimes.grpc.events import Got, Inbox, Joined, Left, TransportEvent
from eigenveil.runtimes.grpc.timing import Timing
from eigenveil.runtimes.grpc.transport import Transport

__all__ = ["Credentials", "Got", "Inbox", "Joined", "Left", "Timing", "Transport", "TransportEvent"]
