"""Telemetry of a training run: `metrics.jsonl`, loggers such as TensorBoard's, and the display.

Records are plain dicts. `per_seed` holds values of each seed. Other values cover all seeds, in one of four ways:

- Means over seeds: losses, drift, returns, `updates`, `actors`, `gate`, data lag, simulated seconds, dollars.
- Pooled over all gradients or groups: `staleness_mean` and its parts, `group_size`, `gradient_seconds`,
  `dropped_slowness`, `learning_rate`, `occupancy`.
- Sums: `episodes`, `dropped`, `dropped_seconds`, `failed`, `gate_*`, `nonfinite_gradients`, `steps_per_second`.
- A maximum: `staleness_max`.

`env_steps`, `updates`, `wall_seconds`, `simulated_seconds`, `cost_usd`, `cost_common_usd`, `gate_escapes`,
`gate_groups`, `dropped`, `failed`, `nonfinite_gradients`, `occupancy` and `learner_utilisation` count from the start of
the run. All other values describe the record's round.

Names are the same everywhere:

- `data_lag`: versions between the acting policy and the learning one.
- `staleness_*`: versions between a gradient's fetch and its aggregation, of which `staleness_in_flight` until delivery
  and `staleness_queued` after it.
- `staleness_seconds`: simulated seconds between fetch and aggregation.
- `*_counts`: histograms of versions.

Waste by admission:

- `learner_utilisation`: share of the learners' time since the start of the run in which they computed.
- `dropped_seconds`: learner-seconds of the round's dropped gradients, over all seeds.
- `dropped_slowness`: mean duration of dropped gradients over that of all gradients (`gradient_seconds`). Above 1,
  training learns less from slow work than from other work.

Data of independent actors:

- `data_lag_*`: versions, batches (others' training steps) and seconds between acting and learning.
- `data_lag_counts`: segments of fragments by their lag in versions, once for each gradient.
- `learned_steps`: env steps of completed batches, where `env_steps` counts steps rolled.
- `fragments_dropped_slowness` and `fragments_dropped_return` say how data admission biases the data: mean duration of
  dropped fragments over that of all, and mean return of the episodes in them less that in used ones.
- `fragments_equal_share`, with `system.dynamic_sampling` alone: share of the round's fragments dropped because their
  groups have equal returns.
- `valid_share`, with `delays.by=episodes` alone: share of the places in the round's batches that hold a sample.

Simulated seconds of a live run (`executor=live`) are measured. A replay has `replay_deviation`: the largest distance of
the round's versions from the recorded ones, as a share of their norm.

Drift of the learner's policy pi from the behaviour policy mu, R = pi / mu, over the minibatches of a round:

- `ess` = E[R]^2 / E[R^2], the effective sample size as a share;
- `chi2` = E[R^2] - 1;
- `k3` = E[R - 1 - log R], `kl` if it has a closed form;
- `m2` = E[(log R)^2];
- `tv` = E|R - 1| / 2.

Steps of the policy: `update_norm`, the length of an update, and `update_cosine`, the cosine of the angle between it and
the previous one.
"""
