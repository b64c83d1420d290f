"""`python -m app` is `batchyard`."""

from app.cli import program

if __name__ == "__main__":  # engines start children by spawn, and a child imports this module again
    program()
