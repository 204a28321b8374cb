"""Fits that are known to be wrong: the audit must catch each of them."""
