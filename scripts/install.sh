#!/usr/bin/env bash
# Makes .venv, or repairs one whose installation was interrupted, with the pinned packages of constraints/.
# PYTHON chooses the Python; else the first that runs of 3.12, 3.13, 3.11, 3.14 and python3, from PATH or pyenv.
set -euo pipefail
cd "$(dirname "$0")/.."

# A name in PATH may be a shim that fails, and some systems ship Python without venv: only running it tells.
suitable() {
  "$1" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1
}

# A few lines out of pip's many: large downloads and every 25th package.
show_progress() {
  local line found=0
  while read -r line; do
    case $line in
      Collecting*|"Requirement already satisfied"*)
        found=$((found + 1))
        if [ $((found % 25)) -eq 0 ]; then echo "  $found packages found"; fi ;;
      Downloading*[0-9][0-9]" MB)"|Downloading*[0-9][0-9].[0-9]" MB)") echo "  downloading ${line#Downloading }" ;;
      "Installing collected packages"*) echo "  installing" ;;
    esac
  done
}

find_python() {
  local name path
  for name in ${PYTHON:-python3.12 python3.13 python3.11 python3.14 python3}; do
    for path in $(type -ap "$name") "$HOME"/.pyenv/versions/"${name#python}".*/bin/python; do
      if suitable "$path"; then echo "$path"; return; fi
    done
  done
  echo "No suitable Python found: install Python 3.11 to 3.14 with venv, or name one with 'make PYTHON=/path/to/python'." >&2
  return 1
}

if ! { [ -z "${PYTHON:-}" ] && suitable .venv/bin/python && .venv/bin/python -m pip --version >/dev/null 2>&1; }; then
  python=$(find_python)
  echo "Making .venv with $("$python" --version) ($python)"
  "$python" -m venv --clear .venv
fi

version=$(.venv/bin/python -c 'import sys; print("%d%d" % sys.version_info[:2])')
constraints=constraints/py$version.txt
if [ ! -f "$constraints" ]; then
  echo "No pinned versions for this Python: installing the newest that pyproject.toml allows"
  constraints=/dev/null
fi

# pip writes INSTALLER last: a package without it was cut short, and pip would take it for installed.
for package in .venv/lib/python3.*/site-packages/*.dist-info; do
  [ -f "$package/INSTALLER" ] || rm -rf "$package"
done

echo "Installing stellaris-jax and its pinned packages; the first time takes a few minutes (log: .venv/install.log)"
if ! .venv/bin/python -m pip install --progress-bar off --disable-pip-version-check \
    -c "$constraints" -e '.[all,dev]' 2>&1 | tee .venv/install.log | show_progress; then
  tail -n 20 .venv/install.log >&2
  echo "Installation failed; call make again to continue it." >&2
  exit 1
fi
touch .venv/.installed
echo "Ready: .venv with $(.venv/bin/python --version)"
