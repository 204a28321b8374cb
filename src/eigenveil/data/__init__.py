"""Rows and where they come from: tables, files, streams, archives. Called by estimators and commands; imports `errors`
and `linalg`."""
