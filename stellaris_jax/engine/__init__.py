"""One compiled program that executes any plan: actors, learner functions, parameter function, version ring."""
