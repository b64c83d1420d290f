"""How far the service keeps the contract: every numbered assertion, and programs that nobody here wrote."""
