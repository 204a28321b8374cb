"""The commands that prepare a study across organisations: `keys`, `study`, `policy`, `ledger`.

`commands` adds them as groups. `fit`, `stream` and `bounds` charge a lasting ledger through `spending`. They may import
`network`, which defines these files, and the shared parts of `commands`.
"""
