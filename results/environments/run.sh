#!/usr/bin/env bash
# Every figure of this folder: trains into $1 (default runs/environments). Name tasks after it to train only these.
set -euo pipefail
cd "$(dirname "$0")/../.."
out=${1:-runs/environments}
python=${PYTHON:-.venv/bin/python}
shift || true
wanted=("$@")

# task, settings: five seeds with the task's own tuned file.
learn() {
  local task=$1 name=${1//\//-}
  shift
  if [ ${#wanted[@]} -gt 0 ] && [[ ! " ${wanted[*]} " == *" $task "* ]]; then return; fi
  # What is trained already is kept, so that an interrupted call can be repeated.
  if [ ! -f "$out/$name/summary.json" ]; then
    if [ -d "$out/$name/checkpoints" ]; then
      $python scripts/train.py resume="$out/$name"
    else
      $python scripts/train.py env="$task" seed=0 num_seeds=5 run.progress=false run.dir="$out/$name" "$@"
    fi
  fi
  mkdir -p "results/environments/$name"
  cp "$out/$name"/{summary.json,curve.png} "results/environments/$name"/
}

# Where passing data costs no time, the platform had none of that when the run was made.
learn envpool/hopper platform.rpc=0 platform.cache=0
learn envpool/walker2d total_steps=1_000_000 platform.rpc=0 platform.cache=0
learn brax/inverted_pendulum
learn gymnax/breakout_minatar
learn gymnax/asterix_minatar
learn brax/hopper total_steps=1_000_000
learn gymnax/spaceinvaders_minatar
learn gymnax/freeway_minatar evaluation.episodes=16
learn gymnax/pendulum
# A pass of the network per policy in flight is what truncation costs. Where networks are large, that is too much for two
# cores: one learner.
learn envpool/humanoid system=central algorithm.epochs=5 env.num_envs=16 total_steps=200_000
learn envpool/roadrunner system=central evaluation.points=3 total_steps=60_000
learn envpool/kungfumaster system=central evaluation.points=2 total_steps=40_000
