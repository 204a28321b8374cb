"""Every case by its name: the releases that are shipped, and specimens that are known to be wrong.

`audit` and the command `audit` read `CASES`. It may import `audit.specimens`, and all that `audit` may.
"""

from types import MappingProxyType
from typing import Final

from eigenveil.audit import specimens
from eigenveil.audit.cases import bits, bounds, curator, ledgers, peers, recommend, sites, stream

__all__ = ["CASES"]

_MODULES: Final = (curator, stream, bounds, sites, peers, recommend, ledgers, bits, specimens)
CASES: Final = MappingProxyType({case.name: case for module in _MODULES for case in module.CASES})
