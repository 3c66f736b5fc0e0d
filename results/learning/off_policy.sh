#!/usr/bin/env bash
# DQN and SAC on five seeds (0 to 4) with the settings that come with the package, one learner: trains into $1 (default
# runs/learning_off_policy), about a quarter of an hour on 2 cores. Settings were chosen on seeds 100 and above.
set -euo pipefail
cd "$(dirname "$0")/../.."
out=${1:-runs/learning_off_policy}
python=${PYTHON:-.venv/bin/python}

learn() {  # NAME OVERRIDES...: what is trained already is kept, so that an interrupted call can be repeated
  local name=$1
  shift
  if [ ! -f "$out/$name/summary.json" ]; then
    rm -rf "${out:?}/$name"
    $python scripts/train.py "$@" seed=0 num_seeds=5 evaluation.episodes=128 evaluation.points=20 run.progress=false \
      run.dir="$out/$name"
  fi
}

learn cartpole_dqn env=gymnax/cartpole algorithm=dqn
learn acrobot_dqn env=gymnax/acrobot algorithm=dqn
learn pendulum_sac env=gymnax/pendulum algorithm=sac
learn breakout_minatar_dqn env=gymnax/breakout_minatar algorithm=dqn
mkdir -p results/learning/off_policy
for run in "$out"/*_dqn "$out"/*_sac; do
  $python scripts/plot.py "$run" --out "results/learning/off_policy/$(basename "$run").png"
done
$python - "$out" > results/learning/off_policy/table.md <<'PYTHON'
import json
import sys
from pathlib import Path

print("# DQN and SAC\n\n| run | env steps | return | seeds |\n|---|---|---|---|")
for path in sorted(Path(sys.argv[1]).glob("*/summary.json")):
    run = json.loads(path.read_text())
    returns = f"{run['eval_return_mean']:.1f} ± {run['eval_return_ci95']:.1f}"
    print(f"| {path.parent.name} | {run['env_steps']:,.0f} | {returns} | 5 |")
PYTHON
