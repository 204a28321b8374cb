"""Keys and certificates: who is who, and which name belongs to which key.

`eigenveil keys` makes them, and study files and agents check them. It may import `protocols` and below, and nothing else of
`network`.
"""
