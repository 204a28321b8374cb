"""The live page: what a party's terminal shows, in a browser, while the command runs.

The views of `cli.network`, `cli.simulate` and `cli.stream` give it what to show. It may import `drawing` and the shared parts
of `cli`. It never sees rows: everything on the page is on the terminal too.
"""
