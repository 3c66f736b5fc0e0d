#!/usr/bin/env bash
# Every figure of this folder: trains into $1 (default runs/learning), about half an hour on 2 cores.
# Passing data costs no time here: the platform had none of that when these runs were made.
# Learning rates were chosen per rule on seeds 100 and above (tune.sh), the results here are of seeds 0 to 4.
set -euo pipefail
cd "$(dirname "$0")/../.."
out=${1:-runs/learning}
python=.venv/bin/python

# task, settings, then system:learning rate ...
learn() {
  local task=$1 settings=$2 point=0 pair
  shift 2
  for pair in "$@"; do
    # What is trained already is kept, so that an interrupted call can be repeated.
    if [ ! -f "$out/$task/$point/summary.json" ]; then
      rm -rf "${out:?}/$task/$point"
      # shellcheck disable=SC2086  # settings are several words
      $python scripts/train.py env=$task system="${pair%:*}" algorithm.learning_rate="${pair#*:}" $settings \
        platform.rpc=0 platform.cache=0 \
        seed=0 num_seeds=5 run.progress=false run.dir="$out/$task/$point"
    fi
    point=$((point + 1))
  done
  $python scripts/plot.py --sweep "$out/$task"
  mkdir -p results/learning/"${task#*/}"
  cp "$out/$task"/{table.md,table.csv,curves.png} results/learning/"${task#*/}"/
}

learn gymnax/cartpole "algorithm.anneal=false env.normalize_reward=false" \
  allreduce:3e-3 central:3e-4 async:1e-3 softsync:3e-3 ssp:3e-4 stellaris:3e-3 artifact:3e-4
learn gymnax/acrobot algorithm.anneal=false \
  allreduce:1e-2 central:1e-2 async:3e-4 softsync:1e-2 ssp:1e-3 stellaris:3e-3 artifact:3e-4
learn brax/inverted_pendulum \
  "algorithm.anneal=false algorithm.gamma=0.97 env.normalize_reward=false total_steps=500_000" allreduce:3e-3 stellaris:1e-3
learn gymnax/breakout_minatar "total_steps=1e6 algorithm.rollout_length=128" allreduce:1e-2 stellaris:3e-3
