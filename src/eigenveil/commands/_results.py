"""What a site or peer writes at the end: the model, its guarantee in words, and the private scores of its own rows."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from eigenveil.commands._ending import wrote
from eigenveil.commands.transform import beside, scores_of
from eigenveil.data.archive import whole_file
from eigenveil.data.formats import OUTPUTS, write_scores
from eigenveil.show.disclosure import left_words, rounded
from eigenveil.show.live import PageBudget
from eigenveil.show.progress import Voice

if TYPE_CHECKING:
    from eigenveil.core.accounting import Budget
    from eigenveil.core.rows import Rows
    from eigenveil.ledger.durable import DurableLedger, StudyBudget
    from eigenveil.model import Model

__all__ = ["Results", "say_spent", "spending_of"]


@final
@dataclass(frozen=True, slots=True)
class Results:
    """Where results go: the `model`, the `guarantee` beside it as text, and `scores`, which only their owner can read.

    Without `scores`, none are written: rows on a cluster stay there.
    """

    model: Path
    guarantee: Path
    scores: Path | None

    @classmethod
    def named(
        cls, study: Path, party: str, model: Path | None, scores: Path | None, *, scored: bool = True
    ) -> "Results":
        """The given paths; others are named after the study file and the party, so that no two studies share a name."""
        from eigenveil.network.identity.authority import file_stem

        stem = f"{study.stem}-{file_stem(party)}"
        target = Path(f"{stem}.safetensors") if model is None else model
        guarantee = target.with_name(f"{target.stem}.guarantee.txt")
        return cls(target, guarantee, (scores or Path(f"{stem}-scores{next(iter(OUTPUTS))}")) if scored else None)

    def outputs(self) -> Sequence[tuple[str, Path, Sequence[str]]]:
        """Each output with its option and the endings it may have."""
        private = () if self.scores is None else (("--scores", self.scores, list(OUTPUTS)),)
        return (("--output", self.model, [".safetensors"]), ("the guarantee", self.guarantee, [".txt"]), *private)

    def write(self, model: "Model", rows: "Rows", carried: Any = None) -> None:
        """Write all results, the model first: `of_this_study` tells a later run by it that outputs may be overwritten.

        `carried` is an Arrow table with one line for each row, to be written beside the scores.
        """
        model.save(self.model)
        wrote(self.model)
        with whole_file(self.guarantee) as temporary:
            temporary.write_text(f"{model.guarantee}\n", encoding="utf-8")
            # Public, like the model: it is meant to be shown.
            temporary.chmod(0o644)
        if self.scores is None:
            return
        # No chmod here: `whole_file` makes files that only their owner can read, and scores must stay so.
        names = [f"component{number}" for number in range(1, len(model.components) + 1)]
        with whole_file(self.scores) as temporary:
            write_scores(temporary, self.scores.suffix.lower(), names, beside(scores_of(model, rows), carried))

    def show(self, voice: Voice, model: "Model", *, role: str) -> None:
        """Show what the study says of its result, the guarantee in words, and where everything is."""
        from eigenveil.show.terminal import guarantee_panel, judged, scores_warning

        voice.gap()
        for line in judged(model):
            voice.show(line, [line.plain])
        voice.show(guarantee_panel(model.guarantee), model.guarantee.words().splitlines())
        voice.say(f"model: {self.model}", whole=True)
        voice.say(f"look at it with: eigenveil inspect {self.model}", style="dim", whole=True)
        voice.say(f"guarantee: {self.guarantee}", whole=True)
        if self.scores is None:
            voice.say("scores: none, because the rows stay on the cluster. Compute them there, with Model.transform")
            return
        private = f"scores of this {role}'s own rows, PRIVATE, for you alone"
        voice.say(f"{private}: {self.scores}", style="bold", whole=True)
        voice.show(scores_warning(), [scores_warning().plain])


def spending_of(ledger: "DurableLedger", account: "StudyBudget") -> PageBudget:
    """What the study has been charged so far, of what it may be."""
    spent = next((state.spent for state in ledger.studies() if state.account.study == account.study), 0.0)
    if account.epsilon is None:
        return PageBudget("charged: nothing, because the study gives no guarantee")
    return PageBudget(f"charged: mu = {spent:.4g} of the {account.mu:.4g} reserved", spent / account.mu)


def say_spent(voice: Voice, ledger: "DurableLedger", account: "StudyBudget", *, life: "Budget | None") -> None:
    """Say what the study was charged, and what is left of the dataset's total budget."""
    study = next(state for state in ledger.studies() if state.account.study == account.study)
    dataset = next(state for state in ledger.datasets() if state.name == account.dataset)
    # Anything that left without privacy ends the guarantee for good, whatever comes later.
    if account.epsilon is None:
        voice.say(
            f"charged: the study gave no guarantee, so dataset {account.dataset!r} has none any more", style="red"
        )
        return
    delta = account.delta if life is None else life.delta
    assert delta is not None
    voice.say(f"charged: mu = {study.spent:.4g} of the {account.mu:.4g} reserved; the rest is free again")
    spent = rounded(dataset.epsilon(delta))
    voice.say(
        f"dataset {account.dataset!r} has spent epsilon {spent} at delta = {delta:g} in all; {left_words(dataset, life)}"
    )
    # Only a head that is kept elsewhere shows later that an old copy was put back.
    voice.say(f"head of the ledger; note it elsewhere: {ledger.head}", whole=True)
