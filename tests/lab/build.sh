#!/usr/bin/env bash
# The file system that both hosts start from, made once in .cache/lab; prints its folder.
# Made again when this file, guest/ or the machine's Debian release changed.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
cache=$(cd "$here/../.." && pwd)/.cache/lab
fail() { echo "lab: $*" >&2; exit 1; }

packages=systemd,systemd-sysv,dbus,libpam-systemd,openssh-server,sudo,python3,python3-venv
packages+=,iproute2,procps,ca-certificates,libfaketime
masked=(apt-daily.timer apt-daily-upgrade.timer e2scrub_all.timer fstrim.timer dpkg-db-backup.timer
        systemd-networkd.service systemd-resolved.service getty.target console-getty.service)

# The archives that this machine itself installs from: "deb URI SUITE main", one a line.
archives() {
    apt-get indextargets --format 'deb $(REPO_URI) $(RELEASE) main' \
        'Created-By: Packages' 'Origin: Debian' 'Component: main' | sort -u
}

users() {       # ROOT. Keys come with each run: a key in the cache would not be throw-away
    chroot "$1" /bin/sh -euc '
        for user in deploy pat guest; do useradd -m -s /bin/bash "$user"; done
        printf "%s\n" "pat:$1" | chpasswd
        umask 0227
        echo "deploy ALL=(ALL:ALL) NOPASSWD: ALL" > /etc/sudoers.d/deploy
        echo "pat ALL=(ALL:ALL) ALL" > /etc/sudoers.d/pat
        visudo -cq' sh "$(cat "$here/pat-password")"
}

make_base() {   # ROOT
    local root=$1 found options
    found=$(archives)
    [ -n "$found" ] || { apt-get update -qq >&2; found=$(archives); }
    [ -n "$found" ] || fail "apt knows no Debian archive on this machine; the lab is made from its own apt sources"
    mapfile -t found <<<"$found"
    options=$(mktemp)                   # a proxy or a frozen mirror that this machine's apt was told of
    apt-config dump | grep -E '^Acquire::(https?::Proxy|Check-Valid-Until|Check-Date) ' >"$options" || true
    mmdebstrap --quiet --mode=root --variant=minbase --format=directory --include="$packages" \
        --aptopt="$options" --dpkgopt=force-unsafe-io --dpkgopt='path-exclude=/usr/share/man/*' \
        --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-exclude=/usr/share/locale/*' \
        "$release" "$root" "${found[@]}" >&2
    rm -f "$options" "$root"/etc/apt/apt.conf.d/99mmdebstrap "$root"/etc/ssh/ssh_host_* "$root"/etc/resolv.conf
    tar -C "$here/guest" --owner=0 --group=0 --mode=u+rw,go+r-w,a+X -cf - . | tar -C "$root" --no-overwrite-dir -xf -
    users "$root"
    mkdir -p "$root"/var/log/journal "$root"/etc/systemd/system/sysinit.target.wants
    ln -s ../lab-net.service "$root"/etc/systemd/system/sysinit.target.wants/
    for unit in "${masked[@]}"; do ln -sf /dev/null "$root/etc/systemd/system/$unit"; done
}

release=$(. /etc/os-release && echo "${VERSION_CODENAME:-}")
recipe=$({ echo "$release"; tar -C "$here" --sort=name --mtime=@0 --owner=0 --group=0 --mode=a=rX \
           -cf - build.sh pat-password guest; } | sha256sum | cut -c1-12)
mkdir -p "$cache"
exec 9>"$cache/lock"
flock 9                                 # two runs at once build it once
if [ ! -d "$cache/base-$recipe" ]; then
    echo "lab: building the hosts' file system, about two minutes" >&2
    rm -rf --one-file-system "$cache/making"
    make_base "$cache/making"
    mv "$cache/making" "$cache/base-$recipe"
fi
echo "$cache/base-$recipe"
