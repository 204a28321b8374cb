"""How results look: in words, on a terminal, as HTML, JSON or PDF, with matplotlib, in a notebook and on a live page.

Every input is a released or public number, and no row is read here. Commands call it, and so can you. It may import everything
below it.
"""
