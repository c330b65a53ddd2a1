"""A host of executors, and agents that the test plays."""

import pytest

from distmnist.spark import agent_server
from tests.support.host_room import Room


@pytest.fixture
def room(tmp_path, monkeypatch):
  # Nothing is late unless a test wants it so.
  monkeypatch.setattr(agent_server, 'HELLO_SECS', 600)
  room = Room(tmp_path)
  yield room
  room.close()
  for connection in room.opened:
    connection.close()
