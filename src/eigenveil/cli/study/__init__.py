"""The commands that prepare a study across organisations: `keys`, `study`, `policy`, `ledger`."""
