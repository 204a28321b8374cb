"""One declaration of each parameter: its name, type, default, range, help, and where it appears.

Estimators inherit these classes and with them their constructors. Commands, study files, policies, plans, model settings and
docstrings are derived from the same declarations: all of them import this package. It imports `errors` alone, so that
`--help` answers at once.
"""
