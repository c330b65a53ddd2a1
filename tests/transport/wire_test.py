"""transport: few messages between worker and ps, cast on the way."""

import dataclasses
from concurrent import futures

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from distmnist.cluster import cluster as cluster_lib
from distmnist.transport import wire as wire_lib

PS = [f'/job:ps/task:{i}/device:CPU:0' for i in range(2)]
WORKER = '/job:worker/task:0/device:CPU:0'


def make_wire(dtype='float32', num_ps=2, **settings):
  ps_hosts = tuple(f'p{i}:1' for i in range(num_ps))
  cluster = cluster_lib.make_cluster(
    ps_hosts, ('w0:1',), 'worker', 0, wire_dtype=dtype
  )
  return wire_lib.Wire(cluster, **settings)


def find_crossings(tensors):
  """Returns [(dtype, shape)] of what goes from one task to another."""
  found, seen, left = set(), set(), list(tensors)
  while left:
    tensor = left.pop()
    if tensor.op.name in seen:
      continue
    seen.add(tensor.op.name)
    for x in tensor.op.inputs:
      left.append(x)
      if x.op.device and tensor.op.device and x.op.device != tensor.op.device:
        found.add((x.name, x.dtype, tuple(x.shape.as_list())))
  return sorted(((d.name, shape) for _, d, shape in found), key=str)


def build_values(*shapes):
  """Returns float32 tensors made on ps 0."""
  with tf.device(PS[0]):
    return [tf.fill(shape, 1.0 + i) for i, shape in enumerate(shapes)]


def test_what_is_small_travels_together(tf_session):
  values = build_values([2, 3], [4], [])
  arrived = make_wire().to_worker(values, [PS[0]] * 3)
  assert [x.shape.as_list() for x in arrived] == [[2, 3], [4], []]
  assert {x.device for x in arrived} == {WORKER}
  assert find_crossings(arrived) == [('float32', (11,))]


def test_what_is_large_travels_alone(tf_session):
  values = build_values([1 << 19], [2], [3])
  arrived = make_wire().to_worker(values, [PS[0]] * 3)
  assert find_crossings(arrived) == [('float32', (5,)), ('float32', (1 << 19,))]


@pytest.mark.parametrize('size, num_sent', [(1, 1), (16384, 1), (16385, 2)])
def test_what_is_small_travels_with_rows(tf_session, size, num_sent):
  with tf.device(PS[0]):
    small = tf.fill([size], 1.0)
    rows = tf.reshape(tf.range(12.0), [-1, 4])
    rows = [tf.boolean_mask(rows, [True, False, True]) for _ in range(2)]
  arrived = make_wire().to_worker([small, *rows], [PS[0]] * 3)
  assert [x.shape.as_list() for x in arrived] == [[size], [None, 4], [None, 4]]
  assert len(find_crossings(arrived)) == num_sent + 1
  assert make_wire().bundle([small, *rows], [0, 0, 1])[-1] == [2]


@pytest.mark.slow
def test_each_ps_gets_its_own(tf_session):
  with tf.device(WORKER):
    tensors = [tf.fill([n], 1.0) for n in (1, 2, 3, 4)]
  devices = [PS[0], PS[1], PS[0], PS[1]]
  arrived = make_wire().to_ps(tensors, devices)
  assert [x.device for x in arrived] == devices
  assert find_crossings(arrived) == [('float32', (4,)), ('float32', (6,))]


@pytest.mark.parametrize('dtype, size', [('float16', 2), ('bfloat16', 2)])
def test_the_sender_casts_and_the_receiver_casts_back(tf_session, dtype, size):
  half = make_wire(dtype)
  arrived = half.to_worker(build_values([2], [3]), [PS[0]] * 2)
  assert find_crossings(arrived) == [(dtype, (5,))]
  assert {x.dtype for x in arrived} == {tf.float32}
  variables = [tf.get_variable('a', [5]), tf.get_variable('b', [], tf.int64)]
  assert half.count_bytes(variables) == 5 * size + 8
  assert make_wire().count_bytes(variables) == 5 * 4 + 8


def test_whole_numbers_are_never_cast(tf_session):
  with tf.device(PS[0]):
    count = tf.fill([2], tf.constant(2**40, tf.int64))
  [arrived] = make_wire('float16').to_worker([count], [PS[0]])
  assert arrived.dtype == tf.int64
  assert find_crossings([arrived]) == [('int64', (2,))]


def test_without_a_ps_nothing_is_sent(tf_session):
  values = build_values([2], [3])
  assert make_wire('float16', num_ps=0).to_worker(values, PS) == values


@pytest.mark.slow
@pytest.mark.parametrize('dtype', ['float32', 'float16', 'bfloat16'])
def test_values_arrive(make_cluster, dtype):
  cluster = make_cluster(2, 1)
  member = cluster.worker(0)
  values = [np.arange(6, dtype=np.float32).reshape(2, 3), np.float32(0.5)]
  with tf.Graph().as_default():
    there = []
    for value, device in zip(values, PS, strict=True):
      with tf.device(device):
        there.append(tf.constant(value))
    way = wire_lib.Wire(dataclasses.replace(member, wire_dtype=dtype))
    here = way.to_worker(there, PS)
    back = way.to_ps(here, PS)
    with tf.Session(cluster.servers[0].target) as session:
      for found in session.run([here, back]):
        for value, expected in zip(found, values, strict=True):
          assert value.dtype == np.float32
          assert value.tolist() == expected.tolist()


def test_small_tensors_are_joined_up_to_a_size():
  wire = make_wire(max_bundle_bytes=32)
  values = build_values([4], [4], [4], [1 << 18], [3])
  assert wire.bundle(values, [0, 0, 0, 0, 0]) == [[0, 1], [2, 4], [3]]
  assert wire.bundle(values[:3], [0, 1, 0]) == [[0, 2], [1]]


@pytest.mark.slow
def test_a_push_waits_for_what_its_begin_waits_for(make_cluster):
  cluster = make_cluster(2, 1)
  member = cluster.worker(0)
  with tf.Graph().as_default():
    with tf.device(member.compute_device):
      values = [tf.fill([1 << 18], 1.0), tf.fill([2], 2.0), tf.fill([3], 3.0)]
    with tf.device(PS[0]):
      queue = tf.FIFOQueue(-1, tf.bool, ())
      opened, put = queue.dequeue(), queue.enqueue(True)
    begins = {}
    way = wire_lib.Wire(member)
    arrived = way.to_ps(values, [PS[0], PS[1], PS[1]], begins)
    # What travels together begins together.
    assert sorted(begins) == [0, 1, 2]
    assert begins[0] is not begins[1] is begins[2]
    begins[1]._add_control_input(opened.op)
    with (
      tf.Session(cluster.servers[0].target) as session,
      futures.ThreadPoolExecutor(2) as pool,
    ):
      session.run(arrived[0])
      waiting = [pool.submit(session.run, arrived[i]) for i in (1, 2)]
      assert not futures.wait(waiting, timeout=0.2).done
      for _ in waiting:
        session.run(put)
      assert waiting[1].result(60).tolist() == [3, 3, 3]
