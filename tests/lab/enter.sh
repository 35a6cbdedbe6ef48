#!/usr/bin/env bash
# Two Debian hosts, alpha and beta, and the tests, in one throw-away set of namespaces.
#
#     tests/lab/enter.sh [PYTEST-ARGUMENT...]      the lab's tests
#     tests/lab/enter.sh -- COMMAND...             another command beside the running hosts, e.g. bash
#
# Root and Linux only. Whatever is missing is an error, never a skip. All that runs is below one process:
# if this script ends, in whatever way, the kernel ends the rest, and the mounts and the network go with it.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
project=$(cd "$here/../.." && pwd)
fail() { echo "lab: $*" >&2; exit 1; }

[ "$(uname -s)" = Linux ] || fail "needs Linux; this is $(uname -s)"
[ "$(id -u)" = 0 ] || fail "needs root: it makes namespaces and boots two hosts in them. Try: sudo make test-lab"
[ -x "$project/.venv/bin/python" ] || fail "no .venv yet, and nothing can be installed inside. Try: make test-lab"
"$here/install.sh" || fail "a package that it needs cannot be installed"
base=$("$here/build.sh") || fail "the hosts' file system cannot be built"

# Each host gets a cgroup of its own, in cgroup2 and, where that exists, in systemd's named hierarchy.
mapfile -t hierarchies < <(
    awk '$3 == "cgroup2" || ($3 == "cgroup" && $4 ~ /name=systemd/) {print $2}' /proc/self/mounts)
[ ${#hierarchies[@]} -gt 0 ] || fail "no cgroup2 is mounted on this machine"
name=specbook-lab-$$

remove_cgroups() {      # NAME: what is still in use stays
    local top
    for top in "${hierarchies[@]}"; do
        [ ! -d "$top/$1" ] || find "$top/$1" -depth -type d -exec rmdir {} + 2>/dev/null || true
    done
}

processes() { find "${hierarchies[@]/%//$name}" -name cgroup.procs -exec cat {} + 2>/dev/null || true; }

leftovers() {           # what there still is of this lab, one thing a line
    local top
    for top in "${hierarchies[@]}"; do
        [ ! -d "$top/$name" ] || echo "cgroup $top/$name, processes: $(find "$top/$name" -name cgroup.procs \
            -exec cat {} + 2>/dev/null | tr '\n' ' ')"
    done
    grep -F -e "$base" -e /run/lab /proc/self/mountinfo | sed 's/^/mount /' || true
}

tidy() {                # the kernel takes a moment to end everything
    [ -n "$result" ] || processes | xargs -r kill -9 2>/dev/null || true       # we were told to stop
    for _ in {1..50}; do
        remove_cgroups "$name"
        [ -n "$(leftovers)" ] || return 0
        sleep 0.1
    done
    echo "lab: left behind:" >&2
    leftovers >&2
    return 1
}

for stale in $(cd "${hierarchies[0]}" && ls -d specbook-lab-* 2>/dev/null); do     # of one that was killed
    kill -0 "${stale##*-}" 2>/dev/null || remove_cgroups "$stale"
done

result=
trap 'tidy || exit 1' EXIT
(
    for top in "${hierarchies[@]}"; do
        mkdir "$top/$name" && echo 0 >"$top/$name/cgroup.procs" || fail "no cgroup can be made in $top"
    done
    export LAB_CGROUPS
    LAB_CGROUPS=$(printf "%s/$name\n" "${hierarchies[@]}")
    exec setpriv --pdeathsig KILL \
        unshare --net --mount --propagation private --pid --fork --kill-child --mount-proc \
        "$here/inside.sh" "$project" "$base" "$@"
) && result=0 || result=$?
exit $result
