"""Units under the host's systemd, kept by `unitctl.py` there. Pure: the unit's text, commands, parsers.

Scope `system` needs root or sudo; the service runs as the user who logs in, or as `host.run_as`. Scope `user`
(kit/supervisors/systemd_user.py) needs neither, but lingering: without it the service ends with the last login.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from kit.command import Command
from kit.seams import Unit
from kit.supervisors import Shipped
from kit.words import grouped

# How systemd reads a quoted word (man systemd.syntax): C escapes, and % for its specifiers.
ESCAPES = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\t": "\\t", "\r": "\\r", "%": "%%"}
# Where this unit's end is noted, by itself: systemd forgets units that are not loaded, and all of them at a reboot.
ENDED = 'echo "$(date +%s) $SERVICE_RESULT $EXIT_CODE $EXIT_STATUS $INVOCATION_ID" > "$0"'


def quoted(word: str, dollar: bool = True) -> str:
    """One word of ExecStart= or Environment=; `dollar`: $ would be expanded there.

    >>> quoted("50% of $HOME")
    '"50%% of $$HOME"'
    """
    text = "".join(ESCAPES.get(c) or (f"\\x{ord(c):02x}" if ord(c) < 32 or ord(c) == 127 else c) for c in word)
    return '"' + (text.replace("$", "$$") if dollar else text) + '"'


def text(unit: Unit, root: str, user: str, scope: str) -> str:
    """The unit file. The same unit, folder and user give the same text.

    What each line is for: man systemd.service, systemd.exec, systemd.kill. A service that ends is not started again
    unless the config says so, and then never for a refused flag (exit 1, 2) nor more than 3 times in 10 minutes.
    """
    argv = unit.argv if unit.argv[0].startswith("/") else ("/usr/bin/env", *unit.argv)
    job = unit.kind == "job"
    rows = ["# Written by Specbook, and replaced by its next plan. What may be changed is in the config.", "[Unit]",
            f"Description=Specbook {unit.kind} {unit.name}", "After=network-online.target",
            "StartLimitIntervalSec=600", "StartLimitBurst=3", "", "[Service]", "Type=exec"]
    if scope == "system":
        rows.append(f"User={unit.user or user}")
    rows.append(f"WorkingDirectory={unit.cwd.replace('%', '%%') or '~'}")
    rows += [f"Environment={quoted(f'{k}={v}', dollar=False)}" for k, v in sorted(unit.env.items())]
    if unit.env_file:
        rows.append(f"EnvironmentFile={unit.env_file.replace('%', '%%')}")
    other = scope == "system" and unit.user not in ("", user)       # who may not write in the kit's folder
    if other and "XDG_CACHE_HOME" in unit.env:
        rows.append(f"ExecStartPre=+/usr/bin/install -d -o {unit.user} -- {quoted(unit.env['XDG_CACHE_HOME'])}")
    rows.append("ExecStart=" + " \\\n    ".join([quoted(argv[0], dollar=False), *grouped(argv[1:], quoted)]))
    note = f"{root}/units/{unit.name}/ended"
    rows.append(f"ExecStopPost={'-+' if other else '-'}/bin/sh -c {quoted(ENDED)} {quoted(note)}")
    rows += ["RemainAfterExit=yes"] if job else []          # else its exit status is forgotten at once
    rows += ["Restart=on-failure", "RestartSec=10", "RestartPreventExitStatus=1 2"] if unit.restart else ["Restart=no"]
    rows += ["KillMode=mixed", f"TimeoutStopSec={max(1, round(unit.stop_timeout_s))}", "LimitNOFILE=1048576",
             "LimitMEMLOCK=infinity", "StandardOutput=journal", "StandardError=journal",
             f"SyslogIdentifier=specbook-{unit.name}", "LogRateLimitIntervalSec=0"]
    if unit.at_boot and not job:
        rows += ["", "[Install]", f"WantedBy={'multi-user' if scope == 'system' else 'default'}.target"]
    rows += ["", "[X-Specbook]", f"Root={json.dumps(root)}", f"Digest={unit.digest}"]
    return "\n".join(rows) + "\n"


class Systemd(Shipped):
    """Implements `kit.seams.Supervisor` for one scope.

    >>> SUPERVISOR.stop("k26-eagle3", "/home/u/.specbook", "python3", 60).as_root
    True
    """

    shipped = ("unitctl.py", "babysit.py", "journal.py")
    cursor = r"s=[0-9a-f]+;[a-z0-9=;]+(~\d+)?"      # the journal's own, `~k` when k lines of an entry are told

    def __init__(self, scope: str):
        self.scope, self.name = scope, "systemd" if scope == "system" else "systemd-user"
        self.options = ("--scope", scope)

    def unfit(self, now: Any) -> tuple[str, str] | None:
        """Why a surveyed host cannot keep units this way, and what to do; None: it can."""
        if not now.systemd:
            return "this host does not run systemd", "use the plain process supervisor: host.supervisor: process"
        if self.scope == "system" and now.privilege == "none":
            return (f"{now.user} is not root and may not use sudo, so no system service can be written",
                    "use host.supervisor: systemd-user (or process), or ask for sudo")
        if self.scope == "user" and not now.user_manager:
            return (f"systemd keeps no services for {now.user}: its user manager does not answer",
                    f"log in once with pam_systemd, or: sudo loginctl enable-linger {now.user}")
        if self.scope == "user" and not now.linger:
            return (f"lingering is off for {now.user}: the service would end with the last login",
                    f"switch it on, on the host: sudo loginctl enable-linger {now.user}")
        return None

    def text(self, unit: Unit, root: str, user: str) -> str:
        """The unit file."""
        return text(unit, root, user, self.scope)

    def install(self, unit: Unit, root: str, user: str) -> dict[str, bytes]:
        """The text and what the kit knows of it, in the kit's own folder: `start` verifies and installs it."""
        folder = f"{root}/units/{unit.name}"
        known = {"name": unit.name, "digest": unit.digest, "kind": unit.kind, "port": unit.port, "root": root,
                 "about": dict(unit.about)}
        return {f"{folder}/specbook-{unit.name}.service": text(unit, root, user, self.scope).encode(),
                f"{folder}/systemd.json": json.dumps(known, indent=1, sort_keys=True).encode()}

    def _command(self, python: str, root: str, verb: str, *words: str, limit_s: float | None = 60.0) -> Command:
        command = super()._command(python, root, verb, *words, limit_s=limit_s)
        # The states of system units may be read by anyone; their journal often not.
        return replace(command, as_root=self.scope == "system" and verb != "states")


SUPERVISOR = Systemd("system")
