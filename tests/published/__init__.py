"""Numbers of the pages of results, computed from the rows that the studies kept, by code of its own."""
