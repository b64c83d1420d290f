"""Measurements of everything but the model. `python -m bench` runs them against servers of their own."""
