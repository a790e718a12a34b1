"""A process reads its place in the run from the environment."""

import pytest

from megalith.comm.place import Place
from megalith.errors import MegalithError

MASTER = {"MASTER_ADDR": "localhost", "MASTER_PORT": "6000"}


def test_without_a_launcher_a_process_is_alone() -> None:
    assert Place.from_environment({}) == Place(0, 1, 0, 1)
    assert Place.from_environment({"WORLD_SIZE": "1"}) == Place(0, 1, 0, 1)


def test_what_torchrun_sets_is_read() -> None:
    local = {"LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4"}
    environment = {"RANK": "5", "WORLD_SIZE": "8", **local, **MASTER}
    assert Place.from_environment(environment) == Place(5, 8, 1, 4)


def test_ranks_started_by_hand_are_on_one_host() -> None:
    environment = {"RANK": "1", "WORLD_SIZE": "2", **MASTER}
    assert Place.from_environment(environment) == Place(1, 2, 1, 2)


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"WORLD_SIZE": "many"}, "WORLD_SIZE='many', which is no number"),
        ({"WORLD_SIZE": "2", "RANK": "-1", **MASTER}, "RANK='-1', which is no number"),
        ({"WORLD_SIZE": "2", "RANK": "2", **MASTER}, "RANK=2 and WORLD_SIZE=2"),
        ({"WORLD_SIZE": "2", **MASTER}, "WORLD_SIZE=2 but has no RANK"),
        ({"WORLD_SIZE": "2", "RANK": "0"}, "WORLD_SIZE=2 but has no MASTER_ADDR"),
        ({"WORLD_SIZE": "0"}, "WORLD_SIZE=0"),
    ],
)
def test_mistakes_are_named_with_the_way_out(environment: dict[str, str], message: str) -> None:
    with pytest.raises(MegalithError, match=message) as caught:
        Place.from_environment(environment)
    assert "torchrun" in str(caught.value)
