"""All that an epsilon of one table rests on. Read it in this order; then you can check every release.

**Ring 1: what a release costs.** A value comes with a stated sensitivity; these say what is charged, and what noise is drawn.

1. `unit` (8 min): what one guarantee protects, which tables are neighbours, and how far one person moves each sum. Proofs.
2. `accounting` (9 min): from mu to (epsilon, delta) and back, rounded to the safe side.
3. `ledger` (28 min): charges against a budget, reserves, and disjoint slots of a stream; kept in memory or in a `Store`.
4. `noise` (22 min): random words, exact draws of round(s Z), and the public steps that they count.
5. `mechanism` (10 min): `Gaussian.release` charges, calibrates, and adds noise. Nothing else makes a private array public.

**Ring 2: why the stated sensitivity holds.** Whatever the rows are, one person moves the value by no more, to the last bit.

6. `rows` (13 min): all that is asked of data: blocks of raw rows; and `Work`, a sum that goes to where the rows are.
7. `threads` (8 min): how a sum is shared between threads, so that its bits do not depend on it.
8. `exact` (7 min): arithmetic that rounds once, at the end.
9. `domain` (25 min): where rows are clipped and put on a public grid, and which entries count as missing.
10. `whole` (32 min): exact sums of clipped rows, in whole numbers.
11. `sums` (6 min): each of these sums with its sensitivity, as a `Bounded`.
12. `counts` (13 min): how many rows have norms beyond each of many, for a bound that is not known.

Minutes are lines over 25, docstrings included: a pace at which proofs can be followed. A test compares them with the files.
`privacy` and everything above call the core. It imports numpy, cryptography, the standard library and `eigenveil.errors`, and
nothing else; only functions that are given a sparse matrix load scipy.
"""
