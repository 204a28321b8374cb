"""Where parties run: all in one process (`local`, with faults if asked for), or on machines connected by `grpc`.

Estimators, the audit and `network` call it. It may import `protocols` and below, and does not interpret what messages say.
"""
