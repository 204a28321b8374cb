"""The study file: what organisations agree on, its rules and words, and the parties it describes.

Commands write it, and every agent reads it before it talks to anyone. It may come from an attacker, and is checked as
such. It may import `network.identity` and all that `network` may, but neither agents nor ledgers.
"""
