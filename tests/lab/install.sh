#!/usr/bin/env bash
# The Debian packages that the lab needs on the machine itself, where they are missing.
set -euo pipefail

needed=(systemd-container mmdebstrap openssh-client iptables iproute2)
missing=()
for package in "${needed[@]}"; do
    dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null | grep -qx installed || missing+=("$package")
done
[ ${#missing[@]} -gt 0 ] || exit 0

echo "lab: installing ${missing[*]}" >&2
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq >&2
apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
