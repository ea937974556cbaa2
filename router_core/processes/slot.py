"""One of the places for a process, as the supervisor sees it: who is there, how far it is, what it would lose."""

from __future__ import annotations

import asyncio
import socket
import sys
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

from router_core.processes.handing import make_pair
from router_core.processes.link import Link
from router_core.processes.messages import Run, Setup
from router_core.server import Listeners

MAX_LOST = 100_000
"""Lost sessions that are remembered for each slot."""


class Slot:
    """A place, its listening sockets, and the process that is there now."""

    def __init__(self, number: int, listeners: Listeners) -> None:
        self.number = number
        self.listeners = listeners
        self.taking, self.giving = make_pair()
        """Where its process takes connections that the others hand over."""
        self.process: asyncio.subprocess.Process | None = None
        self.link: Link | None = None
        self.address: str | None = None
        """Where it takes forwarded requests."""
        self.has_joined = False
        """Whether what all run is sent to it, in order."""
        self.is_in = False
        """Whether its answers are waited for."""
        self.is_ready = False
        self.silent_beats = 0
        """Beats of the supervisor since something last came from the process (`heartbeat`)."""
        self.hung = ""
        """Why it was killed, if it was for not answering."""
        self.sessions: set[str] = set()
        """The open sessions of this process."""
        self.lost: OrderedDict[str, str] = OrderedDict()
        """Sessions that processes in this slot lost -> how."""
        self.waits_for_state: list[Run] = []
        """What it runs once it has the state of another."""
        self.has_state = True

    async def start(self, setup: Setup) -> None:
        """Starts a process, which says Hello once it is built."""
        ours, theirs = socket.socketpair()
        fds = [theirs.fileno(), setup.data_fd, setup.counts_fd, setup.taking_fd, *setup.giving_fds]
        if setup.admin_fd is not None:
            fds.append(setup.admin_fd)
        # -P: a checkout in the working directory is not what is installed, and may be of another build
        command: Sequence[str] = (sys.executable, "-P", "-m", "router_core.processes", str(theirs.fileno()))
        try:
            self.process = await asyncio.create_subprocess_exec(*command, pass_fds=fds)
        finally:
            theirs.close()
        self.link = Link(ours)
        self.link.send(setup)

    async def receive(self) -> Any:
        """What the process says next. Raises EOFError once it is gone."""
        if self.link is None:
            raise EOFError
        message = await self.link.receive()
        self.silent_beats = 0
        return message

    def send(self, message: object) -> None:
        """Says it, unless nobody is there."""
        if self.link is not None:
            self.link.send(message)

    def kill(self) -> None:
        """Ends the process, if it has not ended."""
        if self.process is not None and self.process.returncode is None:
            self.process.kill()

    def run(self, message: Run) -> None:
        """In its turn: after the state that it waits for, if it does."""
        if self.has_state:
            self.send(message)
        else:
            self.waits_for_state.append(message)

    def lose(self, how: str) -> set[str]:
        """The process is gone. Returns the sessions that went with it."""
        gone, self.sessions = self.sessions, set()
        for session_id in gone:
            self.lost[session_id] = how
        while len(self.lost) > MAX_LOST:
            self.lost.popitem(last=False)
        if self.link is not None:
            self.link.close()
        self.process = self.link = self.address = None
        self.silent_beats, self.hung = 0, ""
        self.has_joined = self.is_in = self.is_ready = False
        self.waits_for_state.clear()
        return gone

    def close(self) -> None:
        """No process will be there any more."""
        self.taking.close()
        self.giving.close()
