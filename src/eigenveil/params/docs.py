"""Writes constructors and the Parameters sections of docstrings into the source, because editors show source and run no code.

It also writes docs/study-keys.md, the keys of study files and policies. In other pages it writes tables of options between
`<!-- options PlanParams: people dim -->` and `<!-- end of options -->`. All parameters of an estimator or function go between
`<!-- parameters PrivatePCA -->` and `<!-- end of parameters -->`. Run `python -m eigenveil.params.docs` to rewrite what is
out of date. A test names what that is.
"""

import importlib
import inspect
import json
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import MISSING
from itertools import chain
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Final, Literal, Union, get_args, get_origin

from eigenveil.errors import in_python
from eigenveil.params.declare import Declared, declared, flag, help_of, in_options, option_help, parameters_section
from eigenveil.params.tables import keys_table
from eigenveil.params.values import text_of

DOCUMENTED: Final = (
    "eigenveil.estimators.private:PrivatePCA",
    "eigenveil.estimators.federated.pca:FederatedPCA",
    "eigenveil.estimators.gossip.pca:GossipPCA",
    "eigenveil.estimators.slots.stream:FederatedStream",
    "eigenveil.estimators.streaming.pca:StreamingPCA",
    "eigenveil.estimators.bounds.rows:find_bounds",
    "eigenveil.estimators.bounds.columns:find_column_bounds",
    "eigenveil.estimators.bounds.spectrum:released_spectrum",
    "eigenveil.recommend.reading:read_interactions",
    "eigenveil.recommend.recommender:PrivateRecommender",
)
# Up to the next heading. A section at the end of a docstring does not match, and `current` refuses it.
_SECTION: Final = re.compile(r"    Parameters\n    -{10}\n.*?(?=\n\n    \w+\n    -{4,}\n)", re.DOTALL)
# A constructor, and the keywords of a function after its first argument.
_CONSTRUCTOR: Final = re.compile(
    r"    def __init__\(\n        self,\n.*?\n    \) -> None:\n(?:        self\.\w+ = \w+\n)*", re.DOTALL
)
_KEYWORDS: Final = re.compile(r"(\ndef \w+\(\n    [^\n]*,\n).*?(\) -> )", re.DOTALL)
_OPTIONS: Final = re.compile(r"(<!-- options (\w+\.\w+): ([\w ]+) -->\n).*?(?=<!-- end of options -->)", re.DOTALL)
_PARAMETERS: Final = re.compile(r"(<!-- parameters (\w+) -->\n).*?(?=<!-- end of parameters -->)", re.DOTALL)
# Only a checkout has pages. An installed package has none.
_PAGES: Final = Path(__file__).parents[3] / "docs"
_KEYS: Final = (
    ("A study around a hub, or in a tree", "eigenveil.params.declarations.study:HubStudy"),
    ("A study between peers", "eigenveil.params.declarations.study:PeerStudy"),
    ("A policy: pins", "eigenveil.network.policy:Pins"),
    ("A policy: limits", "eigenveil.network.policy:Limits"),
    ("A policy: budget", "eigenveil.network.policy:Spending"),
    ("A policy: datasets", "eigenveil.network.policy:Datasets"),
    ("A policy: the site's program", "eigenveil.network.policy:Agent"),
)
_KEYS_HEAD: Final = """# Keys of a study file and of a policy

What `eigenveil study new` and `eigenveil policy new` write, and what you may write into those files yourself.
Keys without a default are required. A study file begins with `eigenveil_study = 1`, the version of its format.
It also says who takes part, in `[authority]`, `[hub]`, `[[site]]`, `[[node]]` and `[[peer]]`. Each has a
`certificate`, and an `address` if it listens. If `neighbours` makes the numbers of people public, `[sizes]` has
them for each site. See [Across organisations](network.md) for how all of it is used. `python -m
eigenveil.params.docs` writes this page.
"""


def _found(name: str) -> Any:
    module, _, own = name.partition(":")
    return getattr(importlib.import_module(module), own)


def pages() -> Iterator[tuple[Path, str, str]]:
    """Pages with tables of parameters: the file, its text, and its text by the current declarations."""
    for path in sorted(_PAGES.glob("*.md")):
        text = path.read_text(encoding="utf-8")
        if path.name == "study-keys.md":
            yield path, text, _keys_page()
        elif "<!-- options " in text or "<!-- parameters " in text:
            yield path, text, _PARAMETERS.sub(_with_parameters, _OPTIONS.sub(_with_table, text))


def _with_table(match: re.Match[str]) -> str:
    kind = _found("eigenveil.params.declarations." + match[2].replace(".", ":"))
    return f"{match[1]}\n{options_table(kind, match[3].split())}\n\n"


def _with_parameters(match: re.Match[str]) -> str:
    documented = _found(f"eigenveil:{match[2]}")
    return f"{match[1]}\n{parameters_table(getattr(documented, 'parameters', documented))}\n\n"


def parameters_table(cls: type) -> str:
    """All parameters of `cls` as a Markdown table: each with its default in Python and its meaning.

    >>> from eigenveil.params.declarations.private import SpectrumParams
    >>> print(*parameters_table(SpectrumParams).splitlines()[2:4], sep="\\n")  # doctest: +ELLIPSIS
    | `epsilon` | must be given | How much the result may depend on one person: ... |
    | `delta` | `None` | The chance that the guarantee of epsilon fails. ... |
    """
    rows = ["| parameter | default | meaning |", "|---|---|---|"]
    for entry in declared(cls).values():
        # `repr`, because this column is for people who write Python.
        default = "must be given" if entry.default is MISSING else f"`{entry.default!r}`"
        if entry.default is None and entry.param.none_means is not None:
            default = f"`None`: {entry.param.none_means}"
        # A bar would end the cell.
        meaning = help_of(entry, in_python, more=True).replace("|", "\\|")
        rows.append(f"| `{entry.name}` | {default} | {meaning} |")
    return "\n".join(rows)


def options_table(cls: type, names: Sequence[str]) -> str:
    """The options for these parameters of `cls` as a Markdown table: each with its default and its meaning.

    >>> from eigenveil.params.declarations.plan import PlanParams
    >>> print(options_table(PlanParams, ["dim", "sites"]))
    | option | default | |
    |---|---|---|
    | `-d`, `--features D` | | The number of columns. Not needed if a file that you give has it. |
    | `--sites M` | `1` | The number of sites, with equal numbers of rows. |
    """
    declarations, wording = declared(cls), in_options(cls)
    shown = (declarations[name] for name in names)
    rows = [f"| {_option(entry)} |{_default_of(entry)} | {option_help(entry, wording)} |" for entry in shown]
    return "\n".join(["| option | default | |", "|---|---|---|", *rows])


def _option(entry: Declared) -> str:
    short = "" if entry.param.short is None else f"`{entry.param.short}`, "
    if entry.type is bool or entry.param.switch is not None:
        return f"{short}`{flag(entry)}`"
    return f"{short}`{flag(entry)} {entry.param.metavar or 'NUMBER'}`"


def _default_of(entry: Declared) -> str:
    if entry.default is MISSING:
        return " must be given"
    if entry.default is None or entry.param.none_means is not None:
        text = entry.param.none_means or entry.param.none
        return "" if text is None else f" {text}"
    if entry.param.switch is not None:
        return ""
    return f" `{flag(entry) if entry.default is True else text_of(entry.default)}`"


def _keys_page() -> str:
    """The page with the keys of study files and policies, by the current declarations."""
    tables = [f"## {title}\n\n{keys_table(_found(name))}\n" for title, name in _KEYS]
    return "\n".join([_KEYS_HEAD, *tables])


def _signature(cls: type, *, indent: int) -> str:
    """The parameters of `cls` in a signature, one on each line."""
    lines, fields = [], cls.__dataclass_fields__  # type: ignore[attr-defined]
    for name, entry in declared(cls).items():
        if fields[name].kw_only and "*," not in lines:
            lines.append("*,")
        # Text in double quotes, as the formatter writes it.
        value = json.dumps(entry.default) if isinstance(entry.default, str) else repr(entry.default)
        lines.append(f"{name}: {_annotation(entry.type)}{'' if entry.default is MISSING else f' = {value}'},")
    return "".join(f"{' ' * indent}{line}\n" for line in lines)


def _annotation(kind: Any) -> str:
    """A type as the source has it.

    >>> from eigenveil.params.values import Numbers
    >>> _annotation(Literal["private"] | Numbers | None), _annotation(tuple[float, float])
    ('Literal["private"] | Numbers | None', 'tuple[float, float]')
    """
    if kind is NoneType:
        return "None"
    parts, origin = get_args(kind), get_origin(kind)
    if origin is Literal:
        return f"Literal[{', '.join(map(json.dumps, parts))}]"
    if origin in (Union, UnionType):
        text = " | ".join(map(_annotation, parts))
        return text.replace("Sequence[float] | HasArray", "Vector").replace("float | Vector", "Numbers")
    name = str(getattr(kind, "__name__", kind))
    return f"{name}[{', '.join(map(_annotation, parts))}]" if parts else name


def current(name: str) -> tuple[Path, str, str]:
    """The file of a class or function, its text, and its text by the current declarations."""
    own, documented = name.partition(":")[2], _found(name)
    # Unwrapped, because decorators in other files wrap functions.
    path = Path(inspect.getfile(inspect.unwrap(documented)))
    text = path.read_text(encoding="utf-8")
    # From the class on: the file may have other sections of this name before it.
    start = text.index(f"\n{'class' if isinstance(documented, type) else 'def'} {own}(")
    section = parameters_section(getattr(documented, "parameters", documented), indent="    ")
    # A function, because backslashes in a plain text would be read as references to groups.
    rest, n_replaced = _SECTION.subn(lambda _: section, text[start:], count=1)
    if not n_replaced:
        raise ValueError(f"{path}: {own} has no section for its parameters, followed by another section")
    if isinstance(documented, type):
        # It only assigns, as scikit-learn requires.
        assignments = "".join(f"        self.{name} = {name}\n" for name in declared(documented))
        constructor = f"    def __init__(\n        self,\n{_signature(documented, indent=8)}    ) -> None:\n{assignments}"
        rest, n_replaced = _CONSTRUCTOR.subn(lambda _: constructor, rest, count=1)
    else:
        keywords = _signature(documented.parameters, indent=4)
        rest, n_replaced = _KEYWORDS.subn(lambda match: f"{match[1]}{keywords}{match[2]}", rest, count=1)
    if not n_replaced:
        raise ValueError(f"{path}: {own} does not show its parameters. Give it a signature with one parameter on each line")
    return path, text, text[:start] + rest


def main() -> None:
    """Rewrite every section that is out of date, and print the files."""
    for path, text, wanted in chain(map(current, DOCUMENTED), pages()):
        if text != wanted:
            path.write_text(wanted, encoding="utf-8")
            sys.stdout.write(f"{path}\n")


if __name__ == "__main__":
    main()
