#!/usr/bin/env bash
# Searches for the settings that reach a return soonest, on seeds that no result uses: one learner, over rollouts,
# minibatches, epochs and learning rates. Tables have the env steps to that return.
set -euo pipefail
cd "$(dirname "$0")/../.."
python=.venv/bin/python
out=${1:-runs/search}
common=(system=central algorithm.anneal=false evaluation.episodes=128 seed=100 num_seeds=4 checkpoint.keep=1)

# name, target, settings
search() {
  local name=$1 target=$2
  shift 2
  [ -f "$out/$name/table.csv" ] || $python scripts/train.py -m "${common[@]}" "$@" hydra.sweep.dir="$out/$name"
  $python scripts/plot.py --sweep "$out/$name" --threshold "$target"
  mkdir -p results/learning/search
  cp "$out/$name/table.csv" "results/learning/search/$name.csv"
}

search breakout_long 5 env=gymnax/breakout_minatar algorithm.rollout_length=64,128 algorithm.minibatches=8 algorithm.epochs=4 \
  algorithm.learning_rate=2.5e-3,5e-3 total_steps=200_000 evaluation.points=20
search breakout_short 5 env=gymnax/breakout_minatar algorithm.rollout_length=16,32 algorithm.minibatches=4,8 algorithm.epochs=4 \
  algorithm.learning_rate=2.5e-3,5e-3 total_steps=200_000 evaluation.points=20
search asterix 1.5 env=gymnax/asterix_minatar algorithm.rollout_length=32,64 algorithm.minibatches=4,8 algorithm.epochs=4 \
  algorithm.learning_rate=2.5e-3,5e-3 total_steps=400_000 evaluation.points=20
search spaceinvaders 20 env=gymnax/spaceinvaders_minatar algorithm.rollout_length=32,64,128 algorithm.minibatches=8 \
  algorithm.epochs=4 algorithm.learning_rate=2.5e-3,5e-3 total_steps=400_000 evaluation.points=20
search pendulum -200 env=gymnax/pendulum algorithm.rollout_length=32,64 algorithm.minibatches=8,16 algorithm.epochs=4,8 \
  algorithm.learning_rate=2e-3 total_steps=200_000 evaluation.points=20
search freeway_high 20 env=gymnax/freeway_minatar algorithm.rollout_length=64,128 algorithm.minibatches=8 algorithm.epochs=4 \
  algorithm.learning_rate=2.5e-3,5e-3 total_steps=600_000 evaluation.points=12 evaluation.episodes=16
search freeway 20 env=gymnax/freeway_minatar algorithm.rollout_length=64,128 algorithm.minibatches=8 algorithm.epochs=4 \
  algorithm.learning_rate=1e-3 total_steps=600_000 evaluation.points=12 evaluation.episodes=16
search freeway_low 20 env=gymnax/freeway_minatar algorithm.rollout_length=64,128 algorithm.minibatches=8 algorithm.epochs=4 \
  algorithm.learning_rate=5e-4 total_steps=300_000 evaluation.points=6 evaluation.episodes=16
search freeway_short 20 env=gymnax/freeway_minatar algorithm.rollout_length=16,32 algorithm.minibatches=8 algorithm.epochs=4 \
  algorithm.learning_rate=2.5e-4,5e-4 total_steps=100_000 evaluation.points=8 evaluation.episodes=16
# Two seeds, to leave out what is far off.
search brax_hopper_epochs 500 env=brax/hopper algorithm.rollout_length=32 algorithm.minibatches=4,16 algorithm.epochs=4,10 \
  algorithm.learning_rate=3e-4 total_steps=400_000 evaluation.points=16 evaluation.episodes=32 num_seeds=2
search brax_hopper 500 env=brax/hopper algorithm.rollout_length=32 algorithm.minibatches=16,32 algorithm.epochs=10 \
  algorithm.learning_rate=3e-4,6e-4 total_steps=300_000 evaluation.points=12 evaluation.episodes=32
search inverted_pendulum 900 env=brax/inverted_pendulum algorithm.rollout_length=16,64 algorithm.minibatches=8 \
  algorithm.epochs=4 algorithm.learning_rate=3e-4,6e-4 total_steps=400_000 evaluation.points=16 evaluation.episodes=32
