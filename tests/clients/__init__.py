"""Programs that nobody here wrote, pointed at the service by environment only."""
