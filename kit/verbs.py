"""The verbs a notebook uses. Each that takes time returns a `Job` at once."""

from __future__ import annotations

import getpass

from kit import benching
from kit import host as hosts
from kit.applying import Applier
from kit.command import Command, Secret
from kit.errors import KitError
from kit.following import lines, state
from kit.job import Job
from kit.planning import plan
from kit.seams import Host, UnitState
from kit.spec import Experiment, HostSpec
from kit.steps import Plan
from kit.supervisors import supervisor
from kit.surveying import survey


def connect(where: Experiment | HostSpec | str, accept: str | None = None) -> Host:
    """A live host: of an experiment, or a name that ssh knows. The same name gives the same connection.

    accept   the fingerprint of a host key seen for the first time, as the error showed it

    >>> host = kit.connect(exp)
    """
    spec = where.host if isinstance(where, Experiment) else where
    return hosts.connect(spec, accept=accept)


def sudo(host: Host) -> None:
    """Ask for sudo's password on the host, hidden, and keep it in this process's memory only; wrong: SudoError.

    >>> kit.sudo(host)
    """
    host.sudo_password = Secret(getpass.getpass(f"sudo password of {host.user} on {host.name}: "))
    try:
        host.run(Command(("true",), as_root=True)).check("sudo")
    except KitError:
        host.sudo_password = None
        raise


def apply(plan: Plan, host: Host) -> Job:
    """Carry a plan out. The job's result is the seconds until healthy, or None where nothing was started.

    Applying twice while it runs gives the same job; with other settings meanwhile, a JobError.

    >>> kit.watch(kit.apply(kit.plan(exp, now), host))
    """
    exp = plan.experiment
    name = f"{plan.want} {exp.unit if plan.want in ('serving', 'fetched') else exp.name}"
    return Job.start(name, lambda job: Applier(plan, host, job).run(), key=f"{host.name}/{name}", about=exp)


def bench(exp: Experiment, host: Host, again: bool = False) -> Job:
    """Benchmark this arm's running service; the job's result is a `Run`.

    >>> run = kit.bench(exp.arm("eagle3"), host).result()
    """
    return Job.start(f"bench {exp.unit}", lambda job: benching.measure(exp, host, job, again),
                     key=f"{host.name}/bench {exp.unit}", about=exp)


def follow(unit: str | Experiment, host: Host, supervisor_name: str = "process", python: str = "python3") -> Job:
    """A job whose lines are a unit's log, from its start on; it ends with the unit, or when cancelled.

    The job's result is the unit's last state.

    >>> kit.watch(kit.follow(exp, host))
    """
    if isinstance(unit, Experiment):
        supervisor_name, python, unit = unit.host.supervisor, unit.host.python, unit.unit
    sup = supervisor(supervisor_name)

    def work(job: Job) -> UnitState:
        for line in lines(host, sup, python, unit, check=job.raise_if_cancelled):
            job.line(line.text)
        return state(host, sup, python, unit)

    return Job.start(f"log of {unit}", work, key=f"{host.name}/log {unit}")


def tune(exp: Experiment, host: Host, prompts: int = 3, again: bool = False) -> Job:
    """Apply this setting and measure it shortly; the job's result is the `Run`. What *Apply* does in the controls."""
    short = exp.with_(**{"bench.prompts": min(prompts, exp.bench.prompts)})

    def work(job: Job):
        Applier(plan(short, survey(short, host)), host, job).run()
        return benching.measure(short, host, job, again, purpose="tune")

    return Job.start(f"tune {exp.unit}", work, key=f"{host.name}/tune {exp.name}", about=short)
