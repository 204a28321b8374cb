"""`python -m eigenveil` is the command `eigenveil`."""

from eigenveil.commands import app

if __name__ == "__main__":
    app(prog_name="eigenveil")
