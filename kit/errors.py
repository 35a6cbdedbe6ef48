"""Every error the kit raises: what happened, where, and what to do next.

    KitError
    ├─ SpecError(ValueError)          a config file or a field of it
    ├─ CheckError                     a required check failed; nothing was started
    ├─ PlanError                      the host is not as the plan needs it
    │  └─ PortBusy                    somebody else listens on the port
    ├─ HostError
    │  ├─ ConnectError(ConnectionError)   refused, unreachable, not authenticated
    │  │  └─ HostKeyError             unknown or changed host key
    │  ├─ CommandError                a command on the host ended badly
    │  ├─ SudoError(PermissionError)  root is needed, and sudo refused
    │  ├─ CommandTimeout(TimeoutError)    a command outlived its limit
    │  ├─ LinkLost(ConnectionError)   the connection broke; the outcome is unknown
    │  ├─ NoSuchFile(FileNotFoundError)   a file is not on the host
    │  └─ ParseError(ValueError)      an answer of the host was not understood
    ├─ FetchError                     a checkpoint could not be brought to the host
    │  ├─ ChecksumError               it arrived, and is not what was pinned
    │  └─ NoSpace                     the disk cannot hold it
    ├─ ServiceError                   a service is not healthy
    │  ├─ ServiceDied                 the process ended; its last lines are in the message
    │  └─ NotHealthy                  the deadline passed
    └─ JobError
       ├─ Cancelled                   the user asked for it
       └─ JobFailed                   something broke that has no name yet

Nothing from a lower library (fabric, paramiko, pydantic, json) leaves the kit
unmapped.
"""

from __future__ import annotations


class KitError(Exception):
    """Three lines: *what* happened, *where*, and what to do *next*.

    >>> print(KitError("port 8101 is busy", where="gpu-7", next="stop pid 4242"))
    port 8101 is busy
      where: gpu-7
      next:  stop pid 4242
    """

    def __init__(self, what: str, *, where: str = "", next: str = ""):
        super().__init__(what)
        self.what, self.where, self.next = what, where, next

    def __str__(self) -> str:
        lines = [self.what]
        if self.where:
            lines.append(f"  where: {self.where}")
        if self.next:
            lines.append(f"  next:  {self.next}")
        return "\n".join(lines)

    def _render_traceback_(self) -> list[str]:
        """IPython shows these lines instead of a traceback; `%debug` still works."""
        return f"{type(self).__name__}: {self}".splitlines()


class SpecError(KitError, ValueError): ...
class CheckError(KitError): ...
class PlanError(KitError): ...
class PortBusy(PlanError): ...
class HostError(KitError): ...
class ConnectError(HostError, ConnectionError): ...
class HostKeyError(ConnectError): ...
class CommandError(HostError): ...
class SudoError(HostError, PermissionError): ...
class CommandTimeout(HostError, TimeoutError): ...
class LinkLost(HostError, ConnectionError): ...
class NoSuchFile(HostError, FileNotFoundError): ...
class ParseError(HostError, ValueError): ...
class FetchError(KitError): ...
class ChecksumError(FetchError): ...
class NoSpace(FetchError): ...
class ServiceError(KitError): ...
class ServiceDied(ServiceError): ...
class NotHealthy(ServiceError): ...
class JobError(KitError): ...
class Cancelled(JobError): ...
class JobFailed(JobError): ...
