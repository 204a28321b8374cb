"""Reruns of what the papers publish, one function for each kind of entry: (entry, data set, measure, repeats) -> `Rerun`.

Methods are those of `eigenveil.papers.baselines`. What a paper leaves open is chosen here, and `OPEN` states the choice.
"""

import math
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
from numpy.random import Generator

from eigenveil.data.rows import Symmetric
from eigenveil.errors import EigenveilError
from eigenveil.estimators import FederatedPCA, PrivatePCA
from eigenveil.linalg import Array, orthonormal, sines, top_eigen
from eigenveil.papers.baselines import DDPPM, AnalyzeGauss, FedPower, FpcaEdge, LocalRows, ModSulq, NoisyPower
from eigenveil.papers.registry import Cell, Entry, Measure, Rerun
from eigenveil.papers.trackers import BlockPower, Grouse, Spirit
from eigenveil.trackers import NOTHING_ASKED, BlockTracker, EnergyBounds, Tracker

__all__ = ["OPEN", "OURS", "RUNNERS", "DataMissing", "data_folder", "is_at_hand", "rows_of"]


class DataMissing(EigenveilError):
    """A data set that is not on this machine."""


def data_folder() -> Path | None:
    """The folder of data sets, from EIGENVEIL_DATA."""
    named = os.environ.get("EIGENVEIL_DATA")
    return None if not named else Path(named)


def is_at_hand(name: str) -> bool:
    """Whether a data set can be read here."""
    folder, base = data_folder(), name.partition(":")[0]
    return base in ("sklearn", "made up", "any") or (folder is not None and (folder / f"{base}.npz").is_file())


def rows_of(name: str) -> Array:
    """A data set as float64 rows, (n, d), as its file has it. Codes of missing entries become zero."""
    base, _, part = name.partition(":")
    if base == "sklearn":
        from sklearn import datasets

        load = getattr(datasets, f"load_{part}")
        return np.asarray((load(scaled=False) if part == "diabetes" else load()).data, dtype=np.float64)
    folder = data_folder()
    if folder is None or not is_at_hand(name):
        raise DataMissing(
            f"{base}.npz is not at hand. Set EIGENVEIL_DATA to the folder that has it. Without it, items with data from "
            "scikit-learn and made-up data run: `eigenveil reproduce` lists them"
        )
    with np.load(folder / f"{base}.npz", allow_pickle=False) as archive:
        if "X" in archive:
            rows = np.asarray(archive["X"], dtype=np.float64)
        else:
            from scipy.sparse import load_npz

            rows = load_npz(folder / f"{base}.npz").astype(np.float64).toarray()
    rows = {"train": rows[:60_000], "test": rows[60_000:]}.get(part, rows)
    return np.where(rows == 99, 0.0, rows) if base == "jester1" else rows


def _scaled(rows: Array, *, low: float) -> Array:
    """Every column mapped to [`low`, 1]; for -1, indicators stay as they are, and pixels are divided by 255. FROM THE DATA."""
    bottom, top = rows.min(axis=0), rows.max(axis=0)
    if low < 0 and top.max() > 1 and len(np.unique(rows[:100])) > 2 and rows.shape[1] == 784:
        return rows / 255.0
    if low < 0 and bottom.min() >= -1 and top.max() <= 1:
        return rows
    return np.where(top > bottom, (rows - bottom) * (1 - low) / np.where(top > bottom, top - bottom, 1.0) + low, 0.0)


def _deal(rows: Array, count: int, *, seed: int) -> list[Array]:
    """The rows in random order, evenly over `count` devices."""
    return np.array_split(rows[np.random.default_rng(seed).permutation(len(rows))], count)


def _cells(labels: Sequence[str], values: Sequence[float], *, repeat: int) -> Iterator[Cell]:
    for number, value in enumerate(values, 1):
        yield Cell(frozenset(labels), float(value), number, repeat)


def _shape(entry: Entry, data: str, measure: Measure, repeats: int) -> Rerun:
    rows = rows_of(data)
    return Rerun(facts={f"shape({data})": rows.shape, f"shape({data})[0]": rows.shape[0]})


_ALIGNMENTS: Final[tuple[tuple[str, Literal["procrustes", "sign", "none"]], ...]] = (
    ("opt", "procrustes"),
    ("sign", "sign"),
    ("vanilla", "none"),
)


def _table2(entry: Entry, data: str, measure: Measure, repeats: int) -> Rerun:
    """FedPower's Table 2: largest sine after convergence; or four of five columns and the Frobenius norm, as in the program."""
    cells: list[Cell] = []
    authors = measure == "authors"
    rows = _scaled(rows_of(data), low=0.0 if authors else -1.0)
    count = max(math.ceil(len(rows) / 1000) if authors else len(rows) // 1000, 3)
    rounds = entry.settings["T"] - 1 if authors and isinstance(entry.settings["T"], int) else 40
    truth = top_eigen(rows.T @ rows, rank=5)[1]

    def error(basis: Array, *, columns: int = 5, norm: Any = 2) -> float:
        basis = basis[:, :columns]
        return float(np.linalg.norm(basis - truth @ (truth.T @ basis), norm))

    for repeat in range(repeats):
        parts = _deal(rows, count, seed=repeat)
        if authors:
            # Their seeds and slices, the last of which may be short. On a9a, their first data set, it is their permutation.
            shuffled = rows[np.random.RandomState(entry.settings["seeds_authors"][repeat % 10]).permutation(len(rows))]
            size = math.ceil(len(rows) / count)
            parts = [shuffled[start : start + size] for start in range(0, len(rows), size)]
        sites = [Symmetric(part.T @ part, people=len(part)) for part in parts]
        for label, align in _ALIGNMENTS:
            fedpower = FedPower(5, rounds=rounds, local_steps=4, align=align, random_state=repeat).fit(sites)
            basis = np.linalg.qr(fedpower.products_[-1])[0]
            cells += _cells([label], [error(basis, columns=4 if authors else 5)], repeat=repeat)
        for label in ("dr-svd", "uda", "wda"):
            pca = FederatedPCA(5, epsilon=None, center=None, method=label, random_state=repeat).fit(parts)
            cells += _cells([label], [error(pca.subspace_.basis, norm="fro" if authors else 2)], repeat=repeat)
    return Rerun(cells=tuple(cells))


# Of each figure of FedPower: the lines that are compared, by their labels, and what they change.
_LINES: Final[dict[str, tuple[tuple[str, dict[str, Any]], ...]]] = {
    "figure3": tuple((f"p={p}", {"local_steps": p}) for p in (1, 2, 4, 8)),
    "figure4": tuple((f"m={m}", {"m": m, "local_steps": 4}) for m in (20, 80)),
    "figure5": tuple(
        (f"K={k}, scheme={scheme}", {"participants": k, "scheme": scheme, "local_steps": 4}) for k in (5, 20) for scheme in (1, 2)
    ),
    "figure6": (("p=1", {}), ("p=4", {"local_steps": 4}), ("p=4, decay", {"local_steps": 4, "decay": True})),
    "figure7": (("p=1", {}), ("p=4", {"local_steps": 4})),
    "figure8": tuple((f"m={m}", {"m": m, "local_steps": 4}) for m in (20, 80)),
    "figure9": tuple((f"K={k}", {"participants": k, "local_steps": 4}) for k in (5, 20)),
    "figure10": (("p=4", {"local_steps": 4}), ("p=4, decay", {"local_steps": 4, "decay": True})),
}
_DELTA: Final = 0.01  # FedPower's Table 3 does not state delta.
_COMMUNICATIONS: Final = 40


def _rounds(entry: Entry, data: str, measure: Measure, repeats: int) -> Rerun:
    """FedPower's Table 3 and Figures 3 to 10: the largest sine after every communication."""
    rows = _scaled(rows_of(data), low=-1.0)
    truth = top_eigen(rows.T @ rows, rank=5)[1]
    lines: Sequence[tuple[str, dict[str, Any]]] = _LINES.get(entry.item, ())
    common: dict[str, Any] = {"width": 5, "m": 200 if data.startswith("mnist") else 20}
    if entry.item == "table3":
        common = {"width": 10, "m": 100, "local_steps": 4, "decay": True}
        lines = [(column, {"noise": float(column.removeprefix("eps1="))}) for column in _EPSILONS_1]
    elif entry.item in ("figure7", "figure8", "figure9", "figure10"):
        common["noise"] = 10.0
    cells: list[Cell] = []
    for repeat in range(repeats):
        dealt: dict[int, list[Symmetric]] = {}
        for labels, change in lines:
            settings = {"align": "sign", **common, **change}
            noise, m = settings.pop("noise", math.inf), min(settings.pop("m"), len(rows) // 2)
            if m not in dealt:
                dealt[m] = [Symmetric(part.T @ part, people=len(part)) for part in _deal(rows, m, seed=repeat)]
            if not math.isinf(noise):
                # The budgets are for one communication, and the printed noise divides those of the whole run evenly.
                settings |= {"epsilon": (_COMMUNICATIONS * noise, _COMMUNICATIONS * 0.1), "delta": _COMMUNICATIONS * _DELTA}
                if entry.item != "table3":
                    settings["epsilon"] = _COMMUNICATIONS * noise / 2
            settings["participants"] = min(settings["participants"], m) if "participants" in settings else None
            fitted = FedPower(5, rounds=_COMMUNICATIONS, random_state=repeat, **settings).fit(dealt[m])
            spaces = [np.linalg.svd(product, full_matrices=False)[0][:, :5] for product in fitted.products_]
            errors = [float(sines(space, truth)[0]) for space in spaces]
            cells += _cells([label.strip() for label in labels.split(",")], errors, repeat=repeat)
    return Rerun(cells=tuple(cells))


_EPSILONS_1: Final = ("eps1=inf", "eps1=100", "eps1=10", "eps1=1", "eps1=0.1")


def _synth(alpha: float, rng: Generator, *, authors: bool) -> Array:
    """Synth(alpha) of footnote 2, (5000, 20). The program draws Gaussian rows and divides all by the longest one."""
    spectrum, basis = np.arange(1.0, 21.0) ** -alpha, orthonormal(rng.standard_normal((20, 20)))
    if not authors:
        return orthonormal(rng.standard_normal((5000, 20))) * spectrum @ basis.T
    rows = rng.standard_normal((5000, 20)) * spectrum @ basis.T
    return np.asarray(rows / np.linalg.norm(rows, axis=1).max())


def _masks(entry: Entry, data: str, measure: Measure, repeats: int) -> Rerun:
    """FPCA's Figure 3: |<v1, v1^>| under masks. Panels draw one data set for each alpha, claims one for each repeat."""
    cells: list[Cell] = []
    authors = measure == "authors"
    method = entry.settings.get("method", "modsulq")
    epsilons = [float(column.removeprefix("eps=")) for column in entry.columns] or [1.0, 2.0, 4.0]
    for alpha in entry.settings["alpha"]:
        for repeat in range(repeats):
            drawn = np.random.default_rng((repeat if entry.kind == "claim" else 0, round(1000 * alpha)))
            rows = _synth(alpha, drawn, authors=authors)
            truth = top_eigen(rows.T @ rows, rank=1)[1][:, 0]
            for epsilon in epsilons:
                budget: dict[str, Any] = {"epsilon": epsilon, "delta": 0.05, "random_state": repeat}
                if method == "fpca":
                    how: dict[str, Any] = {"mask_rows": "all", "merge": "vectors"} if authors else {}
                    fitted: Any = FpcaEdge(5, block=50, **how, **budget)
                else:
                    mirror = "none" if method == "modsulq-full" else ("authors" if authors else "noise")
                    fitted = ModSulq(1, mirror=mirror, **budget)  # type: ignore[arg-type]
                labels = [f"alpha={alpha:g}", f"eps={epsilon:g}"]
                cells += _cells(labels, [abs(fitted.fit(rows).components_[0] @ truth)], repeat=repeat)
    return Rerun(cells=tuple(cells))


def _projection(entry: Entry, data: str, measure: Measure, repeats: int) -> Rerun:
    """FPCA's Figures 2, 10 and 11: the largest sine between the top two directions with a mask and without, on raw rows."""
    rows, authors = rows_of(data), measure == "authors"
    truth = top_eigen(rows.T @ rows, rank=2)[1]
    epsilons = entry.settings["epsilon"]
    cells: list[Cell] = []
    for repeat in range(repeats):
        for epsilon in epsilons if isinstance(epsilons, list) else [epsilons]:
            budget: dict[str, Any] = {"epsilon": epsilon, "delta": 0.1, "random_state": repeat}
            how: dict[str, Any] = {"mask_rows": "all", "merge": "vectors"} if authors else {}
            masked = FpcaEdge(6, block=25, columns=25, **how, **budget).fit(rows)
            sulq = ModSulq(6, mirror="authors" if authors else "noise", **budget).fit(rows)
            for labels, fitted in ((["fpca", "mask"], masked), (["modsulq"], sulq)):
                cells += _cells([*labels, f"eps={epsilon:g}"], [sines(fitted.components_[:2].T, truth)[0]], repeat=repeat)
    return Rerun(cells=tuple(cells))


def _streams(entry: Entry, data: str, measure: Measure, repeats: int) -> Rerun:
    """FPCA's Figure 9: the natural logarithm of error (66) at the end, columns centred."""
    rows = rows_of(data)
    rows = (rows - rows.mean(axis=0))[: len(rows) // 50 * 50]
    rank = entry.settings["r_authors"]
    block = 2 * rank if measure == "authors" else 50
    trackers: dict[str, Tracker[Any]] = {
        "sp": Spirit(rows.shape[1], forget=0.9),
        "fpca": BlockTracker(rank=rank, oversample=10, adapt=EnergyBounds(0.01, 0.1), center=False),
        "pm": BlockPower(rank),
        "grouse": Grouse(rank, step_size=2.0),
    }
    cells: list[Cell] = []
    for name, tracker in trackers.items():
        state = tracker.start(rows.shape[1])
        for start in range(0, len(rows), block):
            state = tracker.step(state, rows[start : start + block], NOTHING_ASKED)
        basis = tracker.subspace(state).basis
        residual = float(np.square(rows - rows @ basis @ basis.T).sum()) / len(rows)
        cells += _cells([name], [math.log(residual)], repeat=0)
    return Rerun(cells=tuple(cells))


def _interactions(data: str) -> Array:
    """Zeros and ones of users and items. jester1 is liked above 0, digits above 8; users and items without any are left out."""
    rows = rows_of(data)
    ones = (rows > (8 if data == "sklearn:digits" else 0)).astype(np.float64)
    return ones[ones.any(axis=1)][:, ones.any(axis=0)]


def _filter_error(ones: Array) -> Callable[[Array, Array], float]:
    """||R~_p - R_p||_F / ||R_p||_F of PPM (75)-(76) between two bases, by H = D^-1/2 R^T R D^-1/2 and D alone."""
    degrees = ones.sum(axis=0)
    filtered = ones.T @ ones / np.sqrt(np.outer(degrees, degrees))

    def inner(left: Array, right: Array) -> float:
        return float(np.sum((left.T @ filtered @ right) * (left.T @ (degrees[:, None] * right))))

    def error(fitted: Array, reference: Array) -> float:
        length = inner(reference, reference)
        return math.sqrt(max(0.0, inner(fitted, fitted) - 2 * inner(fitted, reference) + length) / length)

    return error


def _errors(entry: Entry, data: str, measure: Measure, repeats: int) -> Rerun:
    """PPM's Figures 1 and 3 to 5, against the exact top p; or against the noiseless run from the same start ("authors")."""
    ones = _interactions(data)
    covariance = (ones / ones.sum(axis=1)[:, None]).T @ ones
    error, symmetric = _filter_error(ones), Symmetric(covariance, people=len(ones))
    ranks = entry.settings["p"]
    cells: list[Cell] = []
    for rank in ranks if isinstance(ranks, list) else [ranks]:
        rank = min(rank, len(covariance) // 2)
        exact = top_eigen(covariance, rank=rank)[1]
        named = [f"p={rank}"] if isinstance(ranks, list) else []
        for repeat in range(repeats):
            seeded: dict[str, Any] = {"delta": 1e-4, "random_state": repeat}
            clean = NoisyPower(rank, epsilon=None, **seeded).fit(symmetric).basis_
            for epsilon in (1.0, 3.0, 5.0, 10.0, 20.0):
                many: dict[str, Any] = {"adjacency": "interaction", "epsilon": epsilon, **seeded}
                power = {
                    "ppm": NoisyPower(rank, **many),
                    "balcan central": NoisyPower(rank, sensitivity="balcan", **many),
                    "balcan local": NoisyPower(rank, sensitivity="balcan", users=len(ones), **many),
                    "fedpower": NoisyPower(rank, sensitivity="fedpower", users=len(ones), **many),
                }
                bases = {name: method.fit(symmetric).basis_ for name, method in power.items()}
                bases["analyze gauss"] = AnalyzeGauss(rank, **many).fit(symmetric).components_.T
                for name, basis in bases.items():
                    value = error(basis, exact if measure == "paper" else clean)
                    cells += _cells([name, f"eps={epsilon:g}", *named], [value], repeat=repeat)
                    if name == "ppm":
                        # Statements about "the error" alone speak of PPM.
                        cells += _cells([f"eps={epsilon:g}", *named], [value], repeat=repeat)
    return Rerun(cells=tuple(cells))


def _coherence(entry: Entry, data: str, measure: Measure, repeats: int) -> Rerun:
    """PPM's Table 2: by the definition mu_1 is 1; here over the leading 32 eigenvectors of P."""
    ones = _interactions(data)
    vectors = top_eigen((ones / ones.sum(axis=1)[:, None]).T @ ones, rank=min(32, ones.shape[1]))[1]
    largest, longest = float(np.abs(vectors).max()), float(np.linalg.norm(vectors, axis=1).max())
    prior = largest * math.sqrt(math.log(ones.shape[1]))
    values = (*ones.shape, ones.sum(), largest, longest, prior, longest)
    names = ("users", "items", "interactions", "mu0", "mu1", "prior / sqrt(p)", "ours")
    return Rerun(
        cells=tuple(cell for name, value in zip(names, values, strict=True) for cell in _cells([name], [value], repeat=0)),
        facts={"mu1": longest, "mu0 * sqrt(p * log(items)) for p = 32": prior * math.sqrt(32)},
    )


def _ratio(entry: Entry, data: str, measure: Measure, repeats: int) -> Rerun:
    """PPM's Figure 2 at n = 8000 and a few k: the measured ratio of the two sensitivities, and (13)."""
    from eigenveil.papers.theory import ppm_ratio

    ratios, printed = [], []
    for k in (64, 256, 512):
        bases = [orthonormal(np.random.default_rng((repeat, k)).standard_normal((8000, k))) for repeat in range(repeats)]
        largest = np.mean([math.sqrt(k) * np.abs(basis).max() for basis in bases])
        ratios.append(float(largest / np.mean([np.linalg.norm(basis, axis=1).max() for basis in bases])))
        printed.append(ppm_ratio(k, 8000))
    lowest = min(ratio / other for ratio, other in zip(ratios, printed, strict=True))
    return Rerun(facts={"min(r)": min(ratios), "r(measured)": lowest, "r(13)": 1.0})


_RING: Final = np.array([[2, 1, 0, 1], [1, 2, 1, 0], [0, 1, 2, 1], [1, 0, 1, 2]]) / 4


def _in_ball(data: str) -> tuple[Array, Array, Array]:
    """Standardised rows in the unit ball, the first left singular vector and the eigenvalues. READ FROM THE DATA."""
    rows = rows_of(data)
    spread = rows.std(axis=0)
    rows = (rows - rows.mean(axis=0)) / np.where(spread > 0, spread, 1.0)
    rows /= np.linalg.norm(rows, axis=1).max()
    left, values, _ = np.linalg.svd(rows, full_matrices=False)
    return rows, left[:, 0], values**2


def _agents(rows: Array, values: Array, *, rounds: int, scale: float, c: int | None, seed: int) -> DDPPM:
    """D-DP-PM with Corollary 1's schedule from the PRIVATE eigenvalues, as the paper tunes it."""
    schedule = tuple(scale * (values[1] / values[0]) ** step for step in range(1, rounds + 1))
    alpha = 1 / math.sqrt(values[0] * values[1])
    fitted = DDPPM(1, alpha=alpha, sigma_q=1 / math.sqrt(len(rows)), sigma_p=schedule, c=c, weights=_RING, random_state=seed)
    return fitted.fit(np.array_split(rows, 4))


def _sine(vector: Array, unit: Array) -> float:
    return float(np.linalg.norm(vector - unit * (unit @ vector)) / np.linalg.norm(vector))


def _decentral(entry: Entry, data: str, measure: Measure, repeats: int) -> Rerun:
    """D-DP-PM's Figures 2 and 3: its error for T = 1 to 10 and noise at Corollary 1's largest and a thousandth of it; LDP."""
    rows, left, values = _in_ball(data)
    # The published values are limits on delta, by epsilon.
    pairs = zip(entry.columns, entry.values, strict=False)
    limits = {float(name.rpartition("=")[2]): delta for name, delta in pairs if name.startswith("delta at")}
    cells: list[Cell] = []
    for repeat in range(repeats):
        for rounds in (1, 3, 5, 10):
            for scale in (1.0, 0.001):
                fitted = _agents(rows, values, rounds=rounds, scale=scale, c=64, seed=repeat)
                labels = ["d-dp-pm", f"T={rounds}", f"noise={scale:g}"]
                cells += _cells(labels, [_sine(fitted.scores_[:, 0], left)], repeat=repeat)
        for epsilon, delta in limits.items():
            local = LocalRows(1, epsilon=epsilon, delta=delta, random_state=repeat).fit(rows)
            cells += _cells(["ldp", f"eps={epsilon:g}"], [_sine(local.scores_[:, 0], left)], repeat=repeat)
    clean = [
        np.mean([_sine(_agents(rows, values, rounds=t, scale=0.0, c=None, seed=s).scores_[:, 0], left) for s in range(5)])
        for t in range(1, 60)
    ]
    star = next((t for t, value in enumerate(clean) if value <= 1e-3), len(clean) - 1)
    facts = {"error(T*, no noise)": clean[star], "error(T* - 1, no noise)": clean[star - 1], f"shape({data})": rows.shape}
    return Rerun(cells=tuple(cells), facts=facts | {"lambda2(W)": float(np.linalg.eigvalsh(_RING)[-2])})


Runner = Callable[[Entry, str, Measure, int], Rerun]
RUNNERS: Final[dict[str, Runner]] = {
    "shape": _shape,
    "fedpower.table2": _table2,
    "fedpower.rounds": _rounds,
    "fedpower.noise": _rounds,
    "fpca.masks": _masks,
    "fpca.projection": _projection,
    "fpca.streams": _streams,
    "ppm.errors": _errors,
    "ppm.coherence": _coherence,
    "ppm.ratio": _ratio,
    "ddppm.errors": _decentral,
    "ddppm.rounds": _decentral,
    "ddppm.theory": _decentral,
}
# What a paper leaves open, and the choice made here.
OPEN: Final[dict[str, str]] = {
    "fedpower.table2": "(2.6) is taken after 40 communications, the program's measure after its T - 1; rows in random order.",
    "fedpower.rounds": "T = 40 communications and width k.",
    "fedpower.noise": "delta = 0.01 for each communication; in Figures 7 to 10 epsilon = 10 for each, half at the devices.",
    "fpca.masks": "by the paper's measure rows are those of footnote 2, which do not fill the unit ball.",
    "fpca.projection": "the mask comes in slices of c = 25 columns.",
    "fpca.streams": "the rank of the program.",
    "ppm.errors": 'five epsilons; "authors" is the noiseless run from the same start, which fits the printed level.',
    "ppm.coherence": "the leading 32 eigenvectors.",
    "ppm.ratio": "n = 8000 and k = 64, 256, 512.",
    "ddppm.errors": "rows standardised and divided by the longest, c = 64, noise at Corollary 1's largest or a thousandth.",
    "ddppm.rounds": "as in Figure 2.",
    "ddppm.theory": "as in Figure 2.",
}


def _ours_sites(data: str) -> tuple[str, float, str]:
    rows = _scaled(rows_of(data), low=-1.0)
    truth = top_eigen(rows.T @ rows, rank=5)[1]
    pca = FederatedPCA(5, epsilon=None, center=None, random_state=0).fit(_deal(rows, max(len(rows) // 1000, 3), seed=0))
    return "FederatedPCA, largest sine", float(sines(pca.subspace_.basis, truth)[0]), pca.guarantee_.headline


def _ours_site_noise(data: str) -> tuple[str, float, str]:
    rows = _scaled(rows_of(data), low=-1.0)
    truth, bound = top_eigen(rows.T @ rows, rank=5)[1], float(np.linalg.norm(rows, axis=1).max())
    pca = FederatedPCA(5, epsilon=0.1, delta=1e-5, center=None, row_bound=bound).fit(_deal(rows, 20, seed=0))
    claim_line = f"{pca.guarantee_.headline} (row bound READ FROM THE DATA)"
    return "FederatedPCA, epsilon = 0.1, largest sine", float(sines(pca.subspace_.basis, truth)[0]), claim_line


def _ours_table(data: str) -> tuple[str, float, str]:
    rows = rows_of(data)
    truth, bound = top_eigen(rows.T @ rows, rank=2)[1], float(np.linalg.norm(rows, axis=1).max())
    pca = PrivatePCA(2, epsilon=1.0, delta=1e-5, center=None, row_bound=bound).fit(rows)
    claim_line = f"{pca.guarantee_.headline} (row bound READ FROM THE DATA)"
    return "PrivatePCA, epsilon = 1, largest sine", float(sines(pca.subspace_.basis, truth)[0]), claim_line


# The default estimator on the same rows: what it is, its error, and the first line of its guarantee.
OURS: Final[dict[str, Callable[[str], tuple[str, float, str]]]] = {
    "fedpower.table2": _ours_sites,
    "fedpower.rounds": _ours_sites,
    "fedpower.noise": _ours_site_noise,
    "fpca.projection": _ours_table,
    "ddppm.errors": _ours_table,
}
