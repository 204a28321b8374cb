"""The live page: what a party's terminal shows, in a browser, while the command runs."""
