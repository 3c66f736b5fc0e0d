"""Sources of fragments: rolled inside the compiled program, or by actors on the host."""
