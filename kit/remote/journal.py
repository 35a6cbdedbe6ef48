"""Reads a unit's journal for the programs beside it: framed lines, resumed at a cursor without a gap or a repeat.

A cursor is the journal's own, with `~k` when k lines of an entry are told. journalctl finds a cursor again, unless
the host's clock was set back since: then it opens somewhere before, or at the end. So the first line must be the
one that was told last; else all is read, and what was told is skipped by the boot's own clock, which nobody sets.
Standard library, Python >= 3.9.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import time

GAP = b"[specbook: the journal no longer has the lines before this one; SystemMaxUse= in journald.conf keeps more]"
FIND_S = 2.0                # until the line told last must have come


def message(said) -> bytes:
    """MESSAGE is text, a list of bytes (not UTF-8, or with an escape), or null (too long without --all)."""
    if isinstance(said, list) and all(isinstance(b, int) for b in said):
        return bytes(said)
    if isinstance(said, list):                              # the field came twice
        return b"\n".join(message(s) for s in said)
    return b"[not shown by the journal]" if said is None else str(said).encode("utf-8", "surrogatepass")


def parsed(line: bytes) -> tuple[str, float, list[bytes]] | None:
    """(cursor, time, lines of its text); None for what is no entry."""
    try:
        entry = json.loads(line)
        return (entry["__CURSOR"], int(entry["__REALTIME_TIMESTAMP"]) / 1e6, message(entry.get("MESSAGE")).split(b"\n"))
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def not_after(cursor: str, other: str) -> bool:
    """Of the same boot, and not later in it."""
    a, b = (dict(part.split("=", 1) for part in c.split(";") if "=" in part) for c in (cursor, other))
    try:
        return a["b"] == b["b"] and int(a["m"], 16) <= int(b["m"], 16)
    except (KeyError, ValueError):
        return False


class Reader:
    """Entries as `frame(cursor, time_s, text)`; `wait(seconds)` is called in silence, and may raise.

    `command` makes the journalctl call: command("--follow", …) -> words.
    """

    def __init__(self, frame, wait, cursor: str, options: tuple[str, ...] = ()):
        self.frame, self.wait, self.options = frame, wait, options
        self.at, _, told = cursor.partition("~")
        self.told = int(told or 0)
        self.found = self.all = False

    def _open(self, command, all_of_it: bool, *words: str) -> subprocess.Popen:
        self.all, self.found = all_of_it, not self.at
        after = ["--cursor", self.at] if self.at and not all_of_it else []
        return subprocess.Popen(command(*after, *words), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                stderr=subprocess.DEVNULL)

    def emit(self, line: bytes) -> bool:
        """False: this is not where we were, so all must be read."""
        one = parsed(line)
        if one is None:
            return True
        cursor, when, text = one
        skip = 0
        if not self.found:
            if cursor == self.at:
                skip = self.told or len(text)
            elif not self.all:
                return False
            elif not_after(cursor, self.at):
                return True
            elif not self.kept():                           # rotated away; not merely of an earlier start
                self.frame(f"{cursor}~0", when, GAP)
            self.found = True
        for k, piece in enumerate(text[skip:], skip + 1):
            done = k == len(text)
            self.at, self.told = cursor, 0 if done else k
            self.frame(cursor if done else f"{cursor}~{k}", when, piece)
        return True

    def kept(self) -> bool:
        """The journal still has the line that we told last."""
        words = ["journalctl", *self.options, "--quiet", "--output=json", "--cursor", self.at, "--lines=1"]
        done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True)
        return self.at.encode() in done.stdout

    def there(self, command) -> None:
        """What is in the journal now."""
        for all_of_it in (False, True):
            with self._open(command, all_of_it) as process:
                right = all(self.emit(line) for line in process.stdout) and self.found
                process.kill()
            if right:
                return

    def live(self, command, ended) -> None:
        """As it comes, until `ended()`; then what is left."""
        _ = self._live(command, False, ended) or self._live(command, True, ended)
        self.there(command)

    def _live(self, command, all_of_it: bool, ended) -> bool:
        process = self._open(command, all_of_it, "--follow", "--lines=all")
        rest, began, looked = b"", time.monotonic(), 0.0
        try:
            while True:
                if select.select([process.stdout], [], [], 0.1)[0]:
                    chunk = os.read(process.stdout.fileno(), 65536)
                    *whole, rest = (rest + chunk).split(b"\n")
                    if not all(self.emit(line) for line in whole):
                        return False
                    if not chunk:
                        return True
                    continue
                self.wait(0)
                now = time.monotonic()
                if not (self.found or all_of_it) and now > began + FIND_S:
                    return False
                if now > looked + 0.5:
                    if ended():
                        return True
                    looked = now
        finally:
            process.kill()
            process.wait()
            process.stdout.close()
