"""The processes of a study: hub, site, node and peer, and what each writes down before it answers.

The commands `hub`, `site`, `node` and `peer` run them. They may import every other room of `network`.
"""
