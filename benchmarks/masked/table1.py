"""PPM's Table 1, the bytes that clients and server send, evaluated, beside the bytes of real fits, masked and plain.

In the paper's notation n is the columns, p the width of the iterated basis, s the sites and L the iterations. It counts numbers
that go up, of 8 bytes here, from one client and at the server in all, with constants left out:

    DistPrivPCA, FedPower       L n p               L s n p
    AnalyzeGauss                n^2                 s n^2
    PPM                         L [n p + log s]     L s [n p + log s]

log s stands for what secure aggregation adds in a round: keys, shares and signatures for log s neighbours, each tens of bytes
and not one number. The paper has log s = 5 for MovieLens and its 71567 users, which is the logarithm to the base 10, and so has
this table. The broadcast of the basis, n p numbers down in each iteration, is in no row of the paper; it is measured as `down`.

Fits are `FederatedPCA` in a star with p = n_components, L = rounds, no centre, and two rows at each site, because bytes do not
depend on the rows. Bytes are those of `transcript_`, as on the wire, without the last round (`totals`, a number or
two) and its answer. The column `keys` is the exchange of keys, once for all rounds: what the first round took beyond
the second. The column `over` is what a masked client sends in a round beyond 8 n p bytes, without keys. A covariance
is n (n + 1) / 2 numbers on our wire.

About five minutes of CPU, most of it the thousand sites; --quick, with two small studies, ten seconds.

    python benchmarks/masked/table1.py [--quick]
"""

import argparse
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from benchmarks.datasets import heading, line
from eigenveil import FederatedPCA
from eigenveil.linalg import Array
from eigenveil.linalg.blas import blas_threads

NUMBER = 8


@final
@dataclass(frozen=True, slots=True)
class Study:
    """A name, and the paper's n, p, L and s; `measured` where so many sites fit in one process."""

    name: str
    n: int
    p: int
    rounds: int
    s: int
    measured: bool = True

    def formulas(self) -> dict[str, float]:
        """Numbers that one client sends, by the rows of Table 1; the server's are s times as many."""
        product = self.n * self.p
        return {
            "DistPrivPCA, FedPower: L n p": self.rounds * product,
            "AnalyzeGauss: n^2": self.n**2,
            "PPM: L [n p + log s]": self.rounds * (product + math.log10(self.s)),
        }

    def sites(self) -> list[Array]:
        """Two rows at each site."""
        return list(np.random.default_rng(0).standard_normal((self.s, 2, self.n)) / math.sqrt(self.n))


STUDIES = (
    Study("Jester", 151, 32, 3, 20),
    Study("MNIST", 784, 40, 4, 20),
    Study("EachMovie", 1649, 32, 3, 20),
    Study("EachMovie", 1649, 32, 3, 100),
    Study("EachMovie", 1649, 32, 3, 1000),
    Study("MovieLens", 10677, 32, 2, 20),
    Study("MovieLens", 10677, 32, 2, 71567, measured=False),
)
QUICK = (Study("Jester", 151, 32, 3, 10), Study("Jester", 151, 32, 3, 40))
# A covariance has n (n + 1) / 2 numbers; beyond this many columns nobody would send one.
MOST_COLUMNS = 2000


@final
@dataclass(frozen=True, slots=True)
class Sent:
    """Bytes of one client: in all rounds together, up and down, and what of that is the exchange of keys."""

    up: float
    down: float
    keys_up: float
    keys_down: float
    rounds: int


def fitted(study: Study, **settings: Any) -> Sent:
    """The bytes of a real fit."""
    products = settings["method"] == "power"
    if products:
        settings |= {"rounds": study.rounds, "oversample": 0}
    pca = FederatedPCA(
        study.p if products else 2, epsilon=1.0, delta=1e-6, row_bound=4.0, center=None, random_state=0, **settings
    ).fit(study.sites())
    rounds = [done for done in pca.transcript_ if done.stage != "totals"]
    ups = [done.bytes_up / study.s for done in rounds]
    downs = [done.bytes_down / study.s for done in rounds]
    keys = (0.0, 0.0)
    if settings["trust"] == "masked" and products:
        # The second round has the same steps without keys.
        keys = (ups[0] - ups[1], downs[0] - downs[1])
    return Sent(sum(ups), sum(downs), *keys, len(rounds))


def amount(count: float) -> str:
    """Bytes with a unit."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            return f"{count:.4g} {unit}"
        count /= 1000
    raise AssertionError


def show(study: Study) -> None:
    """The lines of one study."""
    place = [study.name, *(str(number) for number in (study.n, study.p, study.rounds, study.s))]
    for name, numbers in study.formulas().items():
        each = NUMBER * numbers
        line([*place, f"formula, {name}", amount(each), amount(each * study.s), *[""] * 4])
    if not study.measured:
        return
    pairs = [("power", trust) for trust in ("hub", "site", "masked")]
    if study.n <= MOST_COLUMNS and study.s <= 100:
        pairs += [("covariance", "hub"), ("covariance", "masked")]
    for method, trust in pairs:
        more = {"survivors": 0.8} if trust == "masked" else {}
        sent = fitted(study, method=method, trust=trust, **more)
        cells = [""] * 2
        if trust == "masked" and method == "power":
            over = (sent.up - sent.keys_up) / sent.rounds - NUMBER * study.n * study.p
            cells = [f"{amount(sent.keys_up)} up, {amount(sent.keys_down)} down", amount(over)]
        line(
            [
                *place,
                f"measured, {method}, {'plain, ' * (trust != 'masked')}{trust}",
                amount(sent.up),
                amount(sent.up * study.s),
                amount(sent.down),
                *cells,
                f"{sent.up / (NUMBER * study.rounds * study.n * study.p):.3f}" if method == "power" else "",
            ]
        )


def run(studies: Sequence[Study]) -> None:
    """The table."""
    names = ["client up", "server in all", "client down", "keys, of these", "over, a round", "client / (8 L n p)"]
    heading(["data", "n", "p", "L", "s", "bytes", *names])
    for study in studies:
        show(study)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small studies only")
    options = parser.parse_args()
    print("PPM Table 1 in its own notation: n columns, p wide, L iterations, s sites; masked with 80% survivors, one colluder\n")
    with blas_threads(1):
        run(QUICK if options.quick else STUDIES)


if __name__ == "__main__":
    main()
