"""The file that `eigenveil bounds --output` writes and `--bounds` reads, as settings of a fit or a stream.

The file is checked strictly: it may have been edited or truncated, or belong to another table, and is then refused.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, final

from eigenveil.data.archive import whole_number
from eigenveil.errors import join_names, require
from eigenveil.params.declarations.private import PrivateParams
from eigenveil.params.declare import declared, flag

if TYPE_CHECKING:
    from eigenveil.core.accounting import Budget
    from eigenveil.core.unit import PrivacyUnit
    from eigenveil.privacy.guarantee import Guarantee

__all__ = ["FORMAT", "BoundsFile", "guarantee_in", "reach_of_ranges", "values_in"]

FORMAT: Final = "eigenveil bounds 1"
# 64 MB: a file of bounds is far smaller, and reading a huge file by mistake would fill the memory.
LARGEST: Final = 1 << 26
# A share of people that is less than so many of its deviations may be noise alone.
_SEEN: Final = 2.5
# How a file of a ledger begins.
_SQLITE: Final = b"SQLite format 3\0"
_PUBLIC: Final = (
    "NOT COVERED BY THE GUARANTEE: the bounds in {} were found without noise, or with a known seed. A bound read off these "
    "people's rows leaks them. Use such a file only if it comes from a public table."
)


@final
@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class BoundsFile:
    """Bounds that were found for a table of `dim` columns, and what they cost."""

    path: Path
    dim: int
    columns: tuple[str, ...] | None  # Their names, None if the table had none.
    settings: Mapping[str, Any]  # The parameters of a fit that the file sets.
    fixed: tuple[str, ...]  # Those that belong together, and cannot be given on the command line as well.
    guarantee: "Guarantee"
    norms: Mapping[float, float] = field(default_factory=dict)  # By the share of people with longer rows, where not noise.
    bound_usages: Mapping[float, float] = field(default_factory=dict)  # Of each norm.
    outliers: Any = None  # The numbers of `Outliers`, not checked yet.

    @classmethod
    def read(cls, path: Path) -> "BoundsFile":
        """The bounds in `path`; a `ValueError` that names the file if it is anything else."""
        require(
            path.is_file(), f"--bounds {path} does not exist or is not a file. Make it with `eigenveil bounds --output {path}`"
        )
        require(
            path.stat().st_size <= LARGEST,
            f"--bounds {path} is too large to be a file of bounds. Give a file that `eigenveil bounds --output` wrote",
        )
        plain = plain_in(path, f"--bounds {path} is not JSON. Give a file that `eigenveil bounds --output` wrote")
        try:
            return cls._of(path, plain)
        except ValueError as error:
            raise ValueError(f"--bounds {path}: {error}") from error

    @classmethod
    def _of(cls, path: Path, plain: Any) -> "BoundsFile":
        from eigenveil.privacy.guarantee import Guarantee

        good = isinstance(plain, Mapping) and plain.get("format") == FORMAT
        require(good, f"its format must be {FORMAT!r}. Give a file that `eigenveil bounds --output` wrote")
        dim, kind, names = (plain.get(name) for name in ("dim", "kind", "columns"))
        require(isinstance(dim, int) and not isinstance(dim, bool) and dim >= 1, "dim must be a number of columns")
        require(kind in ("rows", "columns"), "kind must be rows or columns")
        text = isinstance(names, list) and len(names) == dim and all(isinstance(name, str) for name in names)
        require(names is None or text, f"columns must be {dim} names, or null")
        require(isinstance(plain.get("guarantee"), Mapping), "guarantee must record what the bounds cost")
        guarantee = Guarantee.from_dict(plain["guarantee"])
        require(guarantee.epsilon is None or guarantee.protects is not None, "guarantee must say what it protects")
        settings, fixed = _of_rows(plain, dim) if kind == "rows" else _of_columns(plain, dim)
        columns = None if names is None else tuple(names)
        norms, bound_usages = _norms(plain.get("candidates"))
        return cls(
            path=path,
            dim=dim,
            columns=columns,
            settings=settings,
            fixed=fixed,
            guarantee=guarantee,
            norms=norms,
            bound_usages=bound_usages,
            outliers=plain.get("outliers"),
        )

    @property
    def of_columns(self) -> bool:
        """Whether it has a range for each column, not a bound on rows."""
        return "column_bounds" in self.settings

    def merged(self, settings: Mapping[str, Any], explicit: Sequence[str]) -> dict[str, Any]:
        """The `settings` of a command with those of the file put in. The user typed the options `explicit`."""
        both = [flag(option) for name, option in declared(PrivateParams).items() if name in self.fixed and name in explicit]
        require(not both, f"--bounds {self.path} already sets {', '.join(both)}. Leave out one or the other")
        chosen = {name: value for name, value in self.settings.items() if name not in explicit}
        if self.of_columns and "scale" in explicit:
            # The row bound in the file is in units of its own scale, so it is void with another one.
            chosen.pop("row_bound", None)
        return {**settings, **chosen}

    def for_stream(self, settings: Mapping[str, Any], explicit: Sequence[str]) -> dict[str, Any]:
        """As `merged`, for a stream, which has no `mean_bound`."""
        merged = self.merged(settings, explicit)
        names = ("row_bound", "column_bounds", "scale", "center", "origin")
        return {**settings, **{name: merged[name] for name in names}}

    def require_columns(self, dim: int, columns: Sequence[str] | None) -> None:
        """Refuse a table whose columns differ from those the bounds were found for."""
        require(
            dim == self.dim,
            f"--bounds {self.path} is for {self.dim} columns and the table has {dim}. Run `eigenveil bounds` on this table",
        )
        if columns is None or self.columns is None:
            return
        other = [f"{new!r} where {old!r} was" for old, new in zip(self.columns, columns, strict=True) if old != new]
        require(
            not other, f"--bounds {self.path} is for other columns: {join_names(other)}. Run `eigenveil bounds` on this table"
        )

    @property
    def warning(self) -> str | None:
        """The warning for a private fit that uses bounds which are not private."""
        return None if self.guarantee.private else _PUBLIC.format(self.path)

    @property
    def long_rows(self) -> str | None:
        """The warning that rows far beyond the bound seem to have most of the variance, from what was released with it."""
        from eigenveil.plan.clipping import Norms

        norms, bound = Norms.read(self.norms, self.outliers), self.settings.get("row_bound")
        if norms is None or self.of_columns or bound is None or (longest := norms.longest(bound)) is None:
            return None
        return (
            f"{longest.words(bound, times=f'times as long as the bound in {self.path}')}. If so, exact PCA of all rows follows "
            "them, and what is found describes the others. If they matter, use a larger bound that you know."
        )

    def together(self, budget: "Budget", unit: "PrivacyUnit") -> str | None:
        """What the search and a fit on the same people cost together, or that there is no sum; None for public bounds."""
        from eigenveil.core.accounting import Budget, epsilon_of

        epsilon, delta = self.guarantee.epsilon, self.guarantee.delta
        if epsilon is None or delta is None:
            return None
        cost = f"Finding the bounds in {self.path} cost ({epsilon:g}, {delta:g})"
        if self.guarantee.protects != unit:
            return (
                f"{cost} and protects {self.guarantee.protects}. This fit protects {unit}. Such costs cannot be added up: to "
                "know the total, run `eigenveil bounds` again with the same --person and --neighbours."
            )
        # Gaussian releases compose in mu: the root of the sum of squares.
        both = epsilon_of(math.hypot(Budget(epsilon, delta).mu, budget.mu), budget.delta)
        digits = 3 - math.floor(math.log10(both))
        # Rounded up: a guarantee must not look better than it is.
        whole = math.ceil(both * 10**digits - 1e-9) / 10**digits
        return f"{cost}. If both used the same people, the total is ({whole:g}, {budget.delta:g})."


def _bounds_or_spectrum(path: Path, wrong: str) -> dict[str, Any]:
    """The plain contents of a file of bounds or of a spectrum, or a `ValueError` that says what is `wrong`."""
    from eigenveil.plan.spectrum import FORMAT as SPECTRUM

    wrong = f"{path} {wrong}. Give a file that an eigenveil command wrote"
    require(path.stat().st_size <= LARGEST, wrong)
    plain = plain_in(path, wrong)
    require(isinstance(plain, Mapping) and plain.get("format") in (FORMAT, SPECTRUM), wrong)
    return dict(plain)


def guarantee_in(path: Path) -> "Guarantee":
    """What the bounds or the spectrum in `path` cost, whatever was found; a `ValueError` for any other file."""
    from eigenveil.privacy.guarantee import Guarantee

    with path.open("rb") as file:
        ledger = file.read(len(_SQLITE)) == _SQLITE
    require(not ledger, f"{path} is a ledger, which adds up by itself. Show it with `eigenveil ledger show {path}`")
    plain = _bounds_or_spectrum(path, "is not a model (.safetensors), bounds or a spectrum")
    require(
        isinstance(plain.get("guarantee"), Mapping),
        f"{path} does not say what it cost. Leave it out, and add what was spent on it with --mu",
    )
    try:
        return Guarantee.from_dict(plain["guarantee"])
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def values_in(path: Path) -> dict[str, Any]:
    """Everything in a file of bounds or of a spectrum, after it was checked; a `ValueError` for any other file."""
    from eigenveil.plan.spectrum import Spectrum

    plain = _bounds_or_spectrum(path, "holds neither bounds nor a spectrum")
    if plain["format"] == FORMAT:
        BoundsFile.read(path)
    else:
        Spectrum.from_json(plain)
    return plain


def plain_in(path: Path, otherwise: str) -> Any:
    """The JSON in a file, or a `ValueError` that says `otherwise`."""
    try:
        return json.loads(path.read_text(encoding="utf-8"), parse_constant=_refused, parse_int=whole_number)
    except (UnicodeDecodeError, ValueError, RecursionError):
        raise ValueError(otherwise) from None


def reach_of_ranges(dim: int) -> float:
    """The largest norm of a row, in units of half the range of each of `dim` columns, around their midpoints."""
    return float(f"{math.sqrt(dim):.6g}")


def _of_rows(plain: Mapping[str, Any], dim: int) -> tuple[dict[str, Any], tuple[str, ...]]:
    """A row bound around the mean that was found, so that the fit need not search for it, or around zero."""
    require(plain.get("row_bound") is not None, f"no bound was found: {plain.get('why') or 'no reason is given'}")
    bound = _number(plain, "row_bound")
    require(bound > 0, f"row_bound must be positive, got {bound:g}")
    scale = None if plain.get("scale") is None else _numbers(plain, "scale", dim)
    center = None if plain.get("center") is None else _numbers(plain, "center", dim)
    require(isinstance(plain.get("searched"), bool), "searched must be true or false")
    around: dict[str, Any] = {"center": center, "origin": None, "mean_bound": None}
    if center is not None and plain["searched"]:
        # The bound was measured around this center, so the fit starts its search for the mean there.
        around = {"center": "private", "origin": center, "mean_bound": bound}
    return {"row_bound": bound, "scale": scale, **around}, ("row_bound", "scale", "center", "origin", "mean_bound")


def _norms(candidates: Any) -> tuple[dict[float, float], dict[float, float]]:
    """The norms of the candidates by the share of people beyond, and the fill by norm. What is no candidate is left out."""
    norms, bound_usages = {}, {}
    for candidate in candidates if isinstance(candidates, list) else []:
        named = isinstance(candidate, Mapping) and all(
            _is_number(candidate.get(name)) for name in ("bound", "clipped", "error", "bound_usage")
        )
        if named and 0 < candidate["clipped"] < 1 and candidate["bound"] > 0 and 0 < candidate["bound_usage"] <= 1:
            bound_usages[float(candidate["bound"])] = float(candidate["bound_usage"])
            if candidate["clipped"] >= _SEEN * candidate["error"]:
                norms[float(candidate["clipped"])] = float(candidate["bound"])
    return norms, bound_usages


def _of_columns(plain: Mapping[str, Any], dim: int) -> tuple[dict[str, Any], tuple[str, ...]]:
    """A range for each column, and a scale that gives all columns equal weight."""
    require(plain.get("low") is not None, f"no bounds were found: {plain.get('why') or 'no reason is given'}")
    low, high, scale = (_numbers(plain, name, dim) for name in ("low", "high", "scale"))
    require(all(a <= b for a, b in zip(low, high, strict=True)), "every low must be at most its high")
    return {"column_bounds": (low, high), "scale": scale, "row_bound": reach_of_ranges(dim)}, ("column_bounds",)


def _number(plain: Mapping[str, Any], name: str) -> float:
    require(_is_number(plain.get(name)), f"{name} must be a number")
    return float(plain[name])


def _numbers(plain: Mapping[str, Any], name: str, dim: int) -> list[float]:
    values = plain.get(name)
    good = isinstance(values, list) and len(values) == dim and all(_is_number(number) for number in values)
    require(good, f"{name} must be {dim} numbers")
    assert isinstance(values, list)
    numbers = [float(number) for number in values]
    require(name != "scale" or min(numbers) > 0, "every scale must be positive")
    return numbers


def _is_number(value: Any) -> bool:
    # An integer in JSON can be too large for a float.
    try:
        return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(float(value))
    except OverflowError:
        return False


def _refused(word: str) -> float:
    raise json.JSONDecodeError(f"{word} is not a number", word, 0)
