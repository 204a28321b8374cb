"""The processes of a study: hub, site, node and peer, and what each writes to disk before it answers.

The commands `hub`, `site`, `node` and `peer` run them. They may import every other part of `network`.
"""
