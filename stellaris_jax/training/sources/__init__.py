"""Where fragments come from: rolled inside the compiled program, or by actors on the host."""
