"""An actor without Ray: its methods are plain coroutines."""

import asyncio
import os
import signal
import subprocess
import sys

import psutil
import pytest

from distmnist.launching.ray import task_actor
from tests.support.background import assert_gone, wait_until
from tests.support.fake_ray import FakeRay
from tests.support.paths import PYTHONPATH


@pytest.fixture
def actor(monkeypatch):
  FakeRay().put_in(monkeypatch)
  monkeypatch.setenv('PYTHONPATH', PYTHONPATH)
  actor = task_actor.TaskActor()
  yield actor
  actor._held.close()
  actor._output.close()
  if hasattr(actor, '_agent'):
    actor._agent.stdin.close()
    actor._agent.wait()


def make_argv(do, folder):
  return ['python', '-m', 'fake_train', f'--do={do}', f'--folder={folder}']


async def read_to_the_end(actor):
  """Returns what the task has written (str), and its code (int)."""
  offset, text, code = 0, b'', None
  while code is None:
    data, offset, code = await actor.follow(offset)
    text += data
  return text.decode(), code


@pytest.mark.slow
def test_a_task_has_the_port_the_variables_and_the_folder(actor, tmp_path):
  async def run():
    address = await actor.find_address()
    flags = [f'--worker_hosts={address}']
    do = 'worker0:serve,env=A,env=CUDA_VISIBLE_DEVICES,touch=on,exit=5'
    argv = make_argv(do, '.') + flags
    assert await actor.start(argv, {'A': 'b c'}, str(tmp_path), 8.0) is None
    return address, *await read_to_the_end(actor)

  address, text, code = asyncio.run(run())
  host, _, port = address.rpartition(':')
  assert host == '10.0.0.7'
  assert (text.splitlines(), code) == (
    [
      *('the port was held', f'serving on {port}'),
      *("A='b c'", "CUDA_VISIBLE_DEVICES='4'"),
    ],
    5,
  )
  assert (tmp_path / 'worker0.on').exists()


@pytest.mark.slow
def test_a_signal_reaches_the_task(actor, tmp_path):
  async def run():
    await actor.start(make_argv('all:leave', tmp_path), {}, '/', 8.0)
    while not (tmp_path / 'worker0.ready').exists():
      assert (await actor.follow(0))[2] is None
    await actor.signal(signal.SIGTERM)
    return await read_to_the_end(actor)

  assert asyncio.run(run()) == ('leaving on 15\n', 143)


@pytest.mark.slow
def test_a_folder_that_is_not_there_is_named(actor):
  words = asyncio.run(actor.start([], {}, '/no/such', 8.0))
  assert words == 'there is no folder /no/such: --ray_dir names one that is'


# Starts a task, and then waits.
PROGRAM = """
import asyncio, sys
from distmnist.launching.ray import task_actor
from tests.support.fake_ray import FakeRay

sys.modules['ray'] = ray = FakeRay()
sys.modules['ray.util'] = ray.util

async def run():
  actor = task_actor.TaskActor()
  await actor.start(sys.argv[1:], {}, '/', 8.0)
  await asyncio.sleep(100)

asyncio.run(run())
"""


@pytest.mark.slow
def test_without_its_actor_a_task_ends_in_order(tmp_path):
  """Ray kills the actor and its children, and not what they have started."""
  argv = make_argv('all:child,leave', tmp_path)
  process = subprocess.Popen(
    [sys.executable, '-c', PROGRAM, *argv],
    env={**os.environ, 'PYTHONPATH': PYTHONPATH},
  )
  with process:
    wait_until((tmp_path / 'worker0.ready').exists, lambda: 'not ready')
    actor = psutil.Process(process.pid)
    ours = actor.children(recursive=True)
    assert len(ours) == 4  # The shell, the agent, the task, its child.
    for each in [*actor.children(), actor]:
      each.kill()
  assert_gone(ours)
  assert (tmp_path / 'worker0.left').exists()
