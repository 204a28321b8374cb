"""Trying to break a guarantee: attacks on everything that is released, and verdicts that hold with a stated confidence."""

from eigenveil.audit.case import Case, Claim, Trial
from eigenveil.audit.cases import CASES
from eigenveil.audit.runs import Progress, audit
from eigenveil.audit.verdict import Finding, Verdict, judge

__all__ = ["CASES", "Case", "Claim", "Finding", "Progress", "Trial", "Verdict", "audit", "judge"]
