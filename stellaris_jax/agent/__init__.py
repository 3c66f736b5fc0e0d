"""What acts and what it learns from: networks and losses."""
