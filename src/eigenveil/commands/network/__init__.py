"""The commands of the parties in a study: `hub`, `site`, `node`, `peer`, and `watch` for streams.

`commands` makes commands of them. They ask for consent and show what happens; `network.agents` does the work. They may import
`network` and the shared parts of `commands`.
"""
