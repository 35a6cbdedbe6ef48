"""The two SSH servers that must behave alike, behind one small interface.

config   an ssh config that knows the server as "target"
drop()   break every connection as a crash would; the server is back when it returns
"""

import getpass
import os
import signal
import socket
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import asyncssh

from kit import rehearsal
from kit.sshfiles import quoted


def write_config(path, port, user, key, known_hosts, more=""):
    path.write_text(f"""{more}
Host target
  HostName 127.0.0.1
  Port {port}
  User {user}
  IdentityFile {quoted(key)}
  IdentitiesOnly yes
  UserKnownHostsFile {quoted(known_hosts)}
""")
    return path


class Embedded:
    def __init__(self, folder: Path):
        self.folder, self.config = folder, folder / "config"
        self.start()

    def start(self):
        info = rehearsal.start(self.folder / "host")
        self.port, self.user = info.port, "rehearsal"
        self.key, self.known_hosts = info.folder / "keys/client_key", info.folder / "known_hosts"
        write_config(self.config, self.port, self.user, self.key, self.known_hosts)

    def drop(self):
        pid = rehearsal.status(self.folder / "host").pid
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        self.start()

    def stop(self):
        rehearsal.stop(self.folder / "host")


class OpenSsh:
    def __init__(self, folder: Path):
        self.folder, self.config, self.user = folder, folder / "config", getpass.getuser()
        self.key, self.known_hosts = folder / "client_key", folder / "known_hosts"
        host_key = asyncssh.generate_private_key("ssh-ed25519")
        client_key = asyncssh.generate_private_key("ssh-ed25519")
        host_key.write_private_key(folder / "host_key")
        client_key.write_private_key(self.key)
        client_key.write_public_key(folder / "authorized_keys")
        for private in (self.key, folder / "host_key"):
            private.chmod(0o600)
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self.known_hosts.write_text(f"[127.0.0.1]:{self.port} {host_key.export_public_key().decode()}")
        write_config(self.config, self.port, self.user, self.key, self.known_hosts)
        (folder / "sshd_config").write_text("\n".join((
            "ListenAddress 127.0.0.1", f"Port {self.port}", f"HostKey {folder}/host_key", f"PidFile {folder}/pid",
            f"AuthorizedKeysFile {folder}/authorized_keys", "PasswordAuthentication no", "UsePAM no",
            "KbdInteractiveAuthentication no", "StrictModes no", "PermitRootLogin yes", "MaxStartups 100",
            "Subsystem sftp internal-sftp",
            "SetEnv SHLVL=1",       # else bash reads the account's own .bashrc at every command
            "")))
        if os.getuid() == 0:
            Path("/run/sshd").mkdir(exist_ok=True)
        self.log = open(folder / "log", "wb")
        self.process = subprocess.Popen(["/usr/sbin/sshd", "-D", "-e", "-f", str(folder / "sshd_config")],
                                        stdin=subprocess.DEVNULL, stderr=self.log)
        for _ in range(200):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            time.sleep(0.02)
        self.stop()
        raise RuntimeError(f"sshd did not start: {(folder / 'log').read_text()}")

    def _sessions(self):
        """sshd's own processes below the listener."""
        parents = {}
        for stat in Path("/proc").glob("[0-9]*/stat"):
            try:
                name, _, rest = stat.read_text(errors="replace").partition("(")[2].rpartition(")")
            except OSError:
                continue
            if name.startswith("sshd"):
                parents[int(stat.parent.name)] = int(rest.split()[1])
        found, queue = set(), [self.process.pid]
        while queue:
            parent = queue.pop()
            children = [pid for pid, up in parents.items() if up == parent]
            found.update(children)
            queue += children
        return found

    def drop(self):
        for pid in self._sessions():
            with suppress(ProcessLookupError):      # it ends by itself once its monitor is gone
                os.kill(pid, signal.SIGKILL)

    def stop(self):
        self.drop()
        self.process.terminate()
        self.process.wait()
        self.log.close()


SERVERS = {"embedded": Embedded, "openssh": OpenSsh}
