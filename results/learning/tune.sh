#!/usr/bin/env bash
# The grid behind the learning rates of run.sh, on seeds that the results do not use.
set -euo pipefail
cd "$(dirname "$0")/../.."
python=.venv/bin/python
rules=allreduce,central,async,softsync,ssp,stellaris,artifact

$python scripts/train.py -m env=gymnax/cartpole,gymnax/acrobot system=$rules algorithm.learning_rate=3e-4,1e-3,3e-3,1e-2 \
  platform.rpc=0 platform.cache=0 algorithm.anneal=false env.normalize_reward=false seed=100 num_seeds=3 evaluation.points=4
$python scripts/train.py -m env=gymnax/breakout_minatar system=allreduce,stellaris algorithm.learning_rate=1e-3,3e-3,1e-2 \
  algorithm.rollout_length=128 \
  total_steps=1e6 seed=100 num_seeds=2 evaluation.points=4
$python scripts/train.py -m env=brax/inverted_pendulum system=allreduce,stellaris algorithm.learning_rate=3e-4,1e-3,3e-3 \
  algorithm.anneal=false algorithm.gamma=0.97 env.normalize_reward=false total_steps=500_000 seed=100 num_seeds=2 evaluation.points=4
