"""The ring itself; what it is for is tested in test_guard.py, with processes."""

import os
import socket
import threading
import time
from dataclasses import replace
from typing import NoReturn

import pytest
from torch.distributed import HashStore

from megalith.comm import heartbeat
from megalith.comm.heartbeat import Link, Peer, Watch
from megalith.comm.place import Place
from megalith.errors import MegalithError
from tests.comm.ranks import free_port, wait_until

ME = Peer(0, 10, "here", ("127.0.0.1",), 1, "a" * 32)
OTHER = Peer(1, 11, "there", ("127.0.0.1",), 1, "b" * 32)


def environment(port: int) -> dict[str, str]:
    return {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}


def set_environment(port: int, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    for name, value in environment(port).items():
        monkeypatch.setenv(name, value)
    return environment(port)


def test_port_that_is_taken_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(MegalithError, match=rf"rank 0 cannot meet .* 127.0.0.1:{port}"):
            Watch.join(Place(0, 2, 0, 2), set_environment(port, monkeypatch))


def test_port_that_is_none_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(MegalithError, match=r"127.0.0.1:70000 .*MASTER_PORT"):
        Watch.join(Place(0, 2, 0, 2), set_environment(70000, monkeypatch))


def test_rank_that_does_not_come_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeat, "SECONDS_TO_JOIN", 0.1)
    with pytest.raises(MegalithError, match="'peer/1' is still missing"):
        heartbeat._read_peer(HashStore(), 1)


def test_rank_that_cannot_be_reached_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    closed = replace(OTHER, port=free_port())
    assert heartbeat._connect(closed, ME) is None
    said = capsys.readouterr().err
    assert "rank 0 (pid 10 on here) cannot reach rank 1 (pid 11 on there) at 127.0.0.1" in said
    assert "--distributed-timeout-minutes" in said


def test_stranger_is_turned_away() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        stranger = socket.create_connection(listener.getsockname())
        stranger.sendall(b"GET / HTTP/1.1".ljust(len(ME.token)))
        neighbour = heartbeat._connect(replace(ME, port=listener.getsockname()[1]), OTHER)
        assert neighbour is not None
        accepted = heartbeat._accept(listener, ME)
        assert accepted.getpeername() == neighbour.getsockname()
        assert stranger.recv(1) == b""
        for end in (stranger, neighbour, accepted):
            end.close()


class Ended(Exception):
    """Stands for the end of the process."""


@pytest.fixture
def statuses(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """With which statuses the process would have ended."""
    seen: list[int] = []

    def end(status: int) -> NoReturn:
        seen.append(status)
        raise Ended

    monkeypatch.setattr(os, "_exit", end)
    monkeypatch.setattr(threading, "excepthook", lambda arguments: None)
    monkeypatch.setattr(heartbeat, "SECONDS_FOR_NEWS", 0.05)
    monkeypatch.setattr(heartbeat, "SECONDS_TO_LINGER", 0.0)
    return seen


def watch_over_one_link(
    is_previous: bool, store: HashStore | None = None
) -> tuple[Watch, socket.socket]:
    """A watch, and the other end of its only link."""
    ours, theirs = socket.socketpair()
    return Watch(ME, 2, store or HashStore(), [Link(OTHER, ours, is_previous)]), theirs


@pytest.mark.parametrize("is_previous", [True, False])
def test_lost_neighbour_is_told_even_where_one_link_is_missing(
    is_previous: bool, statuses: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    _, theirs = watch_over_one_link(is_previous)
    theirs.close()
    wait_until(lambda: statuses == [1])
    assert "rank 1 (pid 11 on there) died or is unreachable" in capsys.readouterr().err


def test_status_of_a_failed_rank_is_taken_over_and_passed_on(statuses: list[int]) -> None:
    _, theirs = watch_over_one_link(is_previous=True)
    theirs.sendall(bytes([2]))
    wait_until(lambda: statuses == [2])
    assert theirs.recv(1) == bytes([2])
    theirs.close()


def test_neighbour_that_parted_is_not_missed(statuses: list[int]) -> None:
    _, theirs = watch_over_one_link(is_previous=False)
    theirs.sendall(bytes([heartbeat._BYE]))
    theirs.close()
    wait_until(lambda: "watch" not in [thread.name for thread in threading.enumerate()])
    assert statuses == []


def test_only_the_first_rank_tells(statuses: list[int], capsys: pytest.CaptureFixture[str]) -> None:
    store = HashStore()
    for rank, why in [(0, "the cause"), (1, "a consequence")]:
        watch, theirs = watch_over_one_link(is_previous=True, store=store)
        watch.me = replace(ME, rank=rank)
        with pytest.raises(Ended):
            watch.end_all(1, why)
        assert theirs.recv(1) == bytes([1])
    assert capsys.readouterr().err == "megalith: the cause\n"


def test_word_of_the_end_does_not_cut_short_who_tells(
    statuses: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    watch, theirs = watch_over_one_link(is_previous=True)
    told: list[str] = []

    def tell_slowly(message: str) -> None:
        theirs.sendall(bytes([1]))
        time.sleep(0.2)
        told.append(message if not statuses else "too late")

    monkeypatch.setattr(heartbeat, "tell", tell_slowly)
    with pytest.raises(Ended):
        watch.end_all(2, "why")
    assert (told, statuses) == (["why"], [2])
