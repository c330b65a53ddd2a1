"""A model with tables is evaluated where its rows are."""

import types

import pytest
import tensorflow.compat.v1 as tf

from distmnist.cluster import cluster as cluster_lib
from distmnist.data import input_pipeline
from distmnist.exchange.tables import sparse_table
from distmnist.logdir import checkpoints
from distmnist.problems import clicks  # noqa: F401  Its flags.
from distmnist.strategies import async_sgd
from distmnist.training import evaluation, live_evaluation, step
from distmnist.training.problems import problem as problem_lib
from distmnist.training.problems import problem_data

FLAGS = '--problem=clicks', '--clicks_examples=3000', '--clicks_rows=40'


def build(member, target=''):
  """Returns (LiveEvaluation, problem), with the graph of a worker."""
  problem, rule = problem_lib.from_flags(), async_sgd.make(member)
  slice_ = input_pipeline.Slice(problem_data.make_batch(problem, 1))
  step.build_step(member, rule, problem, [slice_])
  task = types.SimpleNamespace(
    cluster=member,
    server=types.SimpleNamespace(target=target),
    session_config=None,
  )
  choice = types.SimpleNamespace(problem=problem, strategy=rule)
  return live_evaluation.LiveEvaluation(task, choice), problem


def test_it_finds_what_an_evaluation_of_whole_tables_finds(
  make_cluster, set_flags
):
  set_flags(*FLAGS)
  cluster = make_cluster(2, 1)
  with tf.Graph().as_default():
    target = cluster.servers[0].target
    live, problem = build(cluster.worker(0), target)
    tables = tf.get_collection(sparse_table.TABLES)
    assert [v for v in tf.global_variables() if live.has(v)] == tables
    splits = [problem_data.load_test_split(problem)] * 2
    with tf.Session(target) as session:
      session.run(tf.global_variables_initializer())
      found, again = live.compute(splits)
      values = checkpoints.fetch_whole(session, tf.global_variables())
  expected = evaluation.Evaluator(problem, splits[0]).compute(values)
  assert found == pytest.approx(expected, abs=1e-5)
  assert again == pytest.approx(found, abs=1e-5)
  assert 0.8 < found['best_auc'] < 1


def test_without_ps_nothing_is_live(set_flags):
  set_flags(*FLAGS)
  with tf.Graph().as_default():
    live, _ = build(cluster_lib.Cluster())
    assert not any(map(live.has, tf.global_variables()))
    assert live.compute([]) is None
