"""Fits that are known to be wrong: the audit must catch each of them, or it proves nothing about the others."""
