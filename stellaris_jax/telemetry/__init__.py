"""Telemetry of a training run: `metrics.jsonl`, loggers such as TensorBoard's, and the display.

Records are plain dicts. Every scalar is a mean over seeds; `per_seed` holds the values themselves. `env_steps`,
`updates`, `wall_seconds`, `simulated_seconds`, `cost_usd`, `gate_escapes`, `gate_groups`, `dropped`, `failed` and
`nonfinite_gradients` count from the start of the run. All other values describe the record's round.

Names are the same everywhere. `data_lag`: versions between the acting policy and the learning one. `staleness_*`:
versions between a gradient's fetch and its aggregation, of which `staleness_in_flight` until delivery and
`staleness_queued` after it. `staleness_seconds`: simulated seconds between fetch and aggregation. `*_counts`:
histograms of versions.

Waste by admission. `learner_utilisation`: share of the learners' time since the start of the run in which they
computed. `dropped_seconds`: learner-seconds of the round's dropped gradients, over all seeds. `dropped_slowness`: mean
duration of dropped gradients over that of all gradients (`gradient_seconds`). Above 1, training learns less from slow
work than from other work.

Simulated seconds of a live run (`executor=live`) are measured. A replay has `replay_deviation`: the largest distance of
the round's versions from the recorded ones, as a share of their norm.

Drift of the learner's policy pi from the behaviour policy mu, R = pi / mu, over the minibatches of a round:
`ess` = E[R]^2 / E[R^2], the effective sample size as a share; `chi2` = E[R^2] - 1; `k3` = E[R - 1 - log R], `kl` if it
has a closed form; `m2` = E[(log R)^2]; `tv` = E|R - 1| / 2. Steps of the policy: `update_norm`, the length of an
update, and `update_cosine`, the cosine of the angle between it and the previous one.
"""
