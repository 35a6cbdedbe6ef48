"""Who may keep services here, and how: systemd, sudo, lingering, containers."""

from __future__ import annotations

from kit.facts.base import Fact, number, words, yes

UP = ("initializing", "starting", "running", "degraded", "maintenance", "stopping")     # man systemctl


def _privilege(text: str) -> str:
    return text.strip() if text.strip() in ("root", "sudo", "sudo-password") else "none"


FACTS = (
    Fact("systemd", "[ -d /run/systemd/system ] && echo yes || echo no", yes),
    Fact("systemd_version", "systemctl --version 2>/dev/null | sed -n '1s/^systemd \\([0-9]*\\).*/\\1/p'", number),
    Fact("systemd_state", "[ -d /run/systemd/system ] && timeout 10 systemctl is-system-running 2>/dev/null || true",
         words),
    # Who is in no sudoers file is asked for a password all the same: what it is worth shows when it is given.
    Fact("privilege", """
if [ "$(id -u)" = 0 ]; then echo root
elif ! command -v sudo >/dev/null 2>&1; then echo none
elif said=$(LC_ALL=C timeout 10 sudo -n true 2>&1); then echo sudo
else case $said in *'password is required'*|*'authentication is required'*) echo sudo-password ;; *) echo none ;; esac
fi""", _privilege),
    Fact("linger", '[ -e "/var/lib/systemd/linger/$(id -un)" ] && echo yes || echo no', yes),
    Fact("user_manager", """
export XDG_RUNTIME_DIR="${XDG_RUNTIME_DIR:-/run/user/$(id -u)}"
timeout 10 systemctl --user is-system-running 2>/dev/null || true""", lambda t: t.strip() in UP),
    Fact("journal_readable", """
read -r id < /etc/machine-id
for d in /var/log/journal /run/log/journal; do
  [ -r "$d/$id/system.journal" ] && { echo yes; exit 0; }
done
echo no""", yes),
    Fact("pid1", "cat /proc/1/comm", words),
    Fact("container", """
if [ -e /.dockerenv ]; then echo docker
elif [ -e /run/.containerenv ]; then echo podman
else systemd-detect-virt -c 2>/dev/null || true
fi""", lambda t: "" if t.strip() == "none" else words(t)),
    Fact("docker", """
if ! command -v docker >/dev/null 2>&1; then echo no
elif [ -w /var/run/docker.sock ]; then echo usable
else echo there
fi""", lambda t: words(t).removeprefix("no")),
)
