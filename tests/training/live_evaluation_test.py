"""A model with tables is evaluated where its rows are."""

import dataclasses
import types

import pytest
import tensorflow.compat.v1 as tf

from distmnist.cluster import cluster as cluster_lib
from distmnist.data import input_pipeline
from distmnist.lifecycle import stalls
from distmnist.logdir import checkpoints
from distmnist.problems import clicks  # noqa: F401  Its flags.
from distmnist.strategies import async_sgd
from distmnist.tables import sparse_table
from distmnist.training import evaluation, live_evaluation, step
from distmnist.training.problems import problem as problem_lib
from distmnist.training.problems import problem_data

FLAGS = '--problem=clicks', '--clicks_examples=3000', '--clicks_rows=40'


def build(member, num_splits=1):
  """Returns (LiveEvaluation, problem, split, task), in a worker's graph."""
  problem, rule = problem_lib.from_flags(), async_sgd.make(member)
  slice_ = input_pipeline.Slice(problem_data.make_batch(problem, 1))
  built = step.build_step(member, rule, problem, [slice_])
  task = types.SimpleNamespace(
    cluster=member,
    target='',
    session_config=None,
    server_config=None,
    stalls=stalls.Stalls(0, 0, None),
  )
  choice = types.SimpleNamespace(problem=problem, strategy=rule)
  split = problem_data.load_split(problem, 'test')
  live = live_evaluation.LiveEvaluation(
    task, choice, built.center, dict.fromkeys(range(num_splits), split)
  )
  return live, problem, split, task


@pytest.mark.slow
def test_it_finds_what_an_evaluation_of_whole_tables_finds(
  make_cluster, set_flags
):
  set_flags(*FLAGS)
  cluster = make_cluster(2, 1)
  with tf.Graph().as_default():
    member = dataclasses.replace(cluster.worker(0), wire_dtype='bfloat16')
    live, problem, split, task = build(member, 2)
    task.target = cluster.servers[0].target
    with tf.Session(task.target) as session:
      session.run(tf.global_variables_initializer())
      live.take(session)
      values = checkpoints.fetch_whole(session, tf.global_variables())
  names = {sparse_table.find_name(v) for v in live._tables}
  assert names == {'rows'}
  assert 'rows/rows' in values
  assert not any(name.startswith('rows/') for name in live.values)
  assert 'global_step' in live.values
  found, again = live.compute([0, 1]).values()
  expected = evaluation.Evaluator(problem, split).compute(values)
  assert found == pytest.approx(expected, abs=1e-5)
  assert again == pytest.approx(found, abs=1e-5)
  assert 0.8 < found['best_auc'] < 1


@pytest.mark.slow
def test_without_ps_whole_variables_are_evaluated(set_flags):
  set_flags(*FLAGS)
  with tf.Graph().as_default():
    live, problem, split, _ = build(cluster_lib.Cluster())
    with tf.Session() as session:
      session.run(tf.global_variables_initializer())
      live.take(session)
  assert 'rows/rows' in live.values
  expected = evaluation.Evaluator(problem, split).compute(live.values)
  assert live.compute([0]) == {0: pytest.approx(expected)}
