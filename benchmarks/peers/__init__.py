"""Other programs, each run by a Python of its own: `python -m benchmarks.peers.<peer> JOB --seed N`."""
