"""The study file: what organisations agree on, its rules and words, and the parties it describes.

Commands write it, and every agent reads it before it talks to anybody. It may come from somebody hostile, and
is checked as such.
"""
