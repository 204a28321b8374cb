"""The processes of a study: hub, site, node and peer, and what each writes down before it answers."""
