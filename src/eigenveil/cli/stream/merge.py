"""`eigenveil stream --merge`: one model from the states of several streams, such as those of several devices.

Only streams without privacy are merged here: a private one moves with its state, and merging would use its only copy up.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from eigenveil.cli._terminal import busy, leaves, output, wrote
from eigenveil.errors import at_place, listed, require

if TYPE_CHECKING:
    from eigenveil.estimators.streaming.pca import StreamingPCA

__all__ = ["merge_states"]


def merge_states(paths: Sequence[Path], *, target: Path, state: Path | None) -> None:
    """Merge the streams in `paths`, write the model and, if asked, the merged stream. The files stay as they are.

    Settings such as the number of components are those of the first.
    """
    with busy("starting"):
        from eigenveil.cli._report import model_summary
        from eigenveil.estimators.streaming.pca import StreamingPCA
        from eigenveil.estimators.streaming.state_file import is_private

    for path in paths:
        # Asked of all before any is opened: opening the state of a private stream claims it.
        require(
            not is_private(path),
            f"{path} is a private stream, and merging would use up its only copy. In Python, StreamingPCA.merge adds up what "
            "private streams have released",
        )
    merged, *others = (StreamingPCA.resume(path) for path in paths)
    for path, other in zip(paths[1:], others, strict=True):
        _require_alike(paths[0], merged, path, other)
        try:
            merged.merge(other)
        except ValueError as error:
            raise at_place(f"{path} cannot be merged into {paths[0]}", error) from None
    model = merged.model_
    model.save(target)
    wrote(target)
    if state is not None:
        # Said first, so that an error while saving is reported together with the model that is there.
        leaves(f"the model had been written to {target}, but the state could not be saved")
        merged.save_state(state)
    console = output()
    console.print(model_summary(model, reason=f"{len(paths)} streams, merged"))
    console.print(f"\n{merged.n_samples_seen_} rows of {len(paths)} streams; model written to {target}", soft_wrap=True)
    if state is not None:
        console.print(f"state written to {state}, raw data that only you can read", soft_wrap=True)


def _require_alike(first: Path, one: "StreamingPCA", path: Path, other: "StreamingPCA") -> None:
    """Refuse streams of other columns, or that forget at another rate. `StreamingPCA.merge` checks the rest."""
    mine, theirs = (getattr(pca, "feature_names_in_", None) for pca in (one, other))
    # Without names there is only their number to compare, which `merge` does.
    if mine is not None and theirs is not None and len(mine) == len(theirs):
        differ = [f"{new!r} where {old!r} is" for old, new in zip(mine, theirs, strict=True) if old != new]
        require(not differ, f"{path} has other columns than {first}: {listed(differ)}. Streams need the same ones")
    require(
        one.forget == other.forget,
        f"{path} forgets old rows at another rate than {first}: {other.forget:g}, not {one.forget:g}. Their weights differ",
    )
