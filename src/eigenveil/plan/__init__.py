"""The planner: what each way to do it costs and brings, and which one to take. From public numbers alone: it never sees a row."""

from eigenveil.plan.advice import Advice, Verdict, advise
from eigenveil.plan.choice import Choice, Mechanisms, Plan, predict
from eigenveil.plan.components import components_of, iterates
from eigenveil.plan.facts import METHODS, SETTINGS, Facts, Setting, methods_for, parts_of
from eigenveil.plan.fit_params import FitParams, choice_of, estimator_of
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
    "FitParams",
    "Interval",
    "MasksPlan",
    "Mechanisms",
    "Method",
    "Outlook",
    "Plan",
    "SegmentsPlan",
    "Setting",
    "SitesPlan",
    "Spectrum",
    "StreamPlan",
    "Verdict",
    "advise",
    "choice_of",
    "components_of",
    "curve",
    "estimator_of",
    "first_block",
    "found_share",
    "guessed_eigenvalues",
    "iterates",
    "methods_for",
    "outlook",
    "parts_of",
    "plan_masks",
    "plan_segments",
    "plan_sites",
    "plan_stream",
    "predict",
]
