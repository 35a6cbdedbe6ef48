"""The lab itself: that its hosts are what the other tests take them for, and that faults are real and end."""

import subprocess
import time
from contextlib import suppress

import pytest
from machines import ADDRESSES, SSH_CONFIG, Machine, changes, eventually

from kit.command import Command, sh
from kit.errors import ConnectError, HostKeyError, LinkLost, NoSpace
from kit.host import connect

ALPHA, BETA = Machine("alpha"), Machine("beta")
BOTH = pytest.mark.parametrize("machine", [ALPHA, BETA], ids=lambda m: m.name)


@BOTH
def test_a_host_runs_systemd_without_a_failed_unit(machine):
    failed = machine.shell("systemctl list-units --failed --plain --no-legend")
    assert (machine.ssh("systemctl is-system-running", check=False).stdout, failed) == ("running\n", "")
    assert machine.shell("cat /proc/1/comm") == "systemd\n"


def test_the_two_differ_in_all_that_names_a_host():
    asked = "cat /etc/machine-id /etc/ssh/ssh_host_ed25519_key.pub /proc/sys/kernel/random/boot_id; uname -n"
    alpha, beta = (m.shell(asked).splitlines() for m in (ALPHA, BETA))
    assert len(alpha) == len(beta) == 4
    assert not set(alpha) & set(beta)
    assert (alpha[3], beta[3]) == ("alpha", "beta")


def test_the_hosts_see_each_other_and_nothing_else():
    banner = "import socket; print(socket.create_connection(('beta', 22), 5).recv(9).decode())"
    assert ALPHA.shell('python3 -c "$1"', banner) == "SSH-2.0-O\n"
    for machine in (ALPHA, BETA):
        assert machine.shell("ip route").split()[0] == "10.99.0.0/24"
        assert machine.shell("ip route show default") == ""


def test_a_unit_is_started_read_in_the_journal_and_stopped_by_plain_ssh():
    unit = "[Service]\nExecStart=/bin/sh -c 'echo hello from the unit; exec sleep 300'\n"
    ALPHA.ssh("cat >/etc/systemd/system/lab-try.service && systemctl daemon-reload && systemctl start lab-try",
              user="root", stdin=unit)
    show = "systemctl show --property ActiveState,SubState --value lab-try"
    assert ALPHA.ssh(show).stdout == "active\nrunning\n"
    assert eventually(lambda: "hello from the unit" in
                      ALPHA.ssh("journalctl -u lab-try -o cat", user="root").stdout)
    ALPHA.ssh("systemctl stop lab-try && rm /etc/systemd/system/lab-try.service && systemctl daemon-reload",
              user="root")
    assert ALPHA.ssh(show).stdout == "inactive\ndead\n"


def test_a_user_without_linger_has_a_user_manager_while_logged_in():
    state = BETA.ssh("systemctl --user is-system-running --wait; loginctl show-user guest --property Linger", "guest")
    assert state.stdout == "running\nLinger=no\n"


def test_the_kit_connects_with_strict_keys(alpha, beta, connect_as, tmp_path):
    assert [h.run(sh("uname -n; id -un")).text for h in (alpha, beta)] == ["alpha\ndeploy\n", "beta\ndeploy\n"]
    for user in ("root", "pat", "guest"):
        assert connect_as(user, "beta").run(sh("id -un")).text == f"{user}\n"
    other = tmp_path / "config"         # beta's key under alpha's address
    other.write_text(f"Host alpha\n  HostKeyAlias {ADDRESSES['beta']}\n{SSH_CONFIG.read_text()}")
    with pytest.raises(HostKeyError, match="changed"):
        connect("alpha", ssh_config=other)


def test_sudo_is_free_for_deploy_asks_pat_and_refuses_guest(pat_password):
    def sudo(user, *, password=None):
        options = "-n" if password is None else "-S -p ''"
        return ALPHA.ssh(f"sudo {options} id -u", user, check=False, stdin=f"{password}\n")
    assert sudo("deploy").stdout == "0\n"
    assert (sudo("pat").returncode, sudo("pat").stderr) == (1, "sudo: a password is required\n")
    assert sudo("pat", password=pat_password).stdout == "0\n"
    assert sudo("pat", password="wrong").returncode == 1
    assert sudo("guest").returncode == 1


def test_deploy_does_not_see_the_journal_of_the_system():
    count = "journalctl --quiet --output cat _PID=1 | wc -l"
    assert int(ALPHA.ssh(count, "root").stdout) > 0
    assert ALPHA.ssh(f"{count}; id -Gn").stdout == "0\ndeploy\n"


def test_a_reboot_is_real_and_keeps_journal_and_files(beta, reboot, shell):
    boot_id = "cat /proc/sys/kernel/random/boot_id"
    beta.write(f"{beta.root}/kept", b"kept")
    shell(beta, "logger before the reboot; journalctl --sync")
    before = shell(beta, boot_id)
    reboot(beta)
    assert beta.run(Command(("cat", "/proc/sys/kernel/random/boot_id"))).text == shell(beta, boot_id) != before
    assert "before the reboot" in shell(beta, "journalctl --boot -1 --output cat")
    assert "before the reboot" not in shell(beta, "journalctl --boot 0 --output cat")
    assert beta.read(f"{beta.root}/kept") == b"kept"
    shell(beta, 'rm -r "$1"', beta.root)


def test_a_cut_host_is_silent_until_healed(beta, cut, heal, shell):
    cut(beta)
    assert BETA.ssh("true", check=False).returncode == 255
    assert shell(beta, "echo still reached from outside") == "still reached from outside\n"
    assert ALPHA.ssh("true").returncode == 0
    heal(beta)
    assert BETA.ssh("echo back").stdout == "back\n"
    assert beta.run(sh("echo back")).text == "back\n"


def test_a_cut_ends_by_itself(beta, cut, shell):
    rules = "iptables-save 2>/dev/null; cat /proc/net/dev"
    cut(beta, seconds=0.3)
    assert eventually(lambda: BETA.ssh("echo back", check=False).stdout == "back\n"), shell(beta, rules)


def test_killed_sessions_break_the_link_and_the_listener_lives(alpha, kill_sshd_sessions):
    with pytest.raises(LinkLost):
        with alpha.stream(Command(("sh", "-c", "while :; do echo tick; sleep 0.02; done"), limit_s=None)) as chunks:
            next(chunks)
            kill_sshd_sessions(alpha)
            for _ in chunks:
                pass
    assert alpha.run(sh("echo again")).text == "again\n"


def test_a_full_disk_is_full_for_root_too_and_only_there(alpha, beta, connect_as, fill_disk, free_disk):
    fill_disk(alpha)
    for host in (alpha, connect_as("root", "alpha")):
        with pytest.raises(NoSpace):
            host.write("/tmp/more", b"x" * 100_000)
    beta.write("/tmp/more", b"x" * 100_000)
    free_disk(alpha)
    alpha.write("/tmp/more", b"x" * 100_000)
    for host in (alpha, beta):
        host.run(Command(("rm", "/tmp/more"))).check()


def test_a_disk_can_keep_some_room(alpha, fill_disk):
    fill_disk(alpha, leave=1 << 20)
    left = int(alpha.run(sh("df --output=avail -B1 / | tail -n 1")).text)
    assert 0 < left <= 1 << 20


def test_a_snapshot_shows_what_was_left_and_nothing_else(alpha, snapshot, shell):
    before = snapshot(alpha)
    assert changes(before, snapshot(alpha)) == []
    shell(alpha, """
        printf '[Service]\\nExecStart=/usr/bin/python3 -m http.server 8123 --bind 127.0.0.1\\n' \
            >/etc/systemd/system/lab-left.service
        chmod 700 /opt; touch /var/lib/systemd/linger/guest; systemctl start lab-left""")
    assert eventually(lambda: "tcp 127.0.0.1:8123" in snapshot(alpha)["ports"])
    try:
        assert changes(before, snapshot(alpha)) == [
            "files: + /etc/systemd/system/lab-left.service", "files: ~ /opt",
            "files: + /var/lib/systemd/linger/guest",
            "units: + lab-left.service", "units: + loaded lab-left.service",
            "processes: + /usr/bin/python3 -m http.server 8123 --bind 127.0.0.1", "ports: + tcp 127.0.0.1:8123"]
    finally:
        shell(alpha, """systemctl stop lab-left; rm /etc/systemd/system/lab-left.service /var/lib/systemd/linger/guest
                        chmod 755 /opt; systemctl daemon-reload""")
    assert changes(before, snapshot(alpha)) == []


def test_a_slow_way_delays_each_way_and_is_the_same_host(proxy):
    with_delay = proxy("alpha", delay_s=0.1)
    host = connect("alpha-slow")
    begin = time.monotonic()
    assert host.run(sh("uname -n")).text == "alpha\n"
    assert time.monotonic() - begin >= 0.2
    with_delay.delay_s = 0.0
    host.close()


def test_a_silent_way_swallows_and_a_reset_ends_it(proxy):
    way = proxy("beta")
    host = connect("beta-slow")
    assert host.run(sh("echo one")).text == "one\n"
    with pytest.raises(LinkLost):
        with host.stream(Command(("sh", "-c", "while :; do echo tick; sleep 0.02; done"), limit_s=None)) as chunks:
            next(chunks)
            way.silent = True
            assert b"" in chunks        # half a second without a byte
            way.reset()
            for _ in chunks:
                pass
    way.silent = False
    with suppress(LinkLost):
        host.run(sh("true"))        # the other connection may learn only now that it was reset, too
    assert host.run(sh("echo three")).text == "three\n"
    host.close()


def test_a_proxy_that_ended_refuses(proxy):
    proxy("alpha").close()
    with pytest.raises(ConnectError, match="nobody listens"):
        connect("alpha-slow")


@BOTH
def test_nvidia_smi_answers_as_on_two_h200(machine):
    def ask(fields, style="csv"):
        return machine.ssh(f"nvidia-smi --query-gpu={fields} --format={style}").stdout
    assert ask("memory.used,index,compute_cap") == \
        "memory.used [MiB], index, compute_cap\n0 MiB, 0, 9.0\n0 MiB, 1, 9.0\n"
    assert ask("index,memory.total", "csv,noheader,nounits") == "0, 143771\n1, 143771\n"
    assert machine.ssh("nvidia-smi topo -m").stdout.splitlines()[1].split("\t") == \
        ["GPU0", " X ", "NV18", "0-31", "0", "", "N/A"]
    refused = machine.ssh("nvidia-smi --query-gpu=colour --format=csv", check=False)
    assert (refused.returncode, refused.stdout) == (2, 'Field "colour" is not a valid field to query.\n\n')


def test_a_test_changes_what_nvidia_smi_says(alpha, gpus):
    gpus(alpha, "index, memory.used [MiB]\n0, 41000 MiB\n")
    gpus(alpha, "gpu_uuid, pid, process_name, used_gpu_memory [MiB]\nGPU-1, 42, python, 41000 MiB\n", "apps.csv")
    assert ALPHA.ssh("nvidia-smi --query-gpu=memory.used --format=csv,noheader").stdout == "41000 MiB\n"
    assert ALPHA.ssh("nvidia-smi --query-compute-apps=pid,used_gpu_memory --format=csv,noheader,nounits").stdout == \
        "42, 41000\n"
    gpus(alpha, "")
    assert ALPHA.ssh("nvidia-smi -L", check=False).returncode == 9


def test_a_venv_can_be_made_on_a_host_without_a_network():
    made = BETA.ssh("python3 -m venv --without-pip ~/v && ~/v/bin/python -c 'print(6 * 7)'; rm -r ~/v")
    assert made.stdout == "42\n"


def test_this_machine_outside_is_untouched():
    """The lab's address belongs to the lab's own network; nothing of it is seen from the namespace next door."""
    here = subprocess.run(["ip", "-brief", "address"], capture_output=True, text=True, check=True).stdout
    assert "10.99.0.1/24" in here and sorted(line.split()[0].partition("@")[0] for line in here.splitlines()) == \
        ["br0", "lo", "vb-alpha", "vb-beta"]
