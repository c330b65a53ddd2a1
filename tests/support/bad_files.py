"""Files of bad_input_test.py: a run, a model and data, and broken ones."""

import gzip
import os
import pickle
import shutil
import struct

import numpy as np
import tensorflow.compat.v1 as tf

SMALL = (
  '--dataset=synthetic --synthetic_train_images=300 --synthetic_test_images=50 '
  '--validation_images=0 --model=softmax --train_steps=2'
)

_OTHER_SPEC = """
import numpy as np
import tensorflow.compat.v1 as tf

def load(split):
  return np.ones([8, 2]), np.ones(8)

def spec():
  return tf.TensorSpec([3], tf.float32)

def build(x, is_training):
  return x @ tf.get_variable('w', [2, 1])

def loss(y, outputs):
  return (y - outputs[:, 0]) ** 2
"""

_FIRST_ROWS = """
import numpy as np
import tensorflow.compat.v1 as tf
from distmnist.nn import layers

KEYS, ROWS = np.arange(9), np.ones([9, 2])
{}

def load(split):
  return np.arange(8), np.ones(8)

def build(x, is_training):
  made = layers.NewRows(9, first=(KEYS, ROWS))
  return tf.reduce_sum(layers.embedding(x, made, 2, 'ids'), 1)

def loss(y, outputs):
  return (y - outputs) ** 2
"""
_WRONG_ROWS = {
  'twice': 'KEYS[3] = 4',
  'infinite': 'ROWS[5, 1] = np.inf',
}


def make(folder, programs):
  """Writes all of them.

  Args:
    folder: pathlib.Path, empty.
    programs: forked_programs.Programs, to train and to export.
  """
  _make_small_files(folder)
  _make_mnist(folder)
  _make_npy(folder)
  train = [*SMALL.split(), '--train_steps=3', f'--logdir={folder}/run']
  export = [f'--logdir={folder}/run', f'--export_dir={folder}/model']
  for program, words in (('train', train), ('export', export)):
    done = programs.run(program, words, folder)
    assert done['code'] == 0, done
  _break_runs(folder)
  _break_models(folder)


def _make_small_files(folder):
  (folder / 'text').write_text('not what you look for\n')
  (folder / 'empty').write_bytes(b'')
  (folder / 'jpeg').write_bytes(b'\xff\xd8\xff\xe0\x00\x10JFIF' + bytes(99))
  flag_files = {
    'words': 'learning_rate=0.1\n',
    'loop': f'--flagfile={folder}/loop.flags\n',
    'typo': '--modle=cnn\n',
    'hosts': '--ps_hosts=a:1\n',
  }
  for name, text in flag_files.items():
    (folder / f'{name}.flags').write_text(text)
  for name, size in (('png', 28), ('png_large', 64)):
    with tf.Graph().as_default(), tf.Session() as session:
      image = session.run(tf.io.encode_png(np.zeros([size, size, 1], np.uint8)))
    (folder / name).write_bytes(image)
  (folder / 'spec.py').write_text(_OTHER_SPEC)
  for name, line in _WRONG_ROWS.items():
    (folder / f'{name}.py').write_text(_FIRST_ROWS.format(line))
  groups = "groups = {'head/.*': {'learning_rate': 2}}"
  text = _OTHER_SPEC.replace('[3]', '[2]')
  (folder / 'groups.py').write_text(f'{groups}\n{text}')
  (folder / 'png_cut').write_bytes((folder / 'png').read_bytes()[:40])


def _make_mnist(folder):
  images = struct.pack('>4i', 0x803, 20, 28, 28) + bytes(20 * 28 * 28)
  labels = struct.pack('>2i', 0x801, 20) + bytes(20)
  (folder / 'idx_cut').write_bytes(images[:-5])
  (folder / 'idx_gz_cut').write_bytes(gzip.compress(images)[:-20])
  (folder / 'labels').write_bytes(labels)
  broken = {
    'mnist_text': b'no images\n',
    'mnist_cut': gzip.compress(images)[:-20],
    'mnist_short': gzip.compress(images[:-1]),
  }
  for name, content in broken.items():
    data = folder / name / 'mnist'
    data.mkdir(parents=True)
    for split in ('train', 't10k'):
      path = data / f'{split}-images-idx3-ubyte.gz'
      path.write_bytes(content)
      path = data / f'{split}-labels-idx1-ubyte.gz'
      path.write_bytes(gzip.compress(labels))


def _make_npy(folder):
  images = np.zeros([20, 28, 28, 1], np.uint8)
  labels = np.arange(20) % 10
  _write_npy(folder / 'npy', images, labels)
  _write_npy(folder / 'npy_float', images / 255, labels)
  _write_npy(folder / 'npy_labels', images, labels[:-1])
  broken = {
    'npy_empty': b'',
    'npy_text': b'no images\n',
    'npy_pickle': pickle.dumps([1, 2]),
    'npy_cut': (folder / 'npy' / 'train_images.npy').read_bytes()[:-5],
  }
  for name, content in broken.items():
    shutil.copytree(folder / 'npy', folder / name)
    (folder / name / 'train_images.npy').write_bytes(content)


def _write_npy(folder, images, labels):
  folder.mkdir()
  for split in ('train', 'test'):
    np.save(folder / f'{split}_images.npy', images)
    np.save(folder / f'{split}_labels.npy', labels)


def _break_runs(folder):
  def copy(name):
    shutil.copytree(folder / 'run', folder / name)
    return folder / name

  (copy('garbled') / 'train.flags').write_bytes(b'\x89\xff\0\0' * 9)
  with open(copy('badflags') / 'train.flags', 'a') as file:
    file.write('--validation_images=many\n')
  (copy('noflags') / 'train.flags').unlink()
  for path in copy('nocheckpoint').glob('*ckpt*'):
    path.unlink()
  (folder / 'nocheckpoint' / 'checkpoint').unlink()
  for name, step in (('torn', 3), ('alltorn', '*')):
    for path in copy(name).glob(f'model.ckpt-{step}.data*'):
      _cut(path)
  (path,) = copy('flipped').glob('model.ckpt-3.data*')
  content = bytearray(path.read_bytes())
  content[len(content) // 2] ^= 0x40
  path.write_bytes(content)
  (copy('noindex') / 'model.ckpt-3.index').unlink()
  (copy('badindex') / 'model.ckpt-3.index').write_bytes(b'no index')
  (path,) = copy('nodata').glob('model.ckpt-3.data*')
  path.unlink()


def _break_models(folder):
  for name in ('model_cut', 'model_novars'):
    shutil.copytree(folder / 'model', folder / name)
  _cut(folder / 'model_cut' / 'saved_model.pb')
  shutil.rmtree(folder / 'model_novars' / 'variables')
  (folder / 'model_empty').mkdir()
  for name, tags in (('model_other', ['serve']), ('model_tags', ['train'])):
    with tf.Graph().as_default(), tf.Session() as session:
      tf.get_variable('x', initializer=1.0)
      session.run(tf.global_variables_initializer())
      builder = tf.saved_model.Builder(str(folder / name))
      builder.add_meta_graph_and_variables(session, tags)
      builder.save()


def _cut(path):
  path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def take_snapshot(folder):
  """Returns {path: (size, time of change)} of a folder; None for folders in it.

  Without the bytecode that Python keeps beside a file that it imports.
  """
  found = {}
  for parent, folders, names in os.walk(folder):
    if '__pycache__' in folders:
      folders.remove('__pycache__')
    found[parent] = None
    for entry in (os.path.join(parent, name) for name in names):
      status = os.lstat(entry)
      found[entry] = status.st_size, status.st_mtime_ns
  return found


def read_environment(words):
  """Splits the NAME=value words at the start off the rest; returns both."""
  env = {}
  while words and not words[0].startswith('-') and '=' in words[0]:
    name, _, env[name] = words.pop(0).partition('=')
  return env, words
