"""A file of bounds, or a spectrum, as `eigenveil inspect` shows it: what was released, and what it cost."""

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eigenveil.commands._bounds_file import FORMAT, LARGEST, BoundsFile, guarantee_in, plain_in
from eigenveil.errors import listed, require
from eigenveil.plan.spectrum import FORMAT as SPECTRUM
from eigenveil.plan.spectrum import Spectrum

if TYPE_CHECKING:
    from rich.console import Group

__all__ = ["saved_values", "saved_view"]


def saved_values(path: Path) -> dict[str, Any]:
    """Everything in the file, after it was checked; a `ValueError` for any other file."""
    wrong = f"{path} holds neither bounds nor a spectrum. Give a file that an eigenveil command wrote"
    require(path.stat().st_size <= LARGEST, wrong)
    plain = plain_in(path, wrong)
    require(isinstance(plain, Mapping) and plain.get("format") in (FORMAT, SPECTRUM), wrong)
    if plain["format"] == FORMAT:
        BoundsFile.read(path)
    else:
        Spectrum.from_json(plain)
    return dict(plain)


def saved_view(path: Path) -> "Group":
    """The same for a terminal."""
    from rich.console import Group
    from rich.text import Text

    from eigenveil.show.terminal import guarantee_panel, labelled

    plain = saved_values(path)
    bounds = plain["format"] == FORMAT
    facts = _bounds(plain) if bounds else _spectrum(plain)
    use = f"eigenveil fit DATA --bounds {path}" if bounds else f"eigenveil plan --spectrum {path}"
    # A spectrum of public rows cost nothing, and says nothing of a cost.
    cost = [guarantee_panel(guarantee_in(path))] if plain.get("guarantee") is not None else []
    return Group(
        Text("bounds of rows" if bounds else "spectrum", style="bold"),
        labelled(facts),
        Text(""),
        *cost,
        Text(f"use it with: {use} ...", style="dim"),
    )


def _bounds(plain: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    names = plain.get("columns") or [f"column {i}" for i in range(1, plain["dim"] + 1)]
    yield "columns", listed(names)
    for name in ("row_bound", "mean_bound"):
        yield from _number(plain, name)
    low, high = plain.get("low"), plain.get("high")
    if low is not None and high is not None:
        yield (
            "ranges",
            listed(f"{name} {one:.4g} to {other:.4g}" for name, one, other in zip(names, low, high, strict=True)),
        )
    for name, word in (("center", "mean"), ("scale", "units")):
        if plain.get(name) is not None:
            yield word, listed(f"{column} {value:.4g}" for column, value in zip(names, plain[name], strict=True))
    yield from _number(plain, "people", off="people_error", digits=".0f")


def _spectrum(plain: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    found = Spectrum.from_json(plain)
    yield "columns", str(found.dim)
    yield "variances", f"{listed(f'{value:.4g}' for value in found.values)}, over the square of the row bound"
    yield "error of each", f"{found.error:.2g}"
    yield "fill", f"{found.fill:.2g}, the mean squared norm over the square of the row bound"


def _number(plain: Mapping[str, Any], name: str, *, off: str = "", digits: str = ".6g") -> Iterator[tuple[str, str]]:
    """A number of the file. Those that no fit uses may be anything in a file that was edited."""
    value, error = plain.get(name), plain.get(off)
    if isinstance(value, int | float) and math.isfinite(value):
        known = isinstance(error, int | float) and math.isfinite(error) and error > 0
        words = f", give or take {error:.2g}" if known else ""
        yield name.replace("_", " "), f"{float(value):{digits}}{words}"
