"""script_checks: what a script asks in vain, each in one line."""

import contextlib
import json
import os
import subprocess
import sys

import pytest
import tensorflow.compat.v1 as tf
from absl import flags

from distmnist.cluster import cluster as cluster_lib
from distmnist.common import cli
from distmnist.launching.train_flags import MANIFEST
from distmnist.training import script_checks
from tests.support.paths import PYTHONPATH

FLAGS = flags.FLAGS
_CLUSTER = cluster_lib.Cluster(('a:1',), ('b:1', 'c:1'), 'worker')
# But for those that train.py itself reads, which a script does not know.
_OF_TRAIN = [
  name
  for name in json.loads(MANIFEST.read_text())
  if not FLAGS.find_module_defining_flag(name).endswith('distmnist.train')
  and name not in ('help', 'helpfull')
]


def _choose_other(flag):
  """Returns another value than a flag's default."""
  if flag.boolean:
    return not flag.default
  kind = flag.parser.flag_type()
  if kind in ('int', 'float'):
    return 7 if flag.default != 7 else 8
  return ['other'] if 'list' in kind else 'other'


@pytest.mark.slow
def test_each_flag_of_train_is_adopted_or_refused(tmp_path):
  script = str(tmp_path / 'none.py')
  assert len(_OF_TRAIN) > 100
  refused = set()
  for name in _OF_TRAIN:
    before = FLAGS[name].value
    FLAGS[name].value = _choose_other(FLAGS[name])
    try:
      script_checks.check_flags(script)
    except cli.UsageError as error:
      assert str(error).startswith((f'--{name}', f'--no{name}'))
      assert 'has no effect in a script' in str(error)
      refused.add(name)
    finally:
      FLAGS[name].value = before
  assert refused == {x for x in _OF_TRAIN if not script_checks.is_adopted(x)}
  assert refused >= {
    *('train_steps', 'epochs', 'train_secs', 'batch_size', 'model', 'dataset'),
    *('problem', 'validation_steps', 'early_stopping_patience'),
    *('steps_per_run', 'gradient_accumulation', 'startup_delay_steps'),
  }
  assert not refused & {'strategy', 'optimizer', 'logdir', 'seed', 'log_secs'}


@pytest.mark.parametrize('is_named', [True, False])
def test_a_script_may_read_a_flag_of_ours(set_flags, tmp_path, is_named):
  script = tmp_path / 'mine.py'
  script.write_text('FLAGS.batch_size' if is_named else 'FLAGS.batch_size_2')
  set_flags('--batch_size=7')
  assert script_checks.is_read('batch_size', str(script)) == is_named
  refused = contextlib.nullcontext()
  if not is_named:
    refused = pytest.raises(cli.UsageError, match='--batch_size=7 has no eff')
  with refused:
    script_checks.check_flags(str(script))


def test_all_flags_without_effect_are_told_at_once(set_flags, tmp_path):
  set_flags('--batch_size=7', '--train_steps=9', '--learning_rate=2')
  with pytest.raises(cli.UsageError) as raised:
    script_checks.check_flags(str(tmp_path / 'none.py'))
  for name in ('batch_size', 'train_steps'):
    assert f'--{name}=' in str(raised.value)
  assert '--learning_rate' not in str(raised.value)


# Prints the flags that run_task reads: in a run, and as steps are built under
# other flags. What looks at all flags, to compare or keep them, does not count.
_READER = """
import distmnist.runtime
import sys
import tensorflow.compat.v1 as tf
from absl import flags
from absl.testing import flagsaver
from distmnist.cluster import cluster as cluster_lib
from distmnist.common import registry
from distmnist.common.names import STRATEGIES
from distmnist.training import own_loop
from tests.support import in_process

read, value = set(), flags.Flag.value
of_all = 'consistency', 'idle_flags', 'refusals', 'run_flags', 'script_checks'


def note(self):
  frame = sys._getframe(1)
  while 'absl' in frame.f_code.co_filename:
    frame = frame.f_back
  name = frame.f_globals['__name__']
  if name != '__main__' and not name.endswith(of_all):
    read.add(self.name)
  return value.fget(self)


def train(task):
  x = tf.constant(2.0)
  train_op, _ = task.minimize(lambda: (x * tf.get_variable('w', [])) ** 2)
  with task.session(3) as session:
    while not session.should_stop():
      session.run(train_op)


flags.FLAGS(sys.argv)
runs = [[f'--strategy={rule}'] for rule in registry.names(STRATEGIES)]
runs += [['--strategy=dc_asgd', '--dc_adaptive']]
runs += [
  ['--strategy=async_sgd', f'--optimizer={name}']
  for name in ('rmsprop', 'ftrl', 'lars')
]
runs += [
  [f'--lr_schedule={name}', '--lr_boundaries=5']
  for name in ('exponential', 'step', 'linear_scaling')
]
flags.Flag.value = property(note, value.fset)
assert own_loop.run(train) == 0
for words in runs:
  ps = [] if 'ring_allreduce' in words[0] else ['a:1']
  task = in_process.make_task(
    cluster_lib.Cluster(tuple(ps), ('b:1', 'c:1'), 'worker')
  )
  with flagsaver.flagsaver(), tf.Graph().as_default():
    flags.FLAGS([sys.argv[0], *words])
    task = own_loop.WorkerTask(task)
    task.minimize(lambda: tf.get_variable('w', []) ** 2)
print('read', *read)
"""


@pytest.mark.daily
@pytest.mark.slow
def test_each_adopted_flag_is_read(tmp_path):
  (tmp_path / 'reader.py').write_text(_READER)
  done = subprocess.run(
    [sys.executable, 'reader.py', f'--logdir={tmp_path / "run"}'],
    cwd=tmp_path,
    env={**os.environ, 'PYTHONPATH': PYTHONPATH},
    capture_output=True,
    text=True,
    timeout=120,
  )
  assert done.returncode == 0, done.stderr
  _, *read = done.stdout.splitlines()[-1].split()
  adopted = {x for x in _OF_TRAIN if script_checks.is_adopted(x)}
  assert adopted <= {*read}


def test_minimize_takes_a_function():
  script_checks.check_builder(lambda: None)
  with tf.Graph().as_default():
    loss = tf.constant(1.0)
  with pytest.raises(cli.UsageError, match='a tensor of float32 and shape'):
    script_checks.check_builder(loss)


def test_a_loss_is_one_float():
  with tf.Graph().as_default():
    script_checks.check_loss(tf.constant(1.0))
    script_checks.check_loss(tf.constant(1.0, tf.float64))
    script_checks.check_loss(tf.placeholder(tf.float32))
    for wrong, said in (
      (None, 'NoneType'),
      (tf.zeros([3]), r'shape \(3,\)'),
      (tf.constant(1), 'int32'),
    ):
      with pytest.raises(cli.UsageError, match=f'gives .*{said}.*, expected'):
        script_checks.check_loss(wrong)


def test_outputs_are_a_dict_of_tensors():
  with tf.Graph().as_default():
    loss = tf.constant(1.0)
    assert script_checks.take_outputs(loss) == (loss, None)
    found = script_checks.take_outputs((loss, {'a': loss}))
    assert found == (loss, {'a': loss})
    for wrong, said in (
      (2, 'int'),
      ({'a': 1.0}, 'dict'),
      ({1: loss}, 'dict'),
      (loss, 'a tensor of float32'),
    ):
      with pytest.raises(cli.UsageError, match=f'{said}.*, expected the loss'):
        script_checks.take_outputs((loss, wrong))


def test_a_session_takes_a_number_and_a_list_of_hooks():
  hook = tf.train.SessionRunHook()
  script_checks.check_session(10, ())
  script_checks.check_session(10, [hook])
  for last_step, hooks, said in (
    ('10', (), "last_step='10'"),
    (1e4, (), 'last_step=10000.0'),
    (10, hook, r'hooks=SessionRunHook\)'),
    (10, [str], r'hooks=\[type\]'),
  ):
    with pytest.raises(cli.UsageError, match=said):
      script_checks.check_session(last_step, hooks)


def test_a_variable_of_all_workers_is_on_a_ps():
  with tf.Graph().as_default():
    with tf.device(_CLUSTER.device_setter()):
      tf.get_variable('kept', [])
    tf.get_variable('own', [], collections=[tf.GraphKeys.LOCAL_VARIABLES])
    script_checks.check_places(_CLUSTER)
    tf.get_variable('counter', [], trainable=False)
    script_checks.check_places(cluster_lib.Cluster())
    with pytest.raises(cli.UsageError, match="'counter' is made outside"):
      script_checks.check_places(_CLUSTER)
