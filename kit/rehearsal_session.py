"""What happens on one channel of the rehearsal host: a command with its pipes, or SFTP.

Asyncio's subprocess and asyncssh's channel are joined by their callbacks, with
back-pressure both ways, so that bytes are neither lost nor piled up.
"""

from __future__ import annotations

import asyncio
import os
import signal
from typing import Any

import asyncssh
from asyncssh.stream import SSHServerStreamSession


class Child(asyncio.SubprocessProtocol):
    """One command: its pipes joined to a channel, with back-pressure both ways."""

    def __init__(self, session: Session):
        self.session, self.open_outputs, self.exited = session, {1, 2}, False

    def connection_made(self, transport):
        self.transport = transport

    def pipe_data_received(self, fd, data):
        self.session.said(fd, data)

    def pipe_connection_lost(self, fd, exc):
        self.open_outputs.discard(fd)
        self.finish()

    def process_exited(self):
        self.exited = True
        self.session.host.children.discard(self)
        self.finish()

    def finish(self):
        """As in OpenSSH: the channel ends when the command has, and nobody else holds its outputs."""
        if self.exited and not self.open_outputs:
            self.session.ended(self.transport.get_returncode())

    def pause_writing(self):
        self.session.pause_stdin()

    def resume_writing(self):
        # later: from inside this call asyncio would lose what the session writes before it closes the pipe
        asyncio.get_running_loop().call_soon(self.session.resume_stdin)

    def pause_outputs(self, paused: bool):
        for fd in self.open_outputs:
            pipe = self.transport.get_pipe_transport(fd)
            if pipe and not pipe.is_closing():
                pipe.pause_reading() if paused else pipe.resume_reading()

    def hang_up(self):
        """The client left: the pipes close (EOF on stdin, SIGPIPE on output), the process is not killed."""
        for fd in (0, 1, 2):
            pipe = self.transport.get_pipe_transport(fd)
            if pipe and not pipe.is_closing():
                pipe.close()


class Session(SSHServerStreamSession):
    """A session channel: exec or shell through `sh`, or the SFTP subsystem; never a PTY."""

    def __init__(self, host: Any, login: Any):
        super().__init__(None, asyncssh.SFTPServer, 3)
        self.host, self.login, self.live = host, login, True
        self.child: Child | None = None
        self.early: list[bytes | None] = []     # stdin, and its end, that came before the command was up

    def connection_made(self, chan):
        super().connection_made(chan)
        self.login.sessions += 1

    def connection_lost(self, exc):
        super().connection_lost(exc)
        self.live = False
        self.login.sessions -= 1
        if self.child:
            self.child.hang_up()

    def pty_requested(self, *_):
        return False

    def shell_requested(self):
        return True

    def exec_requested(self, command):
        return True

    def subsystem_requested(self, subsystem):
        return subsystem == "sftp"

    def session_started(self):
        if self._chan.get_subsystem():
            super().session_started()
            return
        asyncio.get_running_loop().create_task(self.start(self._chan.get_command()))

    async def start(self, command: str | None) -> None:
        argv = ("sh",) if command is None else ("sh", "-c", command)
        try:
            _, child = await asyncio.get_running_loop().subprocess_exec(
                lambda: Child(self), *argv, cwd=self.host.home, env=self.host.env, start_new_session=True)
        except OSError as err:          # out of processes, or of file descriptors
            self.said(2, f"sh: {err}\n".encode())
            self.ended(126)
            return
        self.host.children.add(child)
        self.host.groups.add(child.transport.get_pid())
        self.child = child
        for data in self.early:
            self.eof_received() if data is None else self.data_received(data, None)
        if self.live:
            self._chan.resume_reading()
        else:
            child.hang_up()

    def said(self, fd: int, data: bytes) -> None:
        if self.live and not self._chan.is_closing():
            self._chan.write(data, asyncssh.EXTENDED_DATA_STDERR if fd == 2 else None)

    def ended(self, code: int) -> None:
        if not self.live or self._chan.is_closing():
            return
        if code < 0:
            self._chan.exit_with_signal(signal.Signals(-code).name.removeprefix("SIG"))
        else:
            self._chan.exit(code)

    def data_received(self, data, datatype):
        if self._chan.get_subsystem():
            super().data_received(data, datatype)
        elif not self.child:
            self.early.append(data)
            self._chan.pause_reading()
        elif (stdin := self.child.transport.get_pipe_transport(0)) and not stdin.is_closing():
            stdin.write(data)

    def eof_received(self):
        if self._chan.get_subsystem():
            return super().eof_received()
        if not self.child:
            self.early.append(None)
        elif (stdin := self.child.transport.get_pipe_transport(0)) and not stdin.is_closing():
            stdin.close()
        return True

    def pause_writing(self):
        super().pause_writing()
        if self.child:
            self.child.pause_outputs(True)

    def resume_writing(self):
        super().resume_writing()
        if self.child:
            self.child.pause_outputs(False)

    def pause_stdin(self):
        if self.live:
            self._chan.pause_reading()

    def resume_stdin(self):
        if self.live:
            self._chan.resume_reading()

    def signal_received(self, name):
        if self.child and not self.child.exited and name in ("INT", "TERM", "KILL", "HUP", "QUIT", "USR1", "USR2"):
            os.killpg(self.child.transport.get_pid(), getattr(signal, f"SIG{name}"))
