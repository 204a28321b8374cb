"""The live page: what a party's terminal shows, in a browser, while the command runs.

The views in `show` give it what to show. It never sees rows: everything on the page is on the terminal too. It may import the
rooms of `show` that draw charts, tables and rounds.
"""
