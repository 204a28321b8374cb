"""Whatever a study must not say is refused with an error that names it."""

from collections.abc import Callable
from typing import Any

import pytest

from eigenveil.network.study.file import StudyFile
from network.study_parties import document, gossip_document, tree_document

Case = tuple[str, Callable[..., dict[str, Any]], dict[str, Any], tuple[str, ...]]
EXACT = {"epsilon": None, "delta": None, "none": True}


def without(name: str) -> Callable[..., dict[str, Any]]:
    """A star that lacks a section."""

    def make(**sections: Any) -> dict[str, Any]:
        return {key: value for key, value in document(**sections).items() if key != name}

    return make


CASES: list[Case] = [
    ("no version", without("eigenveil_study"), {}, ("eigenveil_study must be 1", "null|none")),
    ("a newer version", document, {"eigenveil_study": 2}, ("eigenveil_study must be 1", "got 2")),
    ("a true version", document, {"eigenveil_study": True}, ("eigenveil_study must be 1", "got true")),
    ("no study", without("study"), {}, (r"\[study\] is missing",)),
    ("no task", without("task"), {}, (r"\[task\] is missing",)),
    ("no privacy", without("privacy"), {}, (r"\[privacy\] is missing",)),
    ("no authority", without("authority"), {}, (r"\[authority\] is missing",)),
    ("no hub", without("hub"), {}, (r"\[hub\] is missing", "star")),
    ("no site", without("site"), {}, (r"\[\[site\]\] is missing",)),
    ("no sites in the list", document, {"site": []}, (r"\[\[site\]\] is missing",)),
    ("an unknown section", document, {"tasks": {}}, ("unknown key 'tasks'", "did you mean task?")),
    ("an unknown key", document, {"privacy": {"epsilom": 1}}, (r"\[privacy\]", "'epsilom'", "did you mean epsilon?")),
    ("a key like none", document, {"task": {"zzz": 1}}, (r"\[task\]", "'zzz'", "It may have components, columns")),
    ("a seed in privacy", document, {"privacy": {"seed": 7}}, (r"\[privacy\] seed = 7", r"\[rehearsal\] seed")),
    ("a seed at the top", document, {"seed": 7}, ("seed = 7", r"\[rehearsal\] seed")),
    ("a random state", document, {"task": {"random_state": 7}}, (r"\[task\] random_state", r"\[rehearsal\] seed")),
    (
        "participation",
        document,
        {"task": {"participation": "full"}},
        (r"\[task\] participation", "every site takes part"),
    ),
    ("calibration", document, {"privacy": {"calibration": "paper"}}, (r"\[privacy\] calibration", "exact accounting")),
    ("n_components", document, {"task": {"n_components": 2}}, ("called components here",)),
    ("a negative seed", document, {"rehearsal": {"seed": -1}}, (r"\[rehearsal\] seed must be an integer from 0", "-1")),
    ("an empty name", document, {"study": {"name": ""}}, (r"\[study\] name must be a text of 1 to 200",)),
    ("a long name", document, {"study": {"name": "x" * 201}}, (r"\[study\] name must be a text of 1 to 200",)),
    ("control characters", document, {"study": {"name": "a\x1b[2J"}}, (r"\[study\] name", "printable", r"\\x1b")),
    (
        "text that runs backwards",
        document,
        {"study": {"purpose": "a\u202eb"}},
        (r"\[study\] purpose", "printable", r"\\u202e"),
    ),
    ("two lines", document, {"study": {"purpose": "a\nb"}}, (r"\[study\] purpose", "printable")),
    ("a long purpose", document, {"study": {"purpose": "x" * 2001}}, (r"\[study\] purpose", "1 to 2000")),
    ("a blank column", document, {"task": {"columns": ["age", " b"]}}, (r"\[task\] columns, entry 2,", "blanks")),
    ("a short id", document, {"study": {"id": "abc"}}, (r"\[study\] id must be 32 lower-case hex digits", "'abc'")),
    ("no id", document, {"study": {"id": None}}, (r"\[study\] id is missing",)),
    ("no carrier", document, {"study": {"carrier": None}}, (r"\[study\] carrier is missing",)),
    (
        "another carrier",
        document,
        {"study": {"carrier": "pigeon"}},
        (r"\[study\] carrier must be one of star", "'pigeon'"),
    ),
    ("a star with a tree", document, {"tree": {"fanout": 2}}, (r"\[tree\] is for carrier = 'tree'", "'star'")),
    ("a star with peers", document, {"peer": []}, (r"\[\[peer\]\] is for carrier = 'gossip'",)),
    ("a tree with no fan-out", tree_document, {"tree": {"fanout": None}}, (r"\[tree\] fanout is missing",)),
    (
        "a fan-out of one",
        tree_document,
        {"tree": {"fanout": 1}},
        (r"\[tree\] fanout must be an integer from 2", "1"),
    ),
    (
        "another fan-out",
        tree_document,
        {"tree": {"fanout": 3}},
        (r"\[\[node\]\] node 3 is not in the tree", "5 sites", "2 nodes"),
    ),
    ("no nodes", tree_document, {"node": []}, (r"\[\[node\]\] node 1, node 2, node 3 is missing", "3 nodes")),
    ("no components", document, {"task": {"components": None}}, (r"\[task\] components is missing",)),
    (
        "half a component",
        document,
        {"task": {"components": 1.5}},
        (r"\[task\] components must be an integer", "1.5"),
    ),
    (
        "a true component",
        document,
        {"task": {"components": True}},
        (r"\[task\] components must be an integer", "got true"),
    ),
    (
        "too many components",
        document,
        {"task": {"components": 9}},
        (r"\[task\] components = 9", "number of columns, 4"),
    ),
    ("one column", document, {"task": {"columns": ["age"]}}, (r"\[task\] columns must be a list of 2",)),
    ("a column twice", document, {"task": {"columns": ["a", "b", "a"]}}, (r"\[task\] columns, entry 3,", "got 'a'")),
    ("columns as text", document, {"task": {"columns": "a,b"}}, (r"\[task\] columns must be a list", "'a,b'")),
    ("a person who is a column", document, {"task": {"person": "age"}}, (r"\[task\] person 'age'", "columns")),
    ("another method", document, {"task": {"method": "magic"}}, (r"\[task\] method must be one of auto", "'magic'")),
    (
        "segments at a hub",
        document,
        {"task": {"method": "segments"}},
        (r"\[task\] method must be one of auto", "'segments'"),
    ),
    (
        "segments between peers",
        gossip_document,
        {"task": {"method": "segments"}},
        (r"\[task\] method must be one of auto, power, krylov, covariance", "'segments'"),
    ),
    ("fedpower under masks", document, {"task": {"method": "fedpower"}}, (r'\[privacy\] trust = "masked"', "fedpower")),
    (
        "uda in a tree",
        tree_document,
        {"task": {"method": "uda"}},
        (r'\[task\] method = "uda"', r'\[study\] carrier = "star"'),
    ),
    (
        "private dr-svd",
        document,
        {"task": {"method": "dr-svd"}},
        (r'\[task\] method = "dr-svd"', r"\[privacy\] none = true"),
    ),
    ("local steps alone", document, {"task": {"local_steps": 3}}, (r"\[task\] local_steps", "fedpower", "3")),
    ("align alone", document, {"task": {"align": "sign"}}, (r"\[task\] align", "fedpower", "'sign'")),
    ("steps of no number", document, {"task": {"local_steps": ["decay"]}}, (r"\[task\] local_steps", "'decay'")),
    ("too many rounds", document, {"task": {"method": "power", "rounds": 201}}, (r"\[task\] rounds", "200", "201")),
    (
        "rounds of one shot",
        document,
        {"task": {"method": "covariance", "rounds": 2}},
        (r"\[task\] rounds", "covariance"),
    ),
    ("a tolerance of one", document, {"task": {"tolerance": 1}}, (r"\[task\] tolerance", r"in \[0, 1\)", "got 1")),
    (
        "no bound",
        document,
        {"task": {"row_bound": "none"}},
        (r"\[task\] row_bound \(or \[task\] column_bounds\) is required",),
    ),
    ("a bound of zero", document, {"task": {"row_bound": 0}}, (r"\[task\] row_bound must be positive", "got 0")),
    ("an infinite bound", document, {"task": {"row_bound": float("inf")}}, (r"\[task\] row_bound", "inf")),
    ("a huge bound", document, {"task": {"row_bound": 1e80}}, (r"\[task\] row_bound", "1e\\+60")),
    ("bounds that cross", document, {"task": {"column_bounds": [1, 0]}}, (r"\[task\] column_bounds", "low")),
    (
        "three bounds",
        document,
        {"task": {"column_bounds": [1, 2, 3]}},
        (r"\[task\] column_bounds must be \[low, high\]",),
    ),
    ("a center of few", document, {"task": {"center": [1.0]}}, (r"\[task\] center", "4 numbers")),
    ("a center in words", document, {"task": {"center": "mean"}}, (r"\[task\] center", "'mean'")),
    ("an origin of few", document, {"task": {"origin": [1.0]}}, (r"\[task\] origin", "4 numbers")),
    ("a scale of zero", document, {"task": {"scale": 0}}, ("scale must be positive",)),
    (
        "other neighbours",
        document,
        {"task": {"neighbours": "next-door"}},
        (r"\[task\] neighbours must be one of add-remove",),
    ),
    ("no sizes", document, {"task": {"neighbours": "zero-out"}}, (r"\[sizes\] is missing", "zero-out")),
    ("sizes for nothing", document, {"sizes": {"site 0": 3}}, (r"\[sizes\] is for \[task\] neighbours",)),
    (
        "sizes of some",
        document,
        {"task": {"neighbours": "zero-out"}, "sizes": {"site 0": 3}},
        (r"\[sizes\] 'site 1' is missing",),
    ),
    (
        "sizes of others",
        document,
        {"task": {"neighbours": "zero-out"}, "sizes": {f"site {at}": 3 for at in range(4)}},
        (r"\[sizes\] has 'site 3'",),
    ),
    (
        "a negative size",
        document,
        {"task": {"neighbours": "zero-out"}, "sizes": {"site 0": -3}},
        (r"\[sizes\] 'site 0' must be an integer", "-3"),
    ),
    (
        "neighbours of nothing",
        document,
        {"task": {"neighbours": "zero-out"}, "privacy": EXACT},
        (r"\[task\] neighbours",),
    ),
    (
        "no epsilon",
        document,
        {"privacy": {"epsilon": None}},
        (r"\[privacy\] epsilon is missing", r"\[privacy\] none = true"),
    ),
    ("no delta", document, {"privacy": {"delta": None}}, (r"\[privacy\] delta is missing",)),
    (
        "epsilon and none",
        document,
        {"privacy": {"none": True}},
        (r"\[privacy\] epsilon and \[privacy\] none = true contradict",),
    ),
    ("epsilon zero", document, {"privacy": {"epsilon": 0}}, (r"\[privacy\] epsilon must be a number above 0", "got 0")),
    ("epsilon infinite", document, {"privacy": {"epsilon": float("inf")}}, (r"\[privacy\] epsilon must be", "got inf")),
    ("epsilon NaN", document, {"privacy": {"epsilon": float("nan")}}, (r"\[privacy\] epsilon must be", "got nan")),
    ("epsilon in words", document, {"privacy": {"epsilon": "one"}}, (r"\[privacy\] epsilon must be", "'one'")),
    (
        "a pair of epsilons",
        document,
        {"privacy": {"epsilon": [1, 1]}},
        (r"\[privacy\] epsilon is a pair for \[privacy\] trust = \"both\" alone",),
    ),
    (
        "three epsilons",
        document,
        {"privacy": {"trust": "both", "epsilon": [1, 1, 1]}},
        (r"\[privacy\] epsilon must be a number, or a pair of them: against the hub", r"\[1, 1, 1\]"),
    ),
    ("one epsilon for both", document, {"privacy": {"trust": "both"}}, (r"\[privacy\] epsilon must be a pair",)),
    ("delta of one", document, {"privacy": {"delta": 1}}, (r"\[privacy\] delta must be", "got 1")),
    ("none in words", document, {"privacy": {"none": "yes"}}, (r"\[privacy\] none must be true or false", "'yes'")),
    ("no trust", document, {"privacy": {"trust": None}}, (r"\[privacy\] trust is missing", "masked")),
    ("other trust", document, {"privacy": {"trust": "god"}}, (r"\[privacy\] trust must be one of", "'god'")),
    (
        "trust in nothing",
        document,
        {"privacy": EXACT | {"trust": "site"}},
        (r"\[privacy\] trust = \"site\"", "none = true"),
    ),
    ("masks in a tree", tree_document, {"privacy": {"trust": "masked"}}, (r'\[privacy\] trust = "masked"', "star")),
    ("few survivors", document, {"privacy": {"survivors": 2}}, (r"\[privacy\] survivors must be at least 3 of 3",)),
    ("more survivors", document, {"privacy": {"survivors": 4}}, (r"\[privacy\] survivors must be from 1 to the 3",)),
    ("no survivors", document, {"privacy": {"survivors": 0}}, (r"\[privacy\] survivors", "got 0")),
    ("a share of 1.5", document, {"privacy": {"survivors": 1.5}}, (r"\[privacy\] survivors", "share", "1.5")),
    (
        "survivors unmasked",
        document,
        {"privacy": {"trust": "site", "survivors": 3}},
        (r"\[privacy\] survivors is for \[privacy\] trust = \"masked\", got 3",),
    ),
    (
        "colluders unmasked",
        document,
        {"privacy": {"trust": "site", "colluders": 1}},
        (r"\[privacy\] colluders is for \[privacy\] trust = \"masked\", got 1",),
    ),
    ("many colluders", document, {"privacy": {"colluders": 3}}, (r"\[privacy\] colluders", "3")),
    ("a quorum under masks", document, {"network": {"quorum": 3}}, (r"\[network\] quorum is not for", "survivors")),
    (
        "masks with no bound",
        document,
        {"privacy": EXACT, "task": {"row_bound": None}},
        (r"\[task\] row_bound", "is missing", "sums of integers"),
    ),
    (
        "people everywhere",
        document,
        {"privacy": {"person_sites": 4}},
        (r"\[privacy\] person_sites", "from 1 to 3", "4"),
    ),
]


@pytest.mark.parametrize(
    ("make", "sections", "expected"), [case[1:] for case in CASES], ids=[case[0] for case in CASES]
)
def test_what_is_wrong_is_named(
    make: Callable[..., dict[str, Any]], sections: dict[str, Any], expected: tuple[str, ...]
) -> None:
    found = make(**sections)
    for words in expected:
        with pytest.raises(ValueError, match=words) as caught:
            StudyFile.of(found)
        assert str(caught.value).isprintable()
