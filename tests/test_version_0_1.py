"""Files that version 0.1 wrote are read, in the words of today, or refused with words that say what to do."""

import gzip
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cli.cli_tables import eigenveil, refusal
from eigenveil import Model, StreamingPCA
from eigenveil.errors import StateFileError
from eigenveil.linalg import sines
from eigenveil.network.policy import Policy
from eigenveil.network.study.file import StudyFile
from eigenveil.recommend import ItemSpace

OLD = Path(__file__).parent / "data" / "v0.1"
# As in OLD / "README.md".
ROWS = np.random.default_rng(0).standard_normal((2000, 4)) * [3, 2, 1, 0.5]


def copied(folder: Path, *names: str) -> list[Path]:
    """Copies, which only their owner may change, as the files were."""
    found = [Path(shutil.copy(OLD / name, folder)) for name in names]
    for path in found:
        path.chmod(0o600)
    return found


def test_models_are_read_in_new_words() -> None:
    private, federated = (Model.load(OLD / f"{name}.safetensors") for name in ("private", "federated"))
    assert (private.settings["method"], private.settings["rounds"]) == ("power", 3)
    assert (federated.settings["method"], federated.settings["trust"]) == ("covariance", "hub")
    for model in (private, federated):
        assert not {"mechanism", "iterations"} & set(model.settings)
        assert (model.guarantee.epsilon, model.guarantee.delta) == (1.0, 1e-6)
        assert model.warnings == ()
        assert model.transform(ROWS).shape == (2000, 2)
        assert sines(model.components.T, np.eye(4)[:, :2]).max() < 0.2


def test_item_spaces_are_read_in_new_words() -> None:
    space = ItemSpace.load(OLD / "items.safetensors")
    assert (space.settings["method"], space.settings["trust"]) == ("power", "hub")
    assert space.top(np.eye(12)[:1], n=3)[0].shape == (3,)


@pytest.mark.parametrize("name", ["private", "federated", "items", "masked"])
def test_inspect_shows_them(name: str) -> None:
    told = json.loads(eigenveil("inspect", OLD / f"{name}.safetensors", "--json").stdout)
    assert "method" in told["settings"] and "curator" not in told["settings"].values()


def test_bounds_and_spectra_are_taken(tmp_path: Path) -> None:
    table, target = tmp_path / "rows.csv", tmp_path / "model.safetensors"
    np.savetxt(table, ROWS, delimiter=",", header="a,b,c,d", comments="")
    budget = ("-k", 2, "--epsilon", 1, "--delta", 1e-6)
    assert eigenveil("fit", table, *budget, "--bounds", OLD / "bounds.json", "-o", target).exit_code == 0
    planned = eigenveil("plan", "-n", 2000, *budget, "--spectrum", OLD / "spectrum.json", "--epsilons", "1", "--json")
    assert json.loads(planned.stdout)["chosen"]["parameters"]["method"] == "covariance"


def test_a_study_is_read_and_has_the_digest_that_its_model_names() -> None:
    study = StudyFile.read(OLD / "masked.toml")
    assert study.digest == Model.load(OLD / "masked.safetensors").settings["study_digest"]


def test_a_study_with_an_old_word_is_refused_with_the_new_one(tmp_path: Path) -> None:
    said = refusal("study", "show", OLD / "study.toml")
    assert "[privacy] trust must be one of hub" in said and "curator of version 0.1 is now hub" in said
    (study,) = copied(tmp_path, "study.toml")
    study.write_text(study.read_text().replace('trust = "curator"', 'trust = "hub"'))
    assert StudyFile.read(study).trust == "hub"


def test_a_policy_with_old_words_is_refused_with_the_new_ones(tmp_path: Path) -> None:
    (policy,) = copied(tmp_path, "policy.toml")
    with pytest.raises(
        ValueError, match=r"\[limits\] tasks = .*: version 0.1 called it tasks; it is called method now"
    ):
        Policy.read(policy)
    policy.write_text(policy.read_text().replace("\ntasks = ", "\nmethod = "))
    with pytest.raises(ValueError, match=r"\[limits\] trust, entry 3, .*curator of version 0.1 is now hub"):
        Policy.read(policy)
    policy.write_text(policy.read_text().replace('"curator"', '"hub"'))
    limits: Any = Policy.read(policy).limits
    assert limits.trust == ("masked", "site", "hub")


def test_a_ledger_is_refused_and_left_as_it_was(tmp_path: Path) -> None:
    """Its entries show others whether rows have changed, and entries are never rewritten."""
    ledger = tmp_path / "ledger.db"
    ledger.write_bytes(gzip.decompress((OLD / "ledger.db.gz").read_bytes()))
    ledger.chmod(0o600)
    before = ledger.read_bytes()
    for command in ("show", "verify", "export", "head"):
        line = refusal("ledger", command, ledger)
        assert "is a ledger of version 1" in line and "Begin a new ledger, and take from the total budget" in line
    assert "the export is of version 1" in refusal("ledger", "verify", OLD / "ledger.jsonl")
    assert ledger.read_bytes() == before and list(tmp_path.iterdir()) == [ledger]


def test_an_exact_stream_goes_on(tmp_path: Path) -> None:
    (state,) = copied(tmp_path, "exact.state")
    resumed = StreamingPCA.resume(state)
    assert resumed.center is None
    resumed.partial_fit(ROWS[700:]).sync()
    whole = StreamingPCA(2, epsilon=None, center=None).fit(ROWS)
    np.testing.assert_allclose(resumed.explained_variance_, whole.explained_variance_, rtol=1e-9)
    assert sines(resumed.components_.T, whole.components_.T).max() < 1e-7


def test_a_private_stream_of_whole_sums_goes_on(tmp_path: Path) -> None:
    """Made between version 0.1 and the change of words: its sums are whole numbers, and its plan has a `way`."""
    (state,) = copied(tmp_path, "whole-sums.state")
    resumed = StreamingPCA.resume(state)
    assert (resumed.center, resumed.plan_.tracker) == ("private", "products")
    resumed.partial_fit(np.ones((60, 4))).sync()
    assert resumed.guarantee_.epsilon == 1.0 and resumed.n_samples_seen_ == 760


def test_a_private_stream_is_refused_and_left_as_it_was(tmp_path: Path) -> None:
    (state,) = copied(tmp_path, "private.state")
    before = state.read_bytes()
    with pytest.raises(
        StateFileError, match=r"private stream of version 0\.1.*Finish it with version 0\.1, or begin a new"
    ):
        StreamingPCA.resume(state)
    assert state.read_bytes() == before and list(tmp_path.iterdir()) == [state]
