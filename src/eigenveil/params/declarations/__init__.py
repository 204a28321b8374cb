"""The declarations themselves: groups that several estimators share, and one file for each estimator, command and file.
Imports the machinery of `params` and nothing else."""
