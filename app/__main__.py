"""`python -m app` is `batchyard`."""

from app.cli import main

if __name__ == "__main__":  # engines start children by spawn, and a child imports this module again
    main()
