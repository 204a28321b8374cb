"""Chooses the method, its rounds and its shares of the budget, from public numbers alone.

Estimators call it before every fit, and `plan.forecast` rehearses what it chooses. It may import `plan.spectrum`,
`tasks` and their layers.
"""
