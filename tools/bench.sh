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

if [ -n "$name" ]; then
  benches=("bench/$name.py")
else
  shopt -s nullglob
  benches=(bench/[a-z]*.py)
fi
SUDO=()
[ "$(id -u)" -eq 0 ] || SUDO=(sudo -E)

failed=0
for bench in "${benches[@]}"; do
  if [ ! -f "$bench" ]; then
    printf 'error: there is no %s; there are: %s\n' "$bench" "$(cd bench && echo [a-z]*.py)" >&2
    exit 2
  fi
  [ "${#json[@]}" -gt 0 ] || printf '\n== %s\n' "$bench"
  inside=()
  if grep -qx '# needs: libvirtd' "$bench"; then
    inside=("${SUDO[@]}" .venv/bin/python -m vmgpu.lab.libvirtd run --)
  fi
  "${inside[@]}" .venv/bin/python "$bench" "${json[@]}" || failed=1
done
exit "$failed"
