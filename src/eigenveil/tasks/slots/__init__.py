"""Streams over many sites, slot by slot: what a site makes of a slot, and what a hub makes of all slots.

`protocols.slots` carries these tasks, and `estimators.slots` makes them. A slot is a public stretch of every site's stream,
named by its number from zero. With noise, sites send sums (`SlotSums`); without, sketches (`SlotSketches`). It may import
`tasks.base`, `privacy`, `data` and `linalg`.
"""
