"""program: the tasks run train, with a problem or not, or a function."""

import base64
import pickle
import threading

import pytest

from distmnist.common import cli
from distmnist.common.names import SENT_FILE, SPARK_MAIN, TRAIN
from distmnist.spark import program


def add(args, ctx):
  return args + ctx


def test_images_are_flags_alone():
  made = program.make(None, ['--model=mlp'], TRAIN)
  assert (made.module, made.flags, made.env) == (TRAIN, ['--model=mlp'], ())
  assert made.is_of_images and made.main is None


def test_the_file_of_a_problem_travels(tmp_path):
  (tmp_path / 'mine.py').write_text('best = "-loss"\n')
  path = str(tmp_path / 'mine.py')
  made = program.make(path, ['--epochs=1'], 'fake_train')
  assert made.flags == [f'--problem={path}', '--epochs=1']
  assert [name for name, _ in made.env] == [SENT_FILE]
  assert not made.is_of_images


def test_a_module_at_hand_is_its_file():
  made = program.make(cli, [], 'fake_train')
  assert made.flags == [f'--problem={cli.__file__}']


@pytest.mark.parametrize(
  'given, args, said',
  [
    (None, ['--job_name=ps'], "--job_name is the launcher's to set"),
    (None, ['--logdir=here'], '--logdir=here is relative'),
    ('no/such.py', [], '--problem=no/such.py cannot be read'),
  ],
)
def test_what_cannot_work_is_refused(given, args, said):
  with pytest.raises(cli.UsageError, match=said):
    program.make(given, args, 'fake_train')


def test_a_function_travels_with_its_arguments():
  pytest.importorskip('pyspark')
  made = program.make(add, 3, TRAIN)
  assert (made.module, made.flags) == (SPARK_MAIN, [])
  assert not made.is_of_images
  function, args = pickle.loads(base64.b64decode(made.main))
  assert function(args, 4) == 7
  # As it is here: an executor need not have this module.
  assert function is not add
  with pytest.raises(cli.UsageError, match='^add and its args cannot be sent '):
    program.make(add, threading.Lock(), TRAIN)
