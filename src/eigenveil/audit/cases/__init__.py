"""Every case by its name: the releases that are shipped, and specimens that are known to be wrong.

`audit` and the command `audit` read `CASES`. It may import `audit.specimens`, and all that `audit` may.
"""

from types import MappingProxyType
from typing import Final

from eigenveil.audit.cases import bits, bounds, curator, followed, ledgers, masked, peers, recommend, sites, stream
from eigenveil.audit.specimens import bits as wrong_bits
from eigenveil.audit.specimens import curator as wrong_curator
from eigenveil.audit.specimens import followed as wrong_followed
from eigenveil.audit.specimens import ledgers as wrong_ledgers
from eigenveil.audit.specimens import peers as wrong_peers
from eigenveil.audit.specimens import sites as wrong_sites

__all__ = ["CASES"]

_SHIPPED: Final = (curator, stream, followed, bounds, sites, masked, peers, recommend, ledgers, bits)
_WRONG: Final = (wrong_curator, wrong_followed, wrong_sites, wrong_peers, wrong_ledgers, wrong_bits)
CASES: Final = MappingProxyType({case.name: case for module in (*_SHIPPED, *_WRONG) for case in module.CASES})
