"""The planner: what each way to do it costs and brings, and which one to take. From public numbers alone: it never sees a row."""

from eigenveil.plan.choice import Choice, Mechanisms, Plan, predict
from eigenveil.plan.gossip import SegmentsPlan, guessed_eigenvalues, plan_segments
from eigenveil.plan.sites import Method, SitesPlan, plan_sites
from eigenveil.plan.split import Split, split_budget
from eigenveil.plan.stream import STREAM_MEAN_SHARES, StreamPlan, first_block, plan_stream

__all__ = [
    "STREAM_MEAN_SHARES",
    "Choice",
    "Mechanisms",
    "Method",
    "Plan",
    "SegmentsPlan",
    "SitesPlan",
    "Split",
    "StreamPlan",
    "first_block",
    "guessed_eigenvalues",
    "plan_segments",
    "plan_sites",
    "plan_stream",
    "predict",
    "split_budget",
]
