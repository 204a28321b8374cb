"""Fits that are known to be wrong. An audit that does not refute each of them is blind: its other verdicts mean nothing.

`audit.cases` lists them beside what is shipped. They may import what `audit` may.
"""
