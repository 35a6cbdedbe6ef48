"""The effect behind a survey: one round trip."""

from __future__ import annotations

from kit import surveys as pure
from kit.seams import Host
from kit.spec import Experiment
from kit.surveys import Survey


def survey(exp: Experiment, host: Host) -> Survey:
    """Facts about the host for this experiment, read now.

    >>> kit.survey(exp, host).disk_free_mib
    """
    return pure.parse(host.run(pure.command(exp, host.root)), exp, host.root, host.name)
