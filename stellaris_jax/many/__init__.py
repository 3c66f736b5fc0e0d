"""Many runs: sweeps, searches, populations, workers on Ray."""
