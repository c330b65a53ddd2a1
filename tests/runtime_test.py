"""runtime: TensorFlow comes quietly and in graph mode."""

import json
import os
import platform
import subprocess
import sys

import pytest
import tensorflow.compat.v1 as tf

from distmnist import runtime

_PROGRAM = """
import json, os, sys
import distmnist.runtime
import tensorflow.compat.v1 as tf
print('a line of the program', file=sys.stderr)
step = tf.train.get_or_create_global_step()
has_keras = 'keras' in sys.modules
from tensorflow.keras import layers
print(json.dumps({
  'has_keras': [has_keras, layers is tf.keras.layers],
  'is_eager': tf.executing_eagerly(),
  'is_resource': step.dtype == tf.int64 and hasattr(step, 'handle'),
  'verbosity': tf.logging.get_verbosity() == tf.logging.FATAL,
  'env': [os.environ.get(name) for name in sys.argv[1:]],
}))
"""
_NAMES = (
  'TF_CPP_MIN_LOG_LEVEL',
  'GRPC_FAIL_FAST',
  'TF_GRPC_DEFAULT_OPTIONS',
  'TF_ENABLE_ONEDNN_OPTS',
)


@pytest.mark.slow
def test_tensorflow_is_quiet_in_graph_mode_and_finds_a_lost_ps_soon():
  env = {n: v for n, v in os.environ.items() if n not in _NAMES}
  found = subprocess.run(
    [sys.executable, '-c', _PROGRAM, *_NAMES],
    # What the user has set stays.
    env={**env, 'TF_CPP_MIN_LOG_LEVEL': '2', 'CUDA_VISIBLE_DEVICES': ''},
    capture_output=True,
    text=True,
    timeout=120,
  )
  assert found.stderr == 'a line of the program\n'
  assert json.loads(found.stdout) == {
    # Only those who ask for Keras wait for its import.
    'has_keras': [False, True],
    'is_eager': False,
    'is_resource': True,
    'verbosity': True,
    'env': [
      '2',
      'true',
      'grpc.initial_reconnect_backoff_ms=100,grpc.max_reconnect_backoff_ms=300,'
      'grpc.minimal_stack=1,grpc.enable_http_proxy=0',
      '1' if platform.machine() in ('x86_64', 'AMD64') else None,
    ],
  }


def test_what_is_made_eagerly_is_a_constant_in_a_graph():
  with runtime.eagerly():
    made = tf.constant([2.0, 3.0])
    assert tf.executing_eagerly()
  assert not tf.executing_eagerly()
  with tf.Graph().as_default(), tf.Session() as session:
    fed = tf.placeholder(tf.float32, [])
    assert session.run(made * fed, {fed: 2}).tolist() == [4, 6]
    with pytest.raises(ValueError, match='float32'):
      tf.convert_to_tensor(made, tf.int32)


def test_what_a_script_of_tensorflow_1_switches_off_is_on_again():
  with runtime.eagerly():
    # What tf.disable_v2_behavior() does, and can be undone in this process.
    tf.disable_resource_variables()
    tf.disable_control_flow_v2()
    with runtime.eagerly():
      pass
    assert tf.executing_eagerly()
    assert not tf.resource_variables_enabled()
  assert tf.resource_variables_enabled()
  assert tf.control_flow_v2_enabled()
  assert not tf.executing_eagerly()


@pytest.mark.daily
@pytest.mark.slow
def test_it_comes_without_the_standard_streams_too():
  program = (
    'import distmnist.runtime, os; os.dup2(int(os.environ["TOLD"]), 1);'
    "os.write(1, b'here'); os.fstat(0), os.fstat(2)"
  )
  done = subprocess.run(
    [
      'sh',
      '-c',
      'exec "$0" -c "$1" 9>&1 >&- 2>&- <&-',
      sys.executable,
      program,
    ],
    env={**os.environ, 'TOLD': '9'},
    stdout=subprocess.PIPE,
    text=True,
  )
  assert (done.returncode, done.stdout) == (0, 'here')


@pytest.mark.parametrize('program', ['train', 'launch'])
def test_a_ctrl_c_in_an_import_ends_a_program_without_a_word(tmp_path, program):
  # As an import within C++ does, it swallows what Python makes of the signal.
  text = (
    'import os\n'
    'try: os.kill(os.getpid(), 2)\n'
    'except KeyboardInterrupt: print("swallowed")\n'
  )
  for name in ('tensorflow', 'absl'):  # The first that each program imports.
    (tmp_path / f'{name}.py').write_text(text)
  done = subprocess.run(
    [sys.executable, '-m', f'distmnist.{program}'],
    env={**os.environ, 'PYTHONPATH': str(tmp_path)},
    capture_output=True,
    text=True,
  )
  assert (done.returncode, done.stdout, done.stderr) == (-2, '', '')


def test_a_program_of_ones_own_keeps_its_ctrl_c():
  program = (
    'import signal, distmnist\n'
    'print(signal.getsignal(2) is signal.default_int_handler)'
  )
  printed = subprocess.check_output([sys.executable, '-c', program], text=True)
  assert printed == 'True\n'
