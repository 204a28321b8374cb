"""Keys and certificates: who is who, and which name belongs to which key. Commands make them, and agents check
them.
"""
