"""When one rank ends, all end: a dead rank is noticed by its neighbours on a ring.

Each rank holds an idle TCP connection to the next one. The kernel closes it when a process dies,
and its keepalive probes find a host that is gone, so that a rank which is merely busy (or stopped,
or in a long call that holds the interpreter) is never taken for dead. Word that the run is over
travels along the ring in both directions; a thread receives it, so a rank blocked in a collective
ends too. A key in the run's store settles which rank tells the user.
"""

import contextlib
import json
import os
import secrets
import selectors
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import NoReturn

from torch.distributed import DistError
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from megalith.comm.place import Place
from megalith.errors import MegalithError

SECONDS_TO_JOIN = 600.0
SECONDS_TO_CONNECT = 10.0
SECONDS_TO_CLAIM = 5.0
SECONDS_TO_FINISH = 3600.0
SECONDS_TO_FLUSH = 1.0
SECONDS_TO_LINGER = 1.0
SECONDS_FOR_NEWS = 2.0
"""How long a rank that failed waits to hear that another's failure is the cause of its own."""

PROBE_AFTER, PROBE_EVERY, PROBES = 5, 3, 5
"""Keepalive: seconds of silence, seconds between probes, unanswered probes until given up."""

# A message is one byte: the exit status that all ranks take, or 0 to part in peace.
_BYE = 0


@dataclass(frozen=True)
class Peer:
    """How a rank can be reached, and what to call it."""

    rank: int
    pid: int
    host: str
    addresses: tuple[str, ...]
    port: int
    token: str

    def __str__(self) -> str:
        return f"rank {self.rank} (pid {self.pid} on {self.host})"


@dataclass(frozen=True)
class Link:
    """A connection to a neighbour on the ring."""

    peer: Peer
    socket: socket.socket
    is_previous: bool


class Watch:
    """This rank's links of the ring and the thread that listens to them."""

    def __init__(self, me: Peer, world_size: int, store: Store, links: Sequence[Link]) -> None:
        self.me = me
        self._world_size = world_size
        self._store = store
        # A store serves one caller at a time. (torch's stubs lack its clone.)
        self._claims: Store = store.clone()  # type: ignore[attr-defined]
        self._links = tuple(links)
        self._leaving = False
        self._ending = threading.Lock()
        threading.Thread(target=self._listen, name="watch", daemon=True).start()

    @staticmethod
    def join(place: Place, environment: Mapping[str, str]) -> "Watch":
        """Finds the neighbours through the store of the run. Every rank calls it, before training.

        Raises MegalithError if the other ranks do not come.
        """
        store = _open_store(place, environment)
        with socket.create_server(("", 0)) as listener:
            me = _myself(place, environment["MASTER_ADDR"], listener.getsockname()[1])
            store.set(f"peer/{place.rank}", json.dumps(asdict(me)))
            following = _read_peer(store, (place.rank + 1) % place.world_size)
            previous = _read_peer(store, (place.rank - 1) % place.world_size)
            links = []
            if connection := _connect(following, me):
                links.append(Link(following, connection, is_previous=False))
            store.set(f"linked/{place.rank}", "yes" if connection else "no")
            if _read(store, f"linked/{previous.rank}") == "yes":
                links.append(Link(previous, _accept(listener, me), is_previous=True))
        return Watch(me, place.world_size, store, links)

    def end_all(self, status: int, why: str | None = None) -> NoReturn:
        """Ends the whole run: tells both neighbours and leaves at once, without clean-up.

        The user is told `why`, unless another rank has told him first.
        """
        self._ending.acquire()  # for good: one thread alone ends the process, and is not cut short
        if why is not None and self._claim():
            tell(why)
        self._send(status)
        for stream in (sys.stdout, sys.stderr):
            _within(SECONDS_TO_FLUSH, stream.flush)
        if self.me.rank == 0:
            time.sleep(SECONDS_TO_LINGER)  # it may hold the store, which others still ask
        os._exit(status)  # even while another thread is blocked in a collective

    def _claim(self) -> bool:
        """Whether this rank is the first to ask."""
        answers: list[bool] = []  # stays empty if the store went with the rank that held it

        def ask() -> None:
            me = str(self.me.rank)
            with contextlib.suppress(DistError):
                answers.append(self._claims.compare_set("failure", "", me) == me.encode())

        _within(SECONDS_TO_CLAIM, ask)
        return not answers or answers[0]

    def await_news(self) -> None:
        """Gives word of another rank's failure time to come; if it comes, the process ends here."""
        time.sleep(SECONDS_FOR_NEWS)

    def finish(self) -> None:
        """Waits until every rank came here; a failure of any still ends all."""
        if self._store.add("finished", 1) == self._world_size:
            self._store.set("all finished", "")
        self._store.wait(["all finished"], timedelta(seconds=SECONDS_TO_FINISH))

    def leave(self) -> None:
        """Parts from the neighbours after `finish`: from now on nobody misses this rank."""
        self._leaving = True
        self._send(_BYE)
        with contextlib.suppress(DistError):  # what happens from here on spoils nothing
            if self._store.add("left", 1) == self._world_size:
                self._store.set("all left", "")
            if self.me.rank == 0:  # it may hold the store, which the others still read
                self._store.wait(["all left"], timedelta(seconds=SECONDS_TO_CONNECT))

    def _send(self, message: int) -> None:
        for link in self._links:
            with contextlib.suppress(OSError):  # a neighbour that is gone needs no message
                link.socket.sendall(bytes([message]))

    def _listen(self) -> None:
        lost: Peer | None = None
        with selectors.DefaultSelector() as selector:
            for link in self._links:
                selector.register(link.socket, selectors.EVENT_READ, link)
            while selector.get_map() or lost:
                ready = [key.data for key, _ in selector.select(SECONDS_FOR_NEWS if lost else None)]
                if lost and not ready:
                    self._report(lost)
                for link in ready:
                    selector.unregister(link.socket)
                    message = _receive(link.socket)
                    if message is None and link.is_previous:
                        self._report(link.peer)
                    elif message is None:
                        lost = link.peer  # the rank after it tells, unless that is lost too
                    elif message != _BYE:
                        self.end_all(message)

    def _report(self, lost: Peer) -> None:
        if not self._leaving:
            self.end_all(
                1,
                f"{lost} died or is unreachable: killed from outside, out of memory (see the "
                f"kernel's log, dmesg), or its host is gone. All ranks stop; go on from the last "
                f"checkpoint.",
            )


def tell(message: str) -> None:
    """Writes a message for the user in one piece, so that ranks do not mix their lines."""
    sys.stderr.write(f"megalith: {message}\n")
    sys.stderr.flush()


def _open_store(place: Place, environment: Mapping[str, str]) -> Store:
    """The store that torchrun holds, or else rank 0; apart for each restart of the run."""
    address, port = environment["MASTER_ADDR"], environment["MASTER_PORT"]
    wait = timedelta(seconds=SECONDS_TO_JOIN)
    try:
        meeting = rendezvous("env://", place.rank, place.world_size, timeout=wait)
        store, _, _ = next(meeting)
    except (RuntimeError, ValueError) as error:
        raise MegalithError(
            f"rank {place.rank} cannot meet the other ranks at {address}:{port} (MASTER_ADDR and "
            f"MASTER_PORT): {str(error).splitlines()[0]}. All ranks must be given the same "
            "address, of the host of rank 0, and a port that is free there."
        ) from error
    attempt = environment.get("TORCHELASTIC_RESTART_COUNT", "0")
    return PrefixStore(f"megalith/watch/{attempt}", store)


def _read(store: Store, key: str) -> str:
    try:
        store.wait([key], timedelta(seconds=SECONDS_TO_JOIN))
    except DistError as error:
        raise MegalithError(
            f"the run starts only when all ranks are there, and after {SECONDS_TO_JOIN:.0f} s "
            f"{key!r} is still missing: see what became of that rank, on its host."
        ) from error
    return store.get(key).decode()


def _read_peer(store: Store, rank: int) -> Peer:
    fields = json.loads(_read(store, f"peer/{rank}"))
    return Peer(**{**fields, "addresses": tuple(fields["addresses"])})


def _myself(place: Place, master: str, port: int) -> Peer:
    host = socket.gethostname()
    routes = (_address_toward(target) for target in (master, host, "10.255.255.255"))
    addresses = tuple(dict.fromkeys(route for route in routes if route))
    return Peer(place.rank, os.getpid(), host, addresses, port, secrets.token_hex(16))


def _address_toward(target: str) -> str | None:
    """Our own address on the way to a host; sends nothing."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((target, 9))
        except OSError:
            return None
        return str(probe.getsockname()[0])


def _connect(peer: Peer, me: Peer) -> socket.socket | None:
    """A link to the next rank; None, with a notice, where the network does not allow it."""
    addresses = ("127.0.0.1",) if peer.host == me.host else peer.addresses
    for address in addresses:
        with contextlib.suppress(OSError):
            link = socket.create_connection((address, peer.port), SECONDS_TO_CONNECT)
            link.sendall(peer.token.encode())
            return _keep_alive(link)
    tell(
        f"{me} cannot reach {peer} at {', '.join(addresses)} port {peer.port}: should it die, this "
        f"will be noticed only after --distributed-timeout-minutes. Allow TCP between the hosts."
    )
    return None


def _accept(listener: socket.socket, me: Peer) -> socket.socket:
    """The link that the previous rank made; whoever does not know the token is turned away."""
    while True:
        link, _ = listener.accept()
        link.settimeout(SECONDS_TO_CONNECT)
        with contextlib.suppress(OSError):
            if link.recv(len(me.token), socket.MSG_WAITALL) == me.token.encode():
                return _keep_alive(link)
        link.close()


def _keep_alive(link: socket.socket) -> socket.socket:
    link.settimeout(None)
    link.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    wanted = {"TCP_KEEPIDLE": PROBE_AFTER, "TCP_KEEPINTVL": PROBE_EVERY, "TCP_KEEPCNT": PROBES}
    for option, value in wanted.items():
        if hasattr(socket, option):  # macOS lacks the first
            link.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
    return link


def _receive(link: socket.socket) -> int | None:
    """One message; None when the other end is gone."""
    try:
        message = link.recv(1)
    except OSError:
        return None
    return message[0] if message else None


def _within(seconds: float, call: Callable[[], object]) -> None:
    """Calls, but goes on without it when it takes longer."""
    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(seconds)
