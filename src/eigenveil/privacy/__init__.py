"""What a guarantee says, and what is made of the core: sums that tasks ask for, and noise under masks and between peers.

Rows are clipped, added up and released in `eigenveil.core`. Tasks, protocols and everything above call this. It may import
`data` and below.
"""
