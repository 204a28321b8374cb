"""Benchmarks: speed, memory, traffic and accuracy, each a script to run from a clone, such as `python benchmarks/speed.py`.

A folder has those of one part of the project, and `runs.py` there is what they share. Real data comes from `datasets.py`. The
figures are in docs/benchmarks.md. Nothing here is needed to install, use or test the project.
"""
