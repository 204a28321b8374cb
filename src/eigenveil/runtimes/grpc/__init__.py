"""Named connections between processes, over gRPC with mutual TLS. This package does not interpret the bytes it carries.

A `Transport` listens, dials, keeps what it dialled connected, and puts all events into one queue. The party at the other end has
shown the certificate expected of it, and works on the same study: it sent the same greeting. `network` calls it. It may
import `protocols` and below.
"""

import os

# gRPC writes errors of strangers to the terminal, over what is shown there. A transport reports them itself.
# gRPC reads this when it is loaded, so it must be set before the imports below.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

from eigenveil.runtimes.grpc.channel import Timing
from eigenveil.runtimes.grpc.connection import Credentials, Got, Inbox, Joined, Left, TransportEvent
from eigenveil.runtimes.grpc.transport import Transport

__all__ = ["Credentials", "Got", "Inbox", "Joined", "Left", "Timing", "Transport", "TransportEvent"]
