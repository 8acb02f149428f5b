#!/usr/bin/env bash
# Runs bench/NAME.py, or all of them. A bench with the line `# needs: libvirtd` gets a libvirtd of its own.
#   tools/bench.sh [NAME] [--json]
set -euo pipefail
cd "$(dirname "$0")/.."

name='' json=()
for argument in "$@"; do
  case "$argument" in
    --json) json=(--json) ;;
    *) name=${argument%.py} ;;
  esac
done

# What can be run; the other files are shared by these.
mapfile -t all < <(grep -lxF 'if __name__ == "__main__":' bench/*.py)
benches=("${all[@]}")
[ -z "$name" ] || benches=("bench/$name.py")
SUDO=()
[ "$(id -u)" -eq 0 ] || SUDO=(sudo -E)

failed=0
for bench in "${benches[@]}"; do
  if [ ! -f "$bench" ]; then
    printf 'error: there is no %s; there are: %s\n' "$bench" "${all[*]##*/}" >&2
    exit 2
  fi
  [ "${#json[@]}" -gt 0 ] || printf '\n== %s\n' "$bench"
  inside=()
  if grep -qx '# needs: libvirtd' "$bench"; then
    inside=("${SUDO[@]}" .venv/bin/python -m vmgpu.lab.namespace --)
  fi
  "${inside[@]}" .venv/bin/python "$bench" "${json[@]}" || failed=1
done
exit "$failed"
