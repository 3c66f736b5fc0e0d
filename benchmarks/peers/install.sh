#!/usr/bin/env bash
# Makes the virtual environments of the programs that `python scripts/benchmark.py peers` compares with:
#
#   bash benchmarks/peers/install.sh [DIR]      (default: peers/; then benchmark.py peers --peers DIR)
#
#   DIR/rejax  rejax and brax's PPO, on the very versions of JAX, gymnax and MuJoCo that this package is pinned to
#   DIR/torch  CleanRL (PyTorch), sbx and TRL; some 7 GB, as PyTorch's packages for Linux bring CUDA along
#
# CleanRL is files, not a package: they are taken from a clone of its repository, CLEANRL if that names one.
# PYTHON chooses the Python, 3.11 or later. What is there already is left as it is.
set -euo pipefail
cd "$(dirname "$0")/../.."

dir=${1:-peers}
python=${PYTHON:-python3}
commit=fe8d8a03

make() {  # NAME PACKAGES...
  local name=$1
  shift
  if [ ! -x "$dir/$name/bin/pip" ]; then "$python" -m venv "$dir/$name"; fi
  echo "Installing into $dir/$name: $*"
  "$dir/$name/bin/pip" install --quiet "$@"
}

mkdir -p "$dir"
make rejax rejax==0.1.3 gymnax==1.0.1 jax==0.11.2 flax==0.12.12 brax==0.14.2 mujoco==4.0.0 mujoco-mjx==3.17.0 six
make torch torch==2.13.0 sbx-rl==0.28.0 stable-baselines3==2.9.2 envpool==1.2.7 gymnasium==1.3.0 mujoco==4.0.0 \
  imageio==2.37.2 gym==0.26.2 tyro==1.0.17 tensorboard==2.21.0 \
  trl==1.16.0 transformers==5.24.0 datasets==5.2.0

clone=${CLEANRL:-$dir/cleanrl}
if [ ! -e "$clone" ]; then
  echo "Cloning CleanRL into $clone"
  git clone --quiet https://github.com/vwxyzjn/cleanrl "$clone"
fi
for file in ppo.py ppo_continuous_action.py ppo_atari_envpool.py; do
  git -C "$clone" show "$commit:cleanrl/$file" > "$dir/torch/$file"
done
echo "Done: python scripts/benchmark.py peers --peers $dir"
