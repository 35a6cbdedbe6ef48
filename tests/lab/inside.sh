#!/usr/bin/env bash
# The lab's process 1, started by enter.sh: boots alpha and beta, then runs the tests (or "-- COMMAND") beside them.
set -euo pipefail

project=$1 base=$2
shift 2
hosts=(alpha beta) users=(root deploy pat guest)
boot_s=90
export SPECBOOK_LAB=/run/lab HOME=/run/lab/home TMPDIR=/run/lab/tmp
unset SSH_AUTH_SOCK

fail() { echo "lab: $*" >&2; exit 1; }

address() { case $1 in alpha) echo 10.99.0.11 ;; beta) echo 10.99.0.12 ;; esac; }

enter_cgroup() {        # NAME: of one host; two in the same one collide
    local top
    while read -r top; do
        mkdir -p "$top/$1"
        echo 0 >"$top/$1/cgroup.procs"
    done <<<"$LAB_CGROUPS"
}

network() {             # the hosts and we on one bridge; no route leads out of it
    ip link set lo up
    ip link add br0 type bridge
    ip addr add 10.99.0.1/24 dev br0
    ip link set br0 up
}

client() {              # a throw-away HOME: kit.connect("alpha") finds config, key and known_hosts there
    mkdir -p -m 700 "$HOME/.ssh" "$TMPDIR"
    ssh-keygen -q -t ed25519 -N '' -C lab -f "$HOME/.ssh/id_ed25519"
    local host user number=0
    for host in "${hosts[@]}"; do
        number=$((number + 1))
        for user in "${users[@]}"; do
            printf 'Host %s-%s%s\n  HostName %s\n  User %s\n' "$host" "$user" \
                "$([ "$user" != deploy ] || echo " $host")" "$(address "$host")" "$user"
        done
        printf 'Host %s-slow\n  HostName 127.0.0.1\n  Port %s\n  User deploy\n  HostKeyAlias %s\n' \
            "$host" "221$number" "$(address "$host")"           # through a proxy, where a test starts one
    done >"$HOME/.ssh/config"
    cat >>"$HOME/.ssh/config" <<END
Host *
  IdentityFile $HOME/.ssh/id_ed25519
  IdentitiesOnly yes
  UserKnownHostsFile $HOME/.ssh/known_hosts
  GlobalKnownHostsFile /dev/null
  StrictHostKeyChecking yes
  BatchMode yes
END
}

prepare() {             # NAME: a fresh overlay over the base, of limited size, so that a disk can be full
    local top=$SPECBOOK_LAB/$1 user home
    local root=$top/root number=${1:0:1}
    mkdir "$top"
    : >"$top.log"
    mount -t tmpfs -o size=512m,mode=755 tmpfs "$top"
    mkdir "$top/upper" "$top/work" "$root"
    mount -t overlay overlay -o "lowerdir=$SPECBOOK_LAB/base,upperdir=$top/upper,workdir=$top/work" "$root"
    echo "$1" >"$root/etc/hostname"
    tr -d - </proc/sys/kernel/random/uuid >"$root/etc/machine-id"
    printf 'ADDRESS=%s\nMAC=02:00:00:00:00:%02x\n' "$(address "$1")" "'$number" >"$root/etc/lab-net"
    { echo "127.0.0.1 localhost"; echo "127.0.1.1 $1"
      for other in "${hosts[@]}"; do echo "$(address "$other") $other"; done; } >"$root/etc/hosts"
    ssh-keygen -q -t ed25519 -N '' -C "$1" -f "$root/etc/ssh/ssh_host_ed25519_key"
    echo "$(address "$1") $(cut -d' ' -f1,2 "$root/etc/ssh/ssh_host_ed25519_key.pub")" >>"$HOME/.ssh/known_hosts"
    for user in "${users[@]}"; do
        home=$(chroot "$root" sh -c "echo ~$user")
        install -d -m 700 "$root$home/.ssh"
        install -m 600 "$HOME/.ssh/id_ed25519.pub" "$root$home/.ssh/authorized_keys"
        chroot "$root" chown -R "$user:" "$home/.ssh"
    done
}

boot() {                # NAME: for as long as it asks for a reboot (133)
    local result
    while :; do
        result=0
        (
            enter_cgroup "$1"
            export SYSTEMD_NSPAWN_UNIFIED_HIERARCHY=1 SYSTEMD_NSPAWN_TMPFS_TMP=0
            exec systemd-nspawn --quiet --directory="$SPECBOOK_LAB/$1/root" --machine="$1" --boot --register=no \
                --keep-unit --console=pipe --network-bridge=br0 --resolv-conf=off --timezone=off --link-journal=no
        ) </dev/null >>"$SPECBOOK_LAB/$1.log" 2>&1 || result=$?
        [ $result = 133 ] || break
    done
    echo "lab: $1 is off ($result)" >>"$SPECBOOK_LAB/$1.log"
}

wait_for() {            # NAME: until it is up by ssh; `running`, or `degraded` and the tests say by what
    local said until=$((SECONDS + boot_s))
    while [ $SECONDS -lt $until ] && ! grep -q "^lab: $1 is off" "$SPECBOOK_LAB/$1.log"; do
        said=$(ssh -F "$HOME/.ssh/config" -o ConnectTimeout=2 "$1-root" systemctl is-system-running --wait 2>&1) || true
        case $said in *running | *degraded) return 0 ;; esac
        sleep 0.1
    done
    tail -n 30 "$SPECBOOK_LAB/$1.log" >&2
    fail "$1 did not start within $boot_s s; its console is above. ssh said: ${said:-nothing}"
}

mount -t tmpfs -o mode=755 tmpfs /run           # what nspawn keeps there goes with it, too
mkdir -p "$SPECBOOK_LAB/base"
mount --bind "$base" "$SPECBOOK_LAB/base"       # its own path may have a ":" in it
network
client
for host in "${hosts[@]}"; do prepare "$host"; done
for host in "${hosts[@]}"; do boot "$host" & done
for host in "${hosts[@]}"; do wait_for "$host"; done
echo "lab: ${hosts[*]} are up after $SECONDS s" >&2

cd "$project"
if [ "${1:-}" = -- ]; then
    shift
    "$@"
else
    .venv/bin/python -m pytest tests/lab -p no:cacheprovider "$@"
fi
