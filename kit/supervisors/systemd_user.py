"""Units under the login user's own systemd: no root, but lingering. See kit/supervisors/systemd.py."""

from kit.supervisors.systemd import Systemd

SUPERVISOR = Systemd("user")
