"""The effect behind a survey: one round trip, and a look at what this machine would send."""

from __future__ import annotations

from dataclasses import replace

from kit import launches
from kit import surveys as pure
from kit.project import me
from kit.registry import names
from kit.seams import Host
from kit.sources import source
from kit.spec import Experiment
from kit.surveys import Survey


def survey(exp: Experiment, host: Host) -> Survey:
    """Facts about the host for this experiment, read now.

    >>> kit.survey(exp, host).disk_free_mib
    """
    now = pure.parse(host.run(pure.command(exp, host.root)), exp, host.root, host.name)
    return replace(now, expected_s=launches.expected_s(exp, host.name), changed=_changed(exp, now), me=me())


def _changed(exp: Experiment, now: Survey) -> dict[str, str]:
    said = {c.slug: source(c.scheme).changed(c, there.manifest["files"]) for c in (exp.target, exp.drafter)
            if c and c.scheme in names("kit.sources") and (there := now.models.get(c.slug)) and there.complete}
    return {slug: why for slug, why in said.items() if why}
