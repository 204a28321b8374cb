"""The planner: what each way to do it costs and brings, and which one to take. From public numbers alone: it never sees a row."""

from eigenveil.plan.advice import Advice, advise
from eigenveil.plan.choice import Choice, Mechanisms, Plan, predict
from eigenveil.plan.components import components_of, iterates
from eigenveil.plan.facts import METHODS, SETTINGS, Facts, methods_for
from eigenveil.plan.gossip import SegmentsPlan, guessed_eigenvalues, plan_segments
from eigenveil.plan.masks import MasksPlan, plan_masks
from eigenveil.plan.outlook import Interval, Outlook, curve, outlook
from eigenveil.plan.sites import Method, SitesPlan, plan_sites
from eigenveil.plan.spectrum import Spectrum, found_share
from eigenveil.plan.stream import STREAM_MEAN_SHARES, StreamPlan, first_block, plan_stream

__all__ = [
    "METHODS",
    "SETTINGS",
    "STREAM_MEAN_SHARES",
    "Advice",
    "Choice",
    "Facts",
    "Interval",
    "MasksPlan",
    "Mechanisms",
    "Method",
    "Outlook",
    "Plan",
    "SegmentsPlan",
    "SitesPlan",
    "Spectrum",
    "StreamPlan",
    "advise",
    "components_of",
    "curve",
    "first_block",
    "found_share",
    "guessed_eigenvalues",
    "iterates",
    "methods_for",
    "outlook",
    "plan_masks",
    "plan_segments",
    "plan_sites",
    "plan_stream",
    "predict",
]
