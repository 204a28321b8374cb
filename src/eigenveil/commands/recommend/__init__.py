"""The commands below `recommend`: `fit`, `top` and `evaluate`.

`commands` adds them as a group, and `eigenveil.recommend` does the work. They may import that and the shared parts of `commands`.
"""
