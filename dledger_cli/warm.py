"""The program, warm: its processes, forked from one that has imported what they need.

    python -P -m dledger_cli.warm SOCKET [MODULE...]

What most of a node's start takes is the import of its parts. Tests start many nodes and commands
(`dledger.testing`); this imports once (and the modules that it is told to), and forks a process for
whoever asks at the Unix socket. It must never do what a fork can't take along: it has one thread,
no event loop, and opens no channel.

It is a leash, too. Its standard input is a pipe whose other end its parent holds and never writes
to; once that is closed, however the parent ended, this kills what it forked, removes the folders
that it was told of, and ends. Should it be killed itself, the kernel kills what it forked
(PR_SET_PDEATHSIG).

A request is one message with three descriptors, which become the process's standard streams; two
messages answer it, in JSON as it is:

    {"module": "dledger_cli", "words": ["topic", "list"], "directory": "/", "environment": {...}}
    {"pid": 17, "started": "..."}     it runs; `broker.local_group.process.ProcessIdentity`
    {"code": 0}                       it has ended, for who stays to hear it
    {"remove": "/tmp/folder"}         a request of its own: to be removed in the end; no answer
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
import importlib
import json
import os
import runpy
import selectors
import shutil
import signal
import socket
import sys
import traceback
from pathlib import Path
from typing import Any, Final, NoReturn

import typer.main

from broker.local_group.process import identity_of, use_spawner
from dledger.testing.warm import MESSAGE_BYTES, in_short
from dledger_cli.app import PROGRAMS, app
from dledger_cli.warm_nodes import forked_by

PRELOADED: Final = ("broker.local_group.disks", "dledger_cli.group", "broker.node")
PR_SET_PDEATHSIG: Final = 1
BACKLOG: Final = 64
REQUEST_S: Final = 10.0  # a request is one message, sent as soon as there is a connection


class Nursery:
    """Forks who is asked for, and remembers what to clear away."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._folders: list[str] = []
        self._running: dict[int, socket.socket] = {}
        self._door = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with in_short(Path(path)) as name:
            self._door.bind(name)
        self._door.listen(BACKLOG)
        self._ended, wakes = socket.socketpair()
        os.set_blocking(wakes.fileno(), False)
        self._wakes = wakes
        signal.set_wakeup_fd(wakes.fileno())
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def serve(self) -> None:
        """Until standard input ends; then nothing that was forked here runs."""
        with selectors.DefaultSelector() as selector:
            for source in (sys.stdin.fileno(), self._door, self._ended):
                selector.register(source, selectors.EVENT_READ)
            while True:
                ready = {key.fileobj for key, _ in selector.select()}
                if self._ended in ready:
                    self._ended.recv(MESSAGE_BYTES)
                    self._reap()
                if self._door in ready:
                    self._admit()
                if sys.stdin.fileno() in ready and not os.read(sys.stdin.fileno(), 1):
                    break
        self._clear_away()

    def _admit(self) -> None:
        caller, _ = self._door.accept()
        caller.settimeout(REQUEST_S)
        descriptors: list[int] = []
        try:
            message, descriptors, _, _ = socket.recv_fds(caller, MESSAGE_BYTES, 3)
            request = json.loads(message)
            if "remove" in request:
                self._folders.append(request["remove"])
                caller.close()
                return
            pid = os.fork()
            if pid == 0:
                self._become(request, descriptors)
            self._running[pid] = caller
            identity = identity_of(pid)
            caller.send(json.dumps({"pid": pid, "started": identity.started}).encode())
        except (OSError, ValueError, KeyError):  # a caller that went away, or is none of ours
            caller.close()
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    def _reap(self) -> None:
        for pid in list(self._running):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                with self._running.pop(pid) as caller, contextlib.suppress(OSError):
                    code = os.waitstatus_to_exitcode(status)
                    caller.send(json.dumps({"code": code}).encode())

    def _clear_away(self) -> None:
        for pid in self._running:
            os.kill(pid, signal.SIGKILL)
        for pid in self._running:
            os.waitpid(pid, 0)
        for folder in self._folders:
            shutil.rmtree(folder, ignore_errors=True)

    def _become(self, request: dict[str, Any], descriptors: list[int]) -> NoReturn:
        """This process, just forked, is the one that was asked for."""
        code = 1
        try:
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGCHLD, signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                signal.signal(number, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            os.setsid()
            for descriptor, standard in zip(descriptors, (0, 1, 2), strict=True):
                os.dup2(descriptor, standard)
            for each in (self._door, self._ended, self._wakes, *self._running.values()):
                each.close()
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            os.chdir(request["directory"])
            os.environ.clear()
            os.environ.update(request["environment"])
            use_spawner(forked_by(Path(self._path)))
            sys.argv = ["", *request["words"]]
            runpy.run_module(request["module"], run_name="__main__", alter_sys=True)
            code = 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
        except BaseException:  # noqa: BLE001 - as the interpreter would tell it
            traceback.print_exc()
        finally:
            with contextlib.suppress(OSError):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(code)


def make_commands() -> None:
    """What the signatures of commands say is looked up once: it takes as long as the rest of a
    short command."""
    typer.main.get_command = functools.cache(typer.main.get_command)
    for program in (app, PROGRAMS["group"].load(), PROGRAMS["node"].load()):
        typer.main.get_command(program)


def main(path: str, *more: str) -> None:
    """Imports, says so on standard output, and serves."""
    for name in (*PRELOADED, *more):
        importlib.import_module(name)
    make_commands()
    nursery = Nursery(path)
    gc.collect()
    gc.freeze()  # what is shared stays so: collections of the forked don't write to it
    print("warm", flush=True)
    nursery.serve()
    Path(path).unlink(missing_ok=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
