"""The study file: what organisations agree on, its sections, rules and words, and the parties it describes."""
