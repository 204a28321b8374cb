"""How results look: in words, on a terminal, as HTML, JSON or PDF, with matplotlib, in a notebook and on a live page."""
