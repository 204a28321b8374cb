"""Keys and certificates: who is who, and which name belongs to which key."""
