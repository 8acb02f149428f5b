#!/usr/bin/env bash
# Installs what vmgpu needs on Debian 12, Debian 13 or Ubuntu 24.04: packages, then .venv, then the guest images.
# Each part is skipped when it is there, so that a second run needs no network. Speaks on stderr only.
#   tools/setup.sh [packages] [python] [images]      all three when none is named
set -euo pipefail
cd "$(dirname "$0")/.."

REQUIRED=(
  # guests
  qemu-system-x86 qemu-utils ovmf libvirt-daemon-system libvirt-clients dnsmasq-base iptables iproute2 dmidecode
  mdevctl pciutils netcat-openbsd openssh-client openssh-server libguestfs-tools
  # their images
  mmdebstrap grub-common grub-efi-amd64-bin mtools dosfstools gdisk e2fsprogs cpio zstd xz-utils busybox-static
  dropbear-bin
  # libvirt-python is compiled
  libvirt-dev pkg-config gcc python3-dev python3-venv ca-certificates
  # tests
  postgresql fuse3
)
# Names that only some of the releases have: Debian 13 split libvirt and libguestfs into more packages.
OPTIONAL=(
  libvirt-daemon-driver-qemu libvirt-daemon-driver-network libvirt-daemon-driver-nodedev
  libvirt-daemon-driver-storage libvirt-daemon-driver-interface libvirt-daemon-driver-nwfilter
  libvirt-daemon-driver-secret libvirt-daemon-log guestfs-tools guestfish
)
SUDO=()
[ "$(id -u)" -eq 0 ] || SUDO=(sudo)

say() { printf 'setup: %s\n' "$*" >&2; }
fail() { printf 'error: %s\n' "$1" >&2; [ -z "${2:-}" ] || printf '%s\n' "$2" >&2; exit 1; }

# Run quietly; show the end of what it said only when it fails.
quietly() {
  local log; log=$(mktemp)
  if ! "$@" >"$log" 2>&1 </dev/null; then
    tail -n 25 "$log" >&2; rm -f "$log"
    fail "this did not work: $*"
  fi
  rm -f "$log"
}

missing_packages() {
  local have name
  have=$(dpkg-query -W -f '${db:Status-Status} ${Package}\n' 2>/dev/null | sed -n 's/^installed //p')
  for name in "$@"; do grep -qxF -- "$name" <<<"$have" || printf '%s\n' "$name"; done
}

install_packages() {
  . /etc/os-release
  case "$ID:${VERSION_CODENAME:-}" in
    debian:bookworm | debian:trixie) REQUIRED+=(chromium); kernel=linux-image-cloud-amd64 ;;
    ubuntu:noble) kernel=linux-image-virtual ;;  # its Chromium is a snap, which needs a service manager
    *) fail "${PRETTY_NAME:-This system} is not one that vmgpu knows." "Debian 12, Debian 13 and Ubuntu 24.04 are." ;;
  esac
  # libguestfs boots its appliance with a kernel of the machine; a container has none.
  compgen -G '/boot/vmlinuz-*' >/dev/null || REQUIRED+=("$kernel")

  local missing optional=() name
  mapfile -t missing < <(missing_packages "${REQUIRED[@]}")
  [ "${#missing[@]}" -gt 0 ] || return 0
  [ "${#SUDO[@]}" -eq 0 ] || command -v sudo >/dev/null || fail "Packages are missing and there is no sudo." "Run as root."
  say "installing ${#missing[@]} packages: ${missing[*]}"
  quietly "${SUDO[@]}" apt-get -qq update
  for name in "${OPTIONAL[@]}"; do
    [ -z "$(apt-cache madison "$name" 2>/dev/null)" ] || optional+=("$name")
  done
  # Packages start their services unless this file says no; nothing shall run that nobody asked for.
  local policy=/usr/sbin/policy-rc.d
  if [ ! -e "$policy" ]; then
    trap '"${SUDO[@]}" rm -f /usr/sbin/policy-rc.d' EXIT
    printf '#!/bin/sh\nexit 101\n' | "${SUDO[@]}" tee "$policy" >/dev/null
    "${SUDO[@]}" chmod 755 "$policy"
  fi
  quietly "${SUDO[@]}" env DEBIAN_FRONTEND=noninteractive NEEDRESTART_MODE=l \
    apt-get -qq -o Dpkg::Use-Pty=0 -o Dpkg::Options::=--force-confold install -y --no-install-recommends \
    "${missing[@]}" "${optional[@]}"
}

# A Python that can make environments and compile: the system's has its headers from apt, others bring theirs.
choose_python() {
  local candidate
  for candidate in ${PYTHON:-} /usr/bin/python3 python3 python3.13 python3.12 python3.11; do
    if "$candidate" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
      printf '%s\n' "$candidate"
      return
    fi
  done
  fail "No Python 3.11 or newer with the venv module." "Install python3 and python3-venv, or set PYTHON."
}

install_python() {
  local stamp=.venv/.vmgpu-stamp wanted
  wanted=$(cat requirements.lock pyproject.toml | sha256sum | cut -d' ' -f1)
  if [ -x .venv/bin/vmgpu ] && [ "$(cat "$stamp" 2>/dev/null)" = "$wanted" ] && .venv/bin/python -c '' 2>/dev/null; then
    return
  fi
  local python; python=$(choose_python)
  say "filling .venv from requirements.lock"
  .venv/bin/python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || quietly "$python" -m venv --clear .venv
  quietly .venv/bin/python -m pip install --quiet --require-hashes -r requirements.lock
  quietly .venv/bin/python -m pip install --quiet --no-deps -e .
  printf '%s\n' "$wanted" >"$stamp"
}

build_images() {
  local cache=${VMGPU_CACHE_DIR:-/var/cache/vmgpu}
  # QEMU runs as a user of its own and must be able to read them; the build itself needs root.
  "${SUDO[@]}" env VMGPU_CACHE_DIR="$cache" PYTHONDONTWRITEBYTECODE=1 .venv/bin/python -m vmgpu.lab.tiny >/dev/null </dev/null
}

parts=("$@")
[ "${#parts[@]}" -gt 0 ] || parts=(packages python images)
for part in "${parts[@]}"; do
  case "$part" in
    packages) install_packages ;;
    python) install_python ;;
    images) build_images ;;
    *) fail "tools/setup.sh has no part called $part" ;;
  esac
done
