"""What the sections of a study mean together: what is refused, which estimator it is, and over how many a sum is at least."""

import re
from typing import TYPE_CHECKING, Any, Final

from eigenveil.errors import require
from eigenveil.network.study_sections import HUB_METHODS, PEER_METHODS
from eigenveil.protocols.tree import star, tree

if TYPE_CHECKING:
    from eigenveil.estimators.federated_request import SitesRequest
    from eigenveil.estimators.gossip_request import PeersRequest
    from eigenveil.network.study_file import StudyFile
    from eigenveil.protocols import Layout

__all__ = [
    "check_terms",
    "fewest_of",
    "in_study_words",
    "layout_of",
    "method_of",
    "parameters_of",
    "request_of",
    "require_together",
]


def require_together(study: "StudyFile") -> None:
    """Refuse sections that contradict each other, before any of it is taken to an estimator."""
    task, privacy = study.task, study.privacy
    holders, word = study.holders, "peer" if study.carrier == "gossip" else "site"
    require(len(holders) > 0, f"[[{word}]] is missing: nobody holds rows")
    require(
        privacy.none != (privacy.epsilon is not None),
        "[privacy] must have either epsilon and delta, or none = true, which promises nothing",
    )
    require(
        (privacy.epsilon is None) == (privacy.delta is None), "[privacy] epsilon and delta belong together: give both"
    )
    require(
        privacy.trust == "both" or not (isinstance(privacy.epsilon, tuple) or isinstance(privacy.delta, tuple)),
        '[privacy] epsilon and delta are pairs for trust = "both" alone: against the hub, and against all others',
    )
    require(task.person not in task.columns, f"[task] person {task.person!r} must not be among [task] columns")
    for name in ("local_steps", "align"):
        given = getattr(task, name)
        require(given is None or task.method == "fedpower", f'[task] {name} is for method = "fedpower", got {given!r}')
    _require_sizes(study)
    if study.carrier == "gossip":
        _require_peers(study)
    else:
        _require_hub(study)


def _require_sizes(study: "StudyFile") -> None:
    neighbours, sizes = study.task.neighbours, study.sizes
    require(
        study.private or neighbours == "add-remove",
        f"[task] neighbours = {neighbours!r} says what must be hard to tell apart, and [privacy] none = true promises nothing",
    )
    public = neighbours != "add-remove"
    require(
        public or sizes is None,
        "[sizes] is for [task] neighbours that declare the number of people public: zero-out and replace-one",
    )
    require(
        not public or sizes is not None,
        f"[sizes] is missing: [task] neighbours = {neighbours!r} declares the number of people at each site public, so say it",
    )
    if sizes is None:
        return
    names = [place.name for place in study.holders]
    for name in sizes:
        require(name in names, f"[sizes] has {name[:60]!r}, who holds no rows in this study")
    for name in names:
        require(name in sizes, f"[sizes] {name!r} is missing: how many people there are at {name}")


def _require_hub(study: "StudyFile") -> None:
    privacy, task = study.privacy, study.task
    require(study.hub is not None, "[hub] is missing: who gathers")
    require(
        task.method in HUB_METHODS, f"[task] method = {task.method!r} is not for a network: take one of {HUB_METHODS}"
    )
    for name in ("noise", "restarts"):
        given = getattr(privacy, name)
        require(
            given is None, f'[privacy] {name} is for carrier = "gossip"; around a hub there is trust; got {given!r}'
        )
    trust = privacy.trust
    require(
        trust is not None or not study.private,
        '[privacy] trust is missing: who adds the noise, "masked", "site", "curator" or "both"',
    )
    require(
        study.private or trust in (None, "masked"),
        f'[privacy] trust = {trust!r} says who adds the noise, and with none = true nobody does; only "masked" has a meaning',
    )
    for name in ("survivors", "colluders"):
        given = getattr(privacy, name)
        require(given is None or trust == "masked", f'[privacy] {name} is for trust = "masked" here, got {given!r}')
    require(
        trust != "masked" or study.private or task.row_bound is not None or task.column_bounds is not None,
        "[task] row_bound (or column_bounds) is required under masks, also with [privacy] none = true: masked sums are sums of "
        "integers, and a bound cannot be read from rows that nobody sees; `eigenveil bounds` at one site finds one privately",
    )
    nodes = layout_of(study).nodes
    given_nodes = tuple(place.name for place in study.nodes)
    lacking, extra = [n for n in nodes if n not in given_nodes], [n for n in given_nodes if n not in nodes]
    fanout = f"{len(study.sites)} sites with fanout = {study.fanout}"
    require(not lacking, f"[[node]] {', '.join(lacking[:5])} is missing: {fanout} have {len(nodes)} nodes")
    require(not extra, f"[[node]] {', '.join(extra[:5])} has no place in the tree: {fanout} have {len(nodes)} nodes")


def _require_peers(study: "StudyFile") -> None:
    privacy, task = study.privacy, study.task
    require(study.graph is not None and study.graph.edges is not None, "[graph] edges is missing: who talks to whom")
    require(
        task.method in PEER_METHODS, f"[task] method = {task.method!r} is not for gossip: take one of {PEER_METHODS}"
    )
    for name in ("trust", "survivors", "person_sites"):
        given = getattr(privacy, name)
        require(given is None, f"[privacy] {name} is for studies around a hub, and this is gossip; got {given!r}")
    noise = privacy.noise
    require(
        noise != "published",
        '[privacy] noise = "published" keeps no promise and is for comparisons on one machine: take "pairwise" or "independent"',
    )
    require(
        (noise is not None) == study.private,
        f'[privacy] noise is {"missing" if study.private else "for a budget"}: with epsilon it is "pairwise" or "independent", '
        "and with none = true there is none",
    )
    pairwise = noise == "pairwise"
    require(
        privacy.colluders is None or pairwise,
        f'[privacy] colluders is for noise = "pairwise" here, got {privacy.colluders!r}',
    )
    require(privacy.restarts is None or study.private, f"[privacy] restarts is for a budget, got {privacy.restarts!r}")
    noisy = study.graph is not None and study.graph.noise_edges is not None
    require(not noisy or pairwise, '[graph] noise_edges is for [privacy] noise = "pairwise"')


def layout_of(study: "StudyFile") -> "Layout":
    """Who stands above whom in a star or tree."""
    if study.hub is None:
        raise ValueError("peers have nobody above them")
    names, hub = [place.name for place in study.sites], study.hub.name
    return star(names, hub=hub) if study.fanout is None else tree(names, fanout=study.fanout, hub=hub)


def fewest_of(study: "StudyFile") -> int:
    """Over how many organisations a sum is at least, from numbers or shares."""
    from eigenveil.estimators.federated_rules import share_of
    from eigenveil.estimators.gossip_rules import quorum_of

    if study.carrier == "gossip":
        return quorum_of(study.network, len(study.peers))
    name, given = ("survivors", study.privacy.survivors) if study.masked else ("quorum", study.network.quorum)
    found = share_of(name, given, len(study.sites))
    return len(study.sites) if found is None else found


def parameters_of(study: "StudyFile") -> dict[str, Any]:
    """Every parameter of the estimator, none left to a default that another version might change."""
    task, privacy, network = study.task, study.privacy, study.network
    both = {
        "n_components": task.components,
        "epsilon": privacy.epsilon,
        "delta": privacy.delta,
        "row_bound": task.row_bound,
        "column_bounds": task.column_bounds,
        "rounds": task.rounds,
        "tolerance": task.tolerance,
        "oversample": task.oversample,
        "center": None if task.center == "none" else task.center,
        "origin": task.origin,
        "mean_bound": task.mean_bound,
        "scale": task.scale,
        "neighbours": task.neighbours,
        "person": task.person,
        "colluders": 1 if privacy.colluders is None else privacy.colluders,
        "quorum": network.quorum,
        "deadline": network.deadline,
        "retries": network.retries,
        "faults": None,
        "random_state": study.seed,
    }
    if study.graph is not None:
        return both | {
            "graph": list(study.graph.edges or ()),
            "noise_graph": None if study.graph.noise_edges is None else list(study.graph.noise_edges),
            "consensus": study.graph.consensus,
            "steps": study.graph.steps,
            "method": "power" if task.method == "auto" else task.method,
            "noise": privacy.noise,
            "restarts": 0 if privacy.restarts is None else privacy.restarts,
            "people": None,
        }
    return both | {
        "method": task.method,
        "topology": study.carrier,
        "fanout": 8 if study.fanout is None else study.fanout,
        "trust": "curator" if privacy.trust is None else privacy.trust,
        "survivors": privacy.survivors,
        "local_steps": 1 if task.local_steps is None else task.local_steps,
        "align": "procrustes" if task.align is None else task.align,
        "participation": "full",
        "person_sites": 1 if privacy.person_sites is None else privacy.person_sites,
        "calibration": "exact",
    }


def check_terms(study: "StudyFile") -> None:
    """Refuse, in the words of the study, whatever its estimator would refuse from public numbers."""
    request_of(study)
    if study.carrier == "gossip":
        _require_mixing(study)


def method_of(study: "StudyFile") -> str:
    """How the components are found, where the study may say "auto"."""
    request = request_of(study)
    return str(request.plan.method) if hasattr(request.plan, "method") else "segments"


def request_of(study: "StudyFile") -> "SitesRequest | PeersRequest":
    """What the estimator makes of the study, in checked and public terms, without a row."""
    from eigenveil.estimators import GossipPCA

    pca = study.estimator()
    names = tuple(place.name for place in study.holders)
    sizes = None if study.sizes is None else {name: float(study.sizes[name]) for name in names}
    grouped, dim = study.task.person is not None, len(study.columns)
    try:
        if isinstance(pca, GossipPCA):
            return pca.request_for(dim=dim, peers=names, sizes=sizes, grouped=grouped)
        return pca.request_for(dim=dim, sites=names, sizes=sizes, grouped=grouped)
    except ValueError as error:
        raise ValueError(in_study_words(str(error))) from error


def _require_mixing(study: "StudyFile") -> None:
    """Refuse steps that leave pair noise in sums, and a graph of noise that so many colluders take apart."""
    from eigenveil.estimators.gossip_graphs import read_graph
    from eigenveil.protocols.gossip import GossipTerms

    assert study.graph is not None
    terms, names = study.graph, tuple(place.name for place in study.peers)
    graph = read_graph("graph", terms.edges, names)[0]
    noisy = graph if terms.noise_edges is None else read_graph("noise_graph", terms.noise_edges, names)[0]
    try:
        GossipTerms(
            graph,
            terms.consensus,  # type: ignore[arg-type]
            steps=terms.steps,
            noise=study.privacy.noise or "none",  # type: ignore[arg-type]
            noise_graph=noisy if study.privacy.noise == "pairwise" else None,
            colluders=study.privacy.colluders or 1,
            quorum=fewest_of(study),
            roster={place.name: place.certificate.public for place in study.peers},
        ).among(())
    except ValueError as error:
        raise ValueError(in_study_words(str(error))) from error


_SECTIONS: Final = {
    "task": "components columns method rounds tolerance oversample center row_bound column_bounds origin mean_bound scale "
    "neighbours person local_steps align",
    "privacy": "epsilon delta trust survivors colluders person_sites noise restarts",
    "network": "quorum deadline retries",
    "graph": "noise_edges consensus steps",
    "tree": "fanout",
    "study": "carrier",
}
_PLACES: Final = {name: section for section, names in _SECTIONS.items() for name in names.split()}
# Names of parameters that are called otherwise in a study.
_RENAMED: Final = {"n_components": "components", "noise_graph": "noise_edges", "topology": "carrier"}
# These occur in messages as names of parameters only; others where a message opens with them or gives them a value.
_UNMISTAKABLE: Final = {
    "n_components",
    "row_bound",
    "column_bounds",
    "mean_bound",
    "local_steps",
    "person_sites",
    "noise_graph",
}


def in_study_words(message: str) -> str:
    """A message of an estimator with the names of its parameters replaced by those of sections and keys.

    >>> in_study_words("row_bound must be positive, got 0")
    '[task] row_bound must be positive, got 0'
    >>> in_study_words("n_components=9 must be at most the number of columns, 4; trust='masked' is for a star")
    '[task] components = 9 must be at most the number of columns, 4; [privacy] trust = "masked" is for a star'
    >>> in_study_words("method='dr-svd' has no private form; take 'auto', or epsilon=None")
    '[task] method = "dr-svd" has no private form; take "auto", or [privacy] none = true'
    """
    message = message.replace("epsilon=None", "[privacy] none = true").replace("center=None", '[task] center = "none"')

    def named(found: re.Match[str]) -> str:
        word, given = found[1], found[2]
        key = _RENAMED.get(word, word)
        if key not in _PLACES or not (given or word in _UNMISTAKABLE or found.start() == 0):
            return found[0]
        return f"[{_PLACES[key]}] {key}" + (" = " if given else "")

    # What is behind a section has its name already.
    message = re.sub(r"(?<!\] )\b([a-z_]+)\b(=?)", named, message)
    return re.sub(r"'([\w-]+)'", r'"\1"', message)
