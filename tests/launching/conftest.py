"""Fork servers that a test speaks with."""

import json
import os

import pytest

from tests.support.forked import AS_NOBODY, Server


@pytest.fixture
def server(tmp_path):
  with Server('fake_train', tmp_path / 'server.log') as server:
    assert server.read() == {'ready': True}
    yield server
  assert (tmp_path / 'server.log').read_text() == ''


@pytest.fixture
def nobodys_server(tmp_path):
  if os.geteuid():
    pytest.skip('only root can drop its rights')
  log = tmp_path / 'server.log'
  with Server('fake_train', log, ('-c', AS_NOBODY)) as server:
    if not (data := server.socket.recv(1 << 16)):
      pytest.skip(log.read_text())
    assert json.loads(data) == {'ready': True}
    yield server
