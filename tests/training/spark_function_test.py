"""spark_function: what a function on a worker is given, and what it leaves."""

import base64
import json
import pickle
import re

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from distmnist.common import cli
from distmnist.data import array_folder
from distmnist.training import spark_function


def look(args, ctx):
  return {
    **{'args': args, 'name': ctx.name, 'is_chief': ctx.is_chief},
    **{'workers': ctx.num_workers, 'target': ctx.target},
    'x': ctx.data and ctx.data[0].tolist(),
    'test': ctx.test_data,
    'device': ctx.device_setter(),
  }


def fail(args, ctx):
  raise KeyError(args)


@pytest.fixture
def run(tmp_path, set_flags):
  """run(function, args, *flags) -> what the agent finds; None without."""

  def run_main(function, args, *flags):
    main = tmp_path / 'main'
    main.write_bytes(base64.b64encode(pickle.dumps((function, args))))
    set_flags(f'--main={main}', f'--logdir={tmp_path}/logdir', *flags)
    spark_function.main()
    report = tmp_path / 'logdir' / 'report.json'
    return json.loads(report.read_text()) if report.exists() else None

  return run_main


def test_a_function_alone_has_no_cluster(run, tmp_path):
  array_folder.write(
    tmp_path,
    {'train': (np.arange(3), np.zeros(3)), 'test': (np.zeros(0), np.zeros(0))},
  )
  assert run(look, [1, 'a'], f'--fed_dir={tmp_path}')['result'] == {
    **{'args': [1, 'a'], 'name': 'worker 0', 'is_chief': True},
    **{'workers': 1, 'target': '', 'x': [0, 1, 2], 'test': None, 'device': ''},
  }


def test_an_error_says_where(run):
  with pytest.raises(
    cli.RunError,
    match=r"^spark_function_test.py:\d+, in fail\(\): KeyError: 'x'$",
  ):
    run(fail, 'x')


def compute(args, ctx):
  with tf.Graph().as_default(), tf.Session() as session:
    wrong = tf.reshape(tf.placeholder(tf.float32, [None]), [2])
    session.run(wrong, {wrong.op.inputs[0]: args})


def test_an_op_that_fails_is_named_by_where_it_was_made(run):
  with pytest.raises(
    cli.RunError,
    match=r'^spark_function_test.py:\d+, in compute\(\): '
    'Input to reshape is a tensor with 3 values',
  ):
    run(compute, [1, 2, 3])


def lose(args, ctx):
  raise tf.errors.UnavailableError(None, None, 'ps 0 is gone')


def test_a_lost_task_is_no_mistake_of_the_function(run):
  with pytest.raises(cli.LostError, match=r'^lose\(\): .*ps 0 is gone'):
    run(lose, None)


def test_what_json_has_not_is_refused(run):
  with pytest.raises(
    cli.UsageError, match=re.escape('make_set() returned set: ')
  ):
    run(make_set, None)


def test_a_result_that_no_message_holds_is_refused(run):
  with pytest.raises(cli.UsageError, match='4000015 bytes .* at most 4000000'):
    run(make_much, None)


def make_much(args, ctx):
  return 'x' * 4_000_001


def make_set(args, ctx):
  return {1}
