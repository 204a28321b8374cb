"""Parties that survive a crash: a hub and a site whose messages are on the disk before anybody else sees them.

Called by the agents next door, which bring the connections. Imports protocols, the ledger and the parties of a study; it opens no
connection itself.
"""
