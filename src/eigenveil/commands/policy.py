"""`eigenveil policy`: write the rules of a site, and check a study against them before anything runs."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from eigenveil.commands._command import Answer, Command, Group
from eigenveil.commands._ending import wrote
from eigenveil.commands._files import require_output
from eigenveil.commands._network import MEMORY, Memory, bytes_allowed
from eigenveil.commands._options import argument, flag, option
from eigenveil.errors import require
from eigenveil.show.console import Line

if TYPE_CHECKING:
    from eigenveil.show.console import View

__all__ = ["COMMAND"]

_REFUSED = 2

File = Annotated[Path, argument("FILE", "The policy of this site, a .toml.")]


def group() -> None:
    """The rules of a site: what it takes part in. No coordinator sees them.

    Write a policy, with the pins of a study in it as comments. Compare
    each pin by telephone, enable it, and check the study:

      eigenveil policy new policy.toml --study heart.toml
      eigenveil policy check policy.toml heart.toml --as north
    """


def new(
    file: File,
    study: Annotated[Path | None, option("FILE", "List the pins of this study, as comments.")] = None,
    force: Annotated[bool, flag("--force", "Overwrite the file if it exists.")] = False,
) -> Answer:
    """Write a policy with safe defaults and an explanation of each key.

      eigenveil policy new policy.toml --study heart.toml

    It pins no hub, so it refuses every study until you have compared a
    pin with its owner and removed the # before it. The coordinator
    could invent sites, so do not take pins from the coordinator.

    It also has the unit of the study as a comment: whether each row is a
    different person, or which column names people. Only you know that of
    your table. --yes is refused until you have said it.
    """
    from eigenveil.data.archive import whole_file
    from eigenveil.network.policy import template
    from eigenveil.network.study import StudyFile

    require_output(file, endings=(".toml",), force=force, inputs=[], option="the policy")
    text = template(None if study is None else StudyFile.read(study))
    # It stays readable by its owner only. A policy that others can change is refused when it is read.
    with whole_file(file) as temporary:
        temporary.write_text(text, encoding="utf-8")
    wrote(file)
    pins = "compare the pins in it with their owners, by telephone," if study is not None else "write pins into it,"
    return Answer(
        view=lambda: [
            Line(f"policy written to {file}; only you may read or change it"),
            Line(f"{pins} then run: eigenveil policy check {file} STUDY --as NAME", "dim"),
        ]
    )


def check(
    file: File,
    study: Annotated[Path, argument("STUDY", "The study file, a .toml.")],
    name: Annotated[str, option("--as", "NAME", "The name of this site in the study.")],
    memory: Memory = MEMORY,
) -> Answer:
    """Say whether the policy allows a study, and if not, every reason.

      eigenveil policy check policy.toml heart.toml --as north

    It reads no table and contacts no party. The exit code is 2 if the
    study would be refused. How many rows or people the table has is
    checked when the site runs.
    """
    from eigenveil.network.parties import require_possible
    from eigenveil.network.policy import Policy
    from eigenveil.network.rules import method_of
    from eigenveil.network.study import StudyFile

    allowed = bytes_allowed(memory)
    # Read as the site itself reads them, with every check of hostile input.
    rules, study_file = Policy.read(file), StudyFile.read(study)
    # Only those with rows have policies. A hub or a node has nothing to refuse.
    names = [holder.name for holder in study_file.holders]
    require(name in names, f"--as {name}: no site or peer of that name is in the study; these are: {', '.join(names[:20])}")
    # A study that cannot run at all is not one to compare with rules.
    require_possible(study_file, memory=allowed)
    reasons = rules.refusals(study_file, me=name, method=method_of(study_file))

    def view() -> "View":
        if reasons:
            yield Line(f"{name} would refuse {study_file.name}:", "red")
            yield from (Line(f"- {reason}") for reason in reasons)
            return
        yield Line(f"{name} would take part in {study_file.name}: the policy allows it", "green")
        counted = "people" if study_file.unit.kind == "person" else "rows"
        yield Line(f"[limits] rows: the table must have at least {rules.limits.rows} {counted}", "dim")
        if rules.limits.unit is None:
            yield Line("[limits] unit is not set: a person must agree at a terminal, and --yes is refused", "yellow")

    return Answer(view=view, code=_REFUSED if reasons else 0)


COMMAND = Group(name="policy", about=group, commands=(Command(run=new), Command(run=check)), panel="Studies across organisations")
