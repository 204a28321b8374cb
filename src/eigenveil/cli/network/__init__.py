"""The commands of the parties in a study: `hub`, `site`, `node`, `peer`."""
