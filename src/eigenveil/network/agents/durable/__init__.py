"""Parties that survive a crash: a hub and a site whose messages are on disk before anyone else sees them.

The agents next door call it and bring the connections. It may import protocols, the ledger and the parties of a
study. It opens no connection itself.
"""
