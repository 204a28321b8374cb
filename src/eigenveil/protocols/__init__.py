"""Who carries a task: one holder of all rows, sites around a hub or in a tree, sites with masked sums, or peers without a hub.

`runtimes` delivers their messages, and `estimators` and `network` build them. It may import `tasks` and below, and has no
sockets, no clocks and no threads: a party takes messages and returns messages.
"""
