"""What an entry of StepStats is in a timeline."""

import pytest
from tensorflow.core.framework import step_stats_pb2

from distmnist.training.telemetry import step_events

PS, WORKER = (
  f'/job:{job}/replica:0/task:1/device:CPU:0' for job in ('ps', 'worker')
)


def find(device, label, name='n', offsets=None, micros=5):
  stats = step_stats_pb2.StepStats()
  node = stats.dev_stats.add(device=device).node_stats.add()
  node.node_name, node.timeline_label = name, label
  node.all_start_micros, node.op_end_rel_micros = 2_000_000, micros
  return step_events.find_events(stats, 'worker 0', offsets or {})


def message(size, source):
  return f'[{size}] [4.8Gb/s] edge_57_wire/concat from {source} to /x'


@pytest.mark.parametrize(
  ('device', 'label', 'kind', 'name'),
  [
    (WORKER, message('0.2MB', PS), 'pull', 'pull: ps 1'),
    (PS, message('3.0KB', WORKER), 'push', 'push: worker 1'),
    (WORKER, message('16B', PS), 'wait', 'wait: ps 1'),
    (PS, message('0B', PS), 'wait', 'wait: ps 1'),
    (WORKER, 'h/MatMul = _MklMatMul(a, b)', 'compute', '_MklMatMul'),
    (PS, 't/Dequeue = QueueDequeueV2(a)', 'wait', 'QueueDequeueV2'),
    (PS, 'm/Lock = MutexLock(a)', 'wait', 'MutexLock'),
    (PS, '', 'compute', 'n'),
  ],
)
def test_kinds(device, label, kind, name):
  (event,) = find(device, label)
  assert (event['kind'], event['name']) == (kind, name)
  assert event['task'] == ('ps 1' if device == PS else 'worker 1')
  assert (event['start'], event['micros']) == (2_000_000, 5)


def test_a_message_says_what_came_from_where():
  (event,) = find(WORKER, message('1.5KB', PS))
  assert event['args'] == {
    **{'tensor': 'wire/concat', 'bytes': 1536, 'from': 'ps 1'}
  }


def test_a_clock_that_is_ahead_is_set_back():
  (event,) = find(PS, 'a = B()', offsets={'ps 1': 0.5})
  assert event['start'] == 1_500_000
  (event,) = find(WORKER, 'a = B()', offsets={'ps 1': 0.5})
  assert event['start'] == 2_000_000


def test_one_process_has_its_own_name_and_streams_are_left_out():
  alone = '/job:localhost/replica:0/task:0/device:CPU:0'
  assert find(alone, 'a = B()')[0]['task'] == 'worker 0'
  assert find(f'{WORKER[:-5]}GPU:0/stream:all', 'a = B()') == []
  assert find(WORKER, 'a = B()', micros=0) == []


@pytest.mark.parametrize('unit', ['CPU:0', 'GPU:1'])
def test_an_op_says_on_which_device_it_ran(unit):
  (event,) = find(f'{WORKER[:-5]}{unit}', 'a = B()')
  assert event['args'] == {'op': 'n', 'device': unit}
