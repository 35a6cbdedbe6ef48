"""The effect behind a survey: one round trip."""

from __future__ import annotations

from dataclasses import replace

from kit import launches
from kit import surveys as pure
from kit.seams import Host
from kit.spec import Experiment
from kit.surveys import Survey


def survey(exp: Experiment, host: Host) -> Survey:
    """Facts about the host for this experiment, read now.

    >>> kit.survey(exp, host).disk_free_mib
    """
    now = pure.parse(host.run(pure.command(exp, host.root)), exp, host.root, host.name)
    return replace(now, expected_s=launches.expected_s(exp, host.name))
