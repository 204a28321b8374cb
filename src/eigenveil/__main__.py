"""`python -m eigenveil` is the command `eigenveil`."""

from eigenveil.cli import app

if __name__ == "__main__":
    app(prog_name="eigenveil")
