"""Attacks on every release of the package, and verdicts on its guarantees that hold with a stated confidence.

The command `audit` and the tests call it. It may import everything below it: estimators, recommenders and their layers, but
neither `show` nor `commands`.
"""

from eigenveil.audit.case import Case, Claim, Trial
from eigenveil.audit.cases import CASES
from eigenveil.audit.verdict import Finding, Progress, Verdict, audit, judge

__all__ = ["CASES", "Case", "Claim", "Finding", "Progress", "Trial", "Verdict", "audit", "judge"]
