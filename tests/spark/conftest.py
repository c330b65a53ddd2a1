"""A desk, and agents that the test plays."""

import pytest

from distmnist.spark import agent_server
from tests.support.desk_room import Room


@pytest.fixture
def room(tmp_path, monkeypatch):
  # Nothing is late unless a test wants it so.
  for name in ('HELLO_SECS', 'LEAVE_SECS', 'STOP_MARGIN_SECS'):
    monkeypatch.setattr(agent_server, name, 600)
  room = Room(tmp_path)
  with room.desk:
    yield room
  for connection in room.opened:
    connection.close()
