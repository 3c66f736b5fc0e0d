"""Study of off-policy algorithms: what stale gradients cost DQN and SAC, beside PPO on the same tasks."""
