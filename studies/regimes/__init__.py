"""When asynchrony wins: the timelines of all regimes, without training."""
