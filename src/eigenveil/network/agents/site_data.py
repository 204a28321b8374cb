"""What a site or peer has before it takes part: its place in the study, its table, its policy and its account.

The agents call it first. Nothing here sends anything, and a study that must be refused is refused here.
"""

import hashlib
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, final

import numpy as np

from eigenveil.data.rows import CheckedRows, Rows, block_size
from eigenveil.data.tables import read_table
from eigenveil.errors import ColumnsError, ParameterError, require
from eigenveil.estimators.sites import people_at
from eigenveil.network.identity.certificates import Keys
from eigenveil.network.ledger.durable import StudyBudget
from eigenveil.network.policy import Policy, PolicyRefusal
from eigenveil.network.study.file import Place, StudyFile
from eigenveil.params.declarations.study import said_in_file
from eigenveil.privacy import Budget
from eigenveil.runtimes.grpc import Credentials
from eigenveil.tasks.fit.bounds import RowBounds

__all__ = ["SiteData", "account_of", "credentials_of", "place_of", "require_policy"]


def place_of(study: StudyFile, keys: Keys, *, role: str) -> Place:
    """The place in the study that these keys belong to; a `ValueError` if it has none, another role, or is out of date."""
    mine = keys.certificate
    # By the identity that others pin, not by the name: an authority could sign a second party of that name.
    place = next((one for one in study.places if one.certificate.public == mine.public), None)
    require(
        place is not None, f"these are the keys of {mine.name!r}, who does not take part in the study {study.name!r}"
    )
    assert place is not None
    require(
        place.certificate.key_digest == mine.key_digest,
        f"the certificate of {place.name!r} beside its key differs from the one in the study file: one of them is out of date",
    )
    require(
        place.certificate.role == role,
        f"{place.name!r} is a {place.certificate.role} in this study: run `eigenveil {place.certificate.role}`",
    )
    # Only our own date is checked here. Those of others are checked when they connect.
    place.certificate.require_current()
    return place


def credentials_of(study: StudyFile, keys: Keys) -> Credentials:
    """What the party shows to others, and whose signature it accepts."""
    return Credentials(keys.tls_key, keys.certificate.pem.encode(), study.authority.encode())


@final
@dataclass(frozen=True, slots=True, eq=False)
class SiteData:
    """A site's table: `rows` with the columns of a study in their order, and how many `people` are in it.

    `named` says whether its columns have names, or are taken to be those of the study. `columns` is how many the
    file has, None if it does not name them.
    """

    rows: Rows
    people: int
    named: bool = True
    columns: int | None = None

    @classmethod
    def read(cls, path: Path, study: StudyFile, **how: Any) -> "SiteData":
        """The columns that the study names, from a file that may have others; errors name the file and no value.

        `how` are the fields of `FileParams`.
        """
        try:
            # Only the columns of the study are read, so no other column can reach a sum or an error.
            table = read_table(path, person=study.params.person, columns=study.columns, literal=True, **how)
        except ColumnsError as error:
            # A site can leave no column out: the study needs them all.
            raise ValueError(f"{error.happened}. The study needs numbers there: encode or fill them in first") from None
        count = table.rows.shape[1]
        require(
            count == len(study.columns),
            f"{path} has {count} unnamed columns, and the study has {len(study.columns)}: {', '.join(study.columns[:8])}",
        )
        found = cls.of(table.rows, study, named=table.columns is not None)
        return replace(found, columns=table.available)

    @classmethod
    def of(cls, rows: Rows, study: StudyFile, *, named: bool = True) -> "SiteData":
        """The same for rows in memory."""
        require(
            rows.shape[1] == len(study.columns),
            f"the rows have {rows.shape[1]} columns, and the study has {len(study.columns)}",
        )
        if rows.sparse:
            _require_sparse(study)
        # The number of people is for this site's own policy and screen. It is not sent anywhere.
        return cls(CheckedRows(rows), round(people_at(rows)), named)

    def fingerprint(self) -> bytes:
        """A digest of all rows, for the site alone: it shows when a name stands for other rows than before."""
        # The shape goes in first: the same numbers in rows of another length are another table.
        state = hashlib.sha256(repr(self.rows.shape).encode())
        # Block by block: the table may be larger than memory. Fixed byte order, so that machines agree.
        for block in self.rows.blocks(block_size(self.rows)):
            values = block.values.toarray() if block.sparse else block.values
            state.update(np.ascontiguousarray(values, dtype="<f8").data)
            if block.weights is not None:
                state.update(np.ascontiguousarray(block.weights, dtype="<f8").data)
        return state.digest()


def _require_sparse(study: StudyFile) -> None:
    """Refuse bounds that would fill a sparse table with numbers other than zero."""
    try:
        RowBounds.of(study.params, len(study.columns), private=study.private, sparse=True)
    except ValueError as error:
        why = said_in_file(error) if isinstance(error, ParameterError) else error
        raise ValueError(f"the table is sparse, which this study does not allow: {why}") from error


def require_policy(policy: Policy | None, study: StudyFile, holding: SiteData, *, me: str, method: str) -> None:
    """Refuse a study that does not fit the table, or that the policy does not allow, with all reasons at once."""
    if study.sizes is not None:
        # Others rely on the declared number, which is public. The true one is not, so the error does not say it.
        require(
            study.sizes[me] == holding.people,
            f"[sizes] in the study file says that {me} has {study.sizes[me]} people, and this table has another number",
        )
    if policy is None:
        return
    reasons = [*policy.refusals(study, me=me, method=method), *policy.refusals_of_rows(holding.people)]
    # A table without names cannot be checked against a list of allowed columns, so it fails closed.
    if policy.limits.columns is not None and not holding.named:
        reasons.append("[limits] columns: the table does not name its columns, so they cannot be checked")
    if reasons:
        raise PolicyRefusal(reasons)


def account_of(study: StudyFile, dataset: str, *, party: str, budget: Budget | None, mu: float) -> StudyBudget:
    """What the study may spend of a dataset: `mu`, for a guarantee of `budget`; infinite if it protects nobody."""
    if budget is None or study.seed is not None:
        # Noise from a seed in the study file protects nobody: anyone can compute it again.
        return StudyBudget(study.digest, study.name, dataset, study.trust, None, None, math.inf, party=party)
    return StudyBudget(study.digest, study.name, dataset, study.trust, budget.epsilon, budget.delta, mu, party=party)
