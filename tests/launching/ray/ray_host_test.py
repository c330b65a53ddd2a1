"""Ray as a host, with the test in place of Ray; see launchers/ray_test.py."""

import os
import signal
import threading

import pytest

from distmnist.common import cli
from distmnist.launching import host as host_lib
from distmnist.launching import jobs
from distmnist.launching.ray import ray_host
from tests.support.fake_ray import ActorDiedError, FakeRay

CLUSTER = jobs.make_tasks(['node-0:2222'], ['node-1:2222', 'node-2:2222'], [])
NAMES = [task.name for task in CLUSTER]
PLACES = {
  'ps 0': '10.0.0.1:7',
  'worker 0': '10.0.0.2:8',
  'worker 1': '10.0.0.2:9',
}
EVALUATOR = jobs.Task('evaluator', 0, 'its actor', None, ('python', '-m', 'x'))


class Room:
  """A host that is open, and the Ray that it is on."""

  def __init__(self, ray, folder, wait_secs=600.0):
    self.ray, self.folder = ray, folder
    self.host = ray_host.RayHost(
      [CLUSTER, [EVALUATOR]],
      {name: {'CPU': 1} for name in ('ps 0', 'evaluator 0')}
      | {f'worker {i}': {'CPU': 2, 'GPU': 1} for i in range(2)},
      '/work',
      {'A': 'all'},
      8.0,
      wait_secs,
    )

  def start(self, tasks, **env):
    for task in tasks:
      log = str(self.folder / f'{task.name}.log')
      self.host.start(host_lib.Request(task.name, task.argv, env, log))

  def answer(self, ref, answer):
    """Has Ray answer; returns what has ended since."""
    ref.answer = answer
    return self.host.poll(0)

  def place(self):
    """Has Ray place the cluster; returns its actors, the last three."""
    self.answer(self.ray.placements[-1].ref, None)
    return dict(zip(NAMES, self.ray.actors[-3:], strict=True))

  def begin(self):
    """Starts the cluster; returns its actors by name."""
    self.start(CLUSTER)
    actors = self.place()
    for name, actor in actors.items():
      assert self.answer(actor.find('find_address'), PLACES[name]) == []
    for actor in actors.values():
      assert self.answer(actor.find('start'), None) == []
    return actors


@pytest.fixture
def ray(monkeypatch):
  ray = FakeRay()
  ray.put_in(monkeypatch)
  return ray


@pytest.fixture
def room(ray, tmp_path):
  room = Room(ray, tmp_path)
  with room.host:
    yield room
  assert all(placement.is_removed for placement in ray.placements)
  assert all(actor.is_killed for actor in ray.actors)


def test_tasks_start_once_all_have_said_where_they_are(room):
  room.start(CLUSTER[:2], B='own')
  assert not room.ray.placements
  room.start(CLUSTER[2:])
  (placement,) = room.ray.placements
  assert placement.bundles == [{'CPU': 1}, *2 * [{'CPU': 2, 'GPU': 1}]]
  assert not room.ray.actors
  actors = room.place()
  ps, worker, last = actors.values()
  assert (ps.options['num_cpus'], ps.options['num_gpus']) == (1, 0)
  assert (last.options['num_cpus'], last.options['num_gpus']) == (2, 1)
  assert last.options['scheduling_strategy'] == (placement, 2)
  for name in NAMES[:2]:
    room.answer(actors[name].find('find_address'), PLACES[name])
  assert len(ps.calls) == 1
  room.answer(last.find('find_address'), PLACES['worker 1'])
  name, argv, env, folder, grace_secs = worker.find('start').call
  assert argv[-2:] == [
    '--ps_hosts=10.0.0.1:7',
    '--worker_hosts=10.0.0.2:8,10.0.0.2:9',
  ]
  assert (name, env, folder) == ('start', {'A': 'all', 'B': 'own'}, '/work')
  assert grace_secs > 8


def test_the_log_grows_and_is_asked_for_from_the_byte_that_is_missing(
  room, monkeypatch
):
  ps = room.begin()['ps 0']
  assert ps.find('follow').call == ('follow', 0)
  assert room.answer(ps.find('follow'), (b'one\nt', 40, None)) == []
  assert ps.find('follow').call == ('follow', 40)
  # A call that has failed has taken nothing away.
  monkeypatch.setattr(ray_host, 'ASK_AGAIN_SECS', -1.0)
  lost = ps.find('follow')
  assert room.answer(lost, ConnectionError('no route')) == []
  assert ps.find('follow') is not lost
  assert ps.find('follow').call == ('follow', 40)
  assert room.answer(ps.find('follow'), (b'wo\n', 43, None)) == []
  assert room.answer(ps.find('follow'), (b'', 43, 0)) == [('ps 0', 0)]
  assert (room.folder / 'ps 0.log').read_text() == 'one\ntwo\n'
  assert ps.is_killed and not room.ray.placements[0].is_removed


@pytest.mark.parametrize(
  ('code', 'known', 'reason'),
  [
    (3, 3, 'exit code 3 on 10.0.0.2'),
    (137, -9, 'killed by SIGKILL on 10.0.0.2'),
    (143, 143, 'exit code 143 on 10.0.0.2'),
    (200, 200, 'exit code 200 on 10.0.0.2'),
  ],
)
def test_an_end_is_told_with_the_node(room, code, known, reason):
  worker = room.begin()['worker 0']
  events = room.answer(worker.find('follow'), (b'', 0, code))
  assert events == [('worker 0', known)]
  assert room.host.reasons == {'worker 0': reason}


def test_a_task_that_cannot_start_there_says_why(room):
  room.start(CLUSTER)
  actors = room.place()
  for name, actor in actors.items():
    room.answer(actor.find('find_address'), PLACES[name])
  ref = actors['worker 1'].find('start')
  assert room.answer(ref, 'there is no folder /work') == [('worker 1', 1)]
  assert room.host.reasons['worker 1'] == (
    'cannot run on 10.0.0.2: there is no folder /work'
  )


def test_a_lost_actor_ends_its_task_and_all_start_again_elsewhere(room):
  actors = room.begin()
  lost = ActorDiedError(
    'The actor died unexpectedly before finishing this task.\n\tpid: 7\n'
    'The actor is dead because its node has died. Node Id: 1f.\n\tthe node ...'
  )
  events = room.answer(actors['worker 1'].find('follow'), lost)
  assert events == [('worker 1', cli.LOST)]
  assert room.host.reasons['worker 1'] == (
    'lost on 10.0.0.2: its node has died'
  )
  room.host.signal(['ps 0', 'worker 0'], signal.SIGINT)
  for name in ('worker 0', 'ps 0'):
    assert actors[name].find('signal').call == ('signal', signal.SIGTERM)
    room.answer(actors[name].find('follow'), (b'', 0, 143))
  assert room.ray.placements[0].is_removed
  again = room.begin()
  assert len(room.ray.placements) == 2
  assert not {*again.values()} & {*actors.values()}


def test_what_is_not_placed_yet_ends_at_once(room):
  room.start(CLUSTER)
  room.host.signal(['worker 0', 'worker 1'], signal.SIGTERM)
  assert sorted(room.host.poll(0)) == [(name, -15) for name in NAMES]
  assert room.ray.placements[0].is_removed
  # An answer that comes late is not for the next attempt.
  late = room.ray.placements[0].ref
  room.start(CLUSTER)
  assert room.answer(late, None) == [] and not room.ray.actors
  room.host.kill()
  assert len(room.host.poll(0)) == 3


def test_all_give_up_if_one_of_them_does_not_come_to_be(room):
  room.start(CLUSTER)
  actors = room.place()
  for name in ('ps 0', 'worker 0'):
    room.answer(actors[name].find('find_address'), PLACES[name])
  failed = RuntimeError('no space\n for the package')
  assert room.answer(actors['worker 1'].find('find_address'), failed) == [
    ('worker 1', cli.LOST),
    ('ps 0', -signal.SIGTERM),
    ('worker 0', -signal.SIGTERM),
  ]
  assert room.host.reasons == {'worker 1': 'lost: no space for the package'}
  assert room.ray.placements[0].is_removed


def test_a_killed_task_that_says_nothing_counts_as_killed(room, monkeypatch):
  worker = room.begin()['worker 0']
  monkeypatch.setattr(ray_host, 'KILL_SECS', -1.0)
  room.host.signal(['worker 0'], signal.SIGKILL)
  assert worker.find('signal').call == ('signal', signal.SIGKILL)
  assert room.host.poll(0) == [('worker 0', -signal.SIGKILL)]
  assert room.host.reasons['worker 0'] == (
    'its actor on 10.0.0.2 does not answer: killed'
  )
  # That its actor is gone then is no news.
  gone = ActorDiedError('because it was killed')
  assert room.answer(worker.find('follow'), gone) == []


@pytest.mark.parametrize(
  ('cause', 'said'),
  [
    (None, 'no route'),
    (OSError(2, 'no sh'), 'FileNotFoundError: [Errno 2] no'),
  ],
)
def test_an_error_of_the_actor_itself_is_one_line(cause, said):
  error = RuntimeError('no\nroute')
  error.cause = cause
  assert ray_host.explain(error).startswith(said)


def test_no_room_is_one_line_with_what_ray_has(ray, tmp_path):
  room = Room(ray, tmp_path, wait_secs=0.0)
  with room.host, pytest.raises(cli.RunError) as caught:
    room.start(CLUSTER)
    room.host.poll(0)
  assert str(caught.value) == (
    'after 0 s Ray has not started ps 0, worker 0, worker 1: 5 CPUs are needed,'
    ' at most 2 on one node, and Ray has 4, of which 1 are free; 2 GPUs are'
    ' needed, at most 1 on one node, and Ray has 0, of which 0 are free (nodes:'
    ' 1); ask for fewer tasks, or see --ray_cpus, --ray_gpus and'
    ' --ray_wait_secs'
  )


def test_an_actor_that_does_not_start_its_task_is_named(
  ray, tmp_path, monkeypatch
):
  room = Room(ray, tmp_path, wait_secs=60.0)
  with room.host:
    room.start(CLUSTER)
    actors = room.place()
    for name, actor in actors.items():
      room.answer(actor.find('find_address'), PLACES[name])
    room.answer(actors['ps 0'].find('start'), None)
    [group, _] = room.host._groups
    monkeypatch.setattr(group.wait, 'is_over', lambda what: True)
    with pytest.raises(cli.LostError, match='has not started worker 0, work'):
      room.host.poll(0)


def test_an_evaluator_without_room_ends_alone(ray, tmp_path):
  room = Room(ray, tmp_path, wait_secs=0.0)
  with room.host:
    room.start([EVALUATOR])
    assert room.host.poll(0) == [('evaluator 0', cli.FAILED)]
  assert 'Ray has not started evaluator 0' in room.host.reasons['evaluator 0']


def test_no_room_after_a_loss_is_worth_another_try(ray, tmp_path):
  room = Room(ray, tmp_path, wait_secs=60.0)
  with room.host:
    room.host.signal(room.begin(), signal.SIGTERM)
    for actor in ray.actors:
      room.answer(actor.find('follow'), (b'', 0, 143))
    room.host._wait_secs = 0.0
    room.start(CLUSTER)
    with pytest.raises(cli.LostError, match='Ray has not started'):
      room.host.poll(0)


def test_an_evaluator_stays_while_the_others_start_again(room):
  room.start([EVALUATOR])
  room.answer(room.ray.placements[0].ref, None)
  (evaluator,) = room.ray.actors
  room.answer(evaluator.find('find_address'), '10.0.0.9:5')
  assert evaluator.find('start').call[1] == ['python', '-m', 'x']
  room.answer(evaluator.find('start'), None)
  actors = room.begin()
  for name in NAMES:
    room.answer(actors[name].find('follow'), (b'', 0, 0))
  assert room.ray.placements[1].is_removed and not evaluator.is_killed


def test_a_signal_to_the_launcher_ends_a_poll(room):
  room.begin()
  sent = signal.SIGTERM
  timer = threading.Timer(0.2, os.kill, [os.getpid(), sent])
  timer.start()
  assert room.host.poll() == []  # Which has no other end.
  timer.join()
  assert room.host.signals == [sent]


def test_a_disk_that_is_full_costs_lines_and_not_the_run(room):
  room.host.start(host_lib.Request('evaluator 0', [], {}, '/dev/full'))
  room.answer(room.ray.placements[0].ref, None)
  (actor,) = room.ray.actors
  room.answer(actor.find('find_address'), '10.0.0.9:5')
  room.answer(actor.find('start'), None)
  assert room.answer(actor.find('follow'), (b'one\n', 4, None)) == []
  assert actor.find('follow').call == ('follow', 4)
