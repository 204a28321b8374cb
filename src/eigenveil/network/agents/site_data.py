"""What a site or peer has before it takes part: its place in the study, its table, its policy and its account.

The agents call it first. Nothing here sends anything, and a study that must be refused is refused here.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, final

from eigenveil.core.accounting import Budget
from eigenveil.core.rows import Rows
from eigenveil.data.columns import ColumnChoice
from eigenveil.data.fingerprints import fingerprints
from eigenveil.data.formats import SHARED, FileParams, format_of, open_named
from eigenveil.data.rows import CheckedRows
from eigenveil.data.tables import read_table
from eigenveil.errors import ColumnsError, OtherStudy, ParameterError, require
from eigenveil.estimators.sites import people_at
from eigenveil.ledger.durable import StudyBudget
from eigenveil.network.identity.certificates import Keys
from eigenveil.network.policy import Policy, PolicyRefusal
from eigenveil.network.study.file import Place, StudyFile
from eigenveil.params.declarations.study import said_in_file
from eigenveil.runtimes.grpc import Credentials
from eigenveil.tasks.fit.bounds import RowBounds

__all__ = [
    "SiteData",
    "account_of",
    "credentials_of",
    "other_study",
    "place_of",
    "require_not_withdrawn",
    "require_policy",
]


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
    # The certificate in the study file, not the one beside the key: others accept that one only, and after a renewal the
    # two differ in their dates.
    listed = (place.certificate for place in study.places)
    mine = next((one for one in listed if one.public == keys.certificate.public), keys.certificate)
    return Credentials(keys.tls_key, mine.pem.encode(), study.authority.encode())


@final
@dataclass(frozen=True, slots=True, eq=False)
class SiteData:
    """A site's table: `rows` with the columns of a study in their order, and how many `people` are in it.

    `named` says whether its columns have names, or are taken to be those of the study. `columns` is how many the
    file has, None if it does not name them. `carried` is an Arrow table of columns that are written beside the site's own
    scores; nothing of it is sent.
    """

    rows: Rows
    people: int
    named: bool = True
    columns: int | None = None
    carried: Any = None

    @classmethod
    def read(
        cls, path: Path, study: StudyFile, *, dask: bool = False, carry: Sequence[str] = (), **how: Any
    ) -> "SiteData":
        """The columns that the study names, from a file that may have others; errors name the file and no value.

        `carry` are names or patterns of columns for the site alone. `how` are the fields of `FileParams`. With `dask` the rows
        stay on the cluster that this process is connected to.
        """
        try:
            # Only the columns of the study are read, so no other column can reach a sum or an error.
            if dask:
                return cls._on_cluster(path, study, how)
            table = read_table(
                path,
                person=study.params.person,
                columns=study.columns,
                literal=True,
                carry=carry,
                gaps=study.params.missing != "refuse",
                **how,
            )
        except ColumnsError as error:
            # A site can leave no column out: the study needs them all.
            raise ValueError(
                f"{error.happened}. The study needs numbers there: encode them, or fill them in by a public rule"
            ) from None
        count = table.rows.shape[1]
        require(
            count == len(study.columns),
            f"{path} has {count} unnamed columns, and the study has {len(study.columns)}: {', '.join(study.columns[:8])}",
        )
        found = cls.of(table.rows, study, named=table.columns is not None)
        return replace(found, columns=table.available, carried=table.carried)

    @classmethod
    def _on_cluster(cls, path: Path, study: StudyFile, how: Mapping[str, Any]) -> "SiteData":
        """The same for files that the workers of a Dask cluster read."""
        from eigenveil.data.engines.dask_rows import table_rows

        said = FileParams(**how)
        format_ = format_of(path, said)
        shared = format_.is_shared and format_.has_names
        require(shared, f"{path} cannot be shared by a cluster. Convert it to {SHARED} first")
        table: Any = open_named(path, said)
        choice = ColumnChoice(study.columns, person=study.params.person, literal=True)
        return replace(
            cls.of(table_rows(table, choice, gaps=study.params.missing != "refuse").inner, study),
            columns=len(table.names),
        )

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
        return cls(CheckedRows(rows, study.params.missing != "refuse"), round(people_at(rows)), named)

    def fingerprints(self) -> tuple[bytes, ...]:
        """Digests of the rows for the site alone, to know the table again (`data.fingerprints`)."""
        return fingerprints(self.rows)


def _require_sparse(study: StudyFile) -> None:
    """Refuse bounds that would fill a sparse table with numbers other than zero."""
    try:
        RowBounds.of(study.params, len(study.columns), private=study.private, sparse=True, names=study.columns)
    except ValueError as error:
        why = said_in_file(error) if isinstance(error, ParameterError) else error
        raise ValueError(f"the table is sparse, which this study does not allow: {why}") from error


def require_policy(policy: Policy | None, study: StudyFile, holding: SiteData, *, me: str, method: str) -> None:
    """Refuse a study that does not fit the table, or that the policy does not allow, with all reasons at once."""
    if study.sizes is not None:
        what = "people" if study.unit.each == "person" else "rows"
        # Others rely on the declared number, which is public. The true one is not, so the error does not say it.
        require(
            study.sizes[me] == holding.people,
            f"[sizes] in the study file says that {me} has {study.sizes[me]} {what}, and this table has another number",
        )
    if policy is None:
        return
    reasons = [*policy.refusals(study, me=me, method=method), *policy.refusals_of_rows(holding.people, study.unit)]
    # A table without names cannot be checked against a list of allowed columns, so it fails closed.
    if policy.limits.columns is not None and not holding.named:
        reasons.append("[limits] columns: the table does not name its columns, so they cannot be checked")
    if reasons:
        raise PolicyRefusal(reasons)


def other_study(study: StudyFile, above: str, greeting: bytes) -> OtherStudy:
    """The error of a party whose hub, or node above, `above`, has another study file."""
    return OtherStudy(
        f"{above}: {study.differs(greeting)}. Compare both with `eigenveil study show`, and ask the coordinator which is right. "
        "If yours is wrong, `eigenveil ledger close` frees what was reserved for it"
    )


def require_not_withdrawn(place: Place, withdrawn: Collection[str]) -> None:
    """Refuse a connection to a party whose pin was withdrawn after the study was checked."""
    if place.pin in withdrawn:
        raise PolicyRefusal([f"[pins] withdrawn: the pin {place.pin} of {place.name!r} was withdrawn"])


def account_of(study: StudyFile, dataset: str, *, party: str, budget: Budget | None, mu: float) -> StudyBudget:
    """What the study may spend of a dataset: `mu`, for a guarantee of `budget`; infinite if it protects nobody."""
    epsilon, delta = (None, None) if budget is None else (budget.epsilon, budget.delta)
    if study.seed is not None:
        # Noise from a seed in the study file protects nobody: anyone can compute it again.
        epsilon = delta = None
    terms = (study.digest, study.name, dataset, study.trust, epsilon, delta)
    return StudyBudget(*terms, math.inf if epsilon is None else mu, party=party, unit=study.unit)
