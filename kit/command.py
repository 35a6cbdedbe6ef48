"""What is said to a host: commands as argv, and what came back.

A command is a tuple of words. Turning it into shell text happens in one place
(`Command.shell`), so nothing is quoted by habit. Longer programs travel on
stdin, never in the words.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field

from kit.errors import CommandError, CommandTimeout, LinkLost, NoSpace, SudoError


class Secret:
    """A value that masks itself in repr, str and logs; `reveal()` is the only way in.

    >>> Secret("hf_abc")
    Secret(***)
    """

    __slots__ = ("_value",)

    def __init__(self, value: str):
        self._value = value

    def reveal(self) -> str:
        return self._value

    def __repr__(self) -> str:
        return "Secret(***)"

    __str__ = __repr__

    def __reduce__(self):
        raise TypeError("a Secret does not travel")


# -n never asks, and fails instead; -k forgets what sudo remembers, so that it always takes the line.
SUDO = 'if [ "$(id -u)" = 0 ]; then exec "$@"; else exec sudo -n -- "$@"; fi'
ASK_SUDO = 'if [ "$(id -u)" = 0 ]; then read -r _; exec "$@"; else exec sudo -k -S -p "" -- "$@"; fi'


@dataclass(frozen=True)
class Command:
    """One program on the host.

    argv      words, as the program will see them
    stdin     bytes for its standard input (scripts and secrets travel here)
    limit_s   it is ended on the host itself after this many seconds; None: no limit
    as_root   through sudo, where the login user is not root

    >>> Command(("echo", "it's")).shell()
    "echo 'it'\\"'\\"'s'"
    """

    argv: tuple[str, ...]
    stdin: bytes = field(default=b"", repr=False)
    limit_s: float | None = 60.0
    as_root: bool = False

    def shell(self, password: bool = False) -> str:
        """The one line a POSIX shell needs to run exactly this argv.

        password   the first line of stdin is sudo's; it is taken from there in any case
        """
        words = self.argv
        if self.limit_s is not None:
            words = ("timeout", "-k", "5", f"{self.limit_s:g}", *words)
        if self.as_root:
            words = ("sh", "-c", ASK_SUDO if password else SUDO, "sh", *words)
        return shlex.join(words)

    def typed(self, password: Secret | None = None) -> tuple[bytes, bytes]:
        """(the shell line, its stdin): sudo's password goes before what the program reads, never into its words."""
        asks = self.as_root and password is not None
        stdin = password.reveal().encode() + b"\n" + self.stdin if asks else self.stdin
        return self.shell(asks).encode("utf-8", "surrogateescape"), stdin


def sh(script: str, *args: str, limit_s: float | None = 60.0) -> Command:
    """A POSIX shell script that reads its values from $1, $2, …

    >>> sh('cat "$1"', "/tmp/a b").argv
    ('sh', '-s', '--', '/tmp/a b')
    """
    return Command(("sh", "-s", "--", *args), script.encode(), limit_s)


@dataclass(frozen=True)
class Result:
    """What a command gave back. `exit` is None when the link broke before we knew."""

    command: Command
    exit: int | None
    stdout: bytes = b""
    stderr: bytes = b""
    host: str = ""

    @property
    def text(self) -> str:
        return self.stdout.decode("utf-8", "replace")

    @property
    def complaint(self) -> str:
        """The last ten lines it said on stderr (stdout where stderr is empty)."""
        said = self.stderr or self.stdout
        return "\n".join(said.decode("utf-8", "replace").strip().splitlines()[-10:])

    def check(self, what: str = "", next: str = "") -> Result:
        """Itself if the command succeeded, else the matching `HostError`."""
        if self.exit == 0:
            return self
        name = what or " ".join(self.command.argv[:3])
        if self.exit is None:
            raise LinkLost(f"{name}: the connection broke, the outcome is unknown",
                           where=self.host, next=next or "connect again and look at the state")
        if self.exit in (124, 137) and self.command.limit_s is not None:
            raise CommandTimeout(f"{name}: no end within {self.command.limit_s:g} s",
                                 where=self.host, next=next or "try again, or look at the host's load")
        if self.command.as_root and b"sudo:" in self.stderr[:200]:
            raise SudoError(f"{name} needs root, and sudo refused: {self.complaint.splitlines()[-1]}", where=self.host,
                            next="where sudo asks for a password: kit.sudo(host); else host.supervisor: systemd-user")
        if b"No space left on device" in self.stderr:
            raise NoSpace(f"{name}: no space is left on the host's disk", where=self.host,
                          next="free some space there, then try again")
        raise CommandError(f"{name}: exit {self.exit}: {self.complaint or 'said nothing'}",
                           where=self.host, next=next or "run it by hand on the host")
