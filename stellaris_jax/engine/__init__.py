"""Engine: one compiled program for any plan, with actors, learner functions, parameter function and version ring."""
