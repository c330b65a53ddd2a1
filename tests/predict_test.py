"""predict: classes of a user's files, on the screen and in a CSV file."""

import csv
import gzip
import os
import signal
import subprocess
import sys

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from distmnist import predict
from distmnist.common import cli, files
from distmnist.serving import saved_model
from tests.data.idx_test import pack
from tests.data.image_files_test import encode_png
from tests.support import programs
from tests.support.runner import REPO, read_report
from tests.support.saved_models import (
  make_images,
  write_brightest,
  write_output,
)

# The model's class is the index of the brightest of 2 x 3 pixels.
CLASSES = [4, 0, 5, 5, 1, 2, 3, 4, 0, 1, 2, 5]


@pytest.fixture(scope='module')
def export_dir(tmp_path_factory):
  folder = tmp_path_factory.mktemp('predict') / 'model'
  write_brightest(folder)
  return folder


@pytest.fixture
def run(set_flags, export_dir, monkeypatch, tmp_path, capsys):
  """run(flag, ...) -> the lines printed, in a folder with files to predict.

  There are twelve.idx, labels.idx and 3.png, the class of which is 3.
  """
  monkeypatch.chdir(tmp_path)
  images = make_images(CLASSES)
  files = {
    'twelve.idx': gzip.compress(pack(images[..., 0])),
    'labels.idx': pack(np.array(CLASSES, np.uint8)),
    '3.png': encode_png(make_images([3])[0]),
  }
  for name, content in files.items():
    (tmp_path / name).write_bytes(content)

  def run_main(*flags):
    set_flags(f'--export_dir={export_dir}', *flags)
    predict.main()
    return capsys.readouterr().out.splitlines()

  return run_main


@pytest.mark.slow
def test_a_png_is_a_line_and_of_an_idx_file_come_the_first_ten(run):
  lines = run('--images=3.png,twelve.idx')
  # From logits 0.9 and five times 0: e ** 0.9 / (e ** 0.9 + 5).
  assert lines == [
    '3.png  3  0.3297',
    *(f'twelve.idx[{i}]  {n}  0.3297' for i, n in enumerate(CLASSES[:10])),
    'twelve.idx: and 2 more, with --output=FILE.csv',
  ]


@pytest.mark.slow
def test_who_is_told_to_end_leaves_no_draft(run, monkeypatch, tmp_path):
  def write(path, parts, results):
    with files.replacing(path, 'w') as file:
      file.write('half of it')
      signal.raise_signal(signal.SIGTERM)

  monkeypatch.setattr(predict.result_files, 'write', write)
  before = sorted(tmp_path.iterdir())
  run('--images=3.png', '--output=out.csv')
  assert sorted(tmp_path.iterdir()) == before
  assert predict.main() == 128 + signal.SIGTERM


def read_csv(path):
  with open(path, newline='') as file:
    return list(csv.DictReader(file))


@pytest.mark.parametrize('chunk_size', [1, 5, 12])
def test_the_csv_file_has_all_images_in_their_order(run, tmp_path, chunk_size):
  lines = run(
    '--images=twelve.idx,3.png',
    '--output=all.csv',
    f'--chunk_size={chunk_size}',
  )
  assert lines[10] == 'twelve.idx: and 2 more, in all.csv'
  assert lines[11:] == ['3.png  3  0.3297']
  rows = read_csv('all.csv')
  assert list(rows[0]) == ['file', 'index', 'class', 'probability']
  assert [row['class'] for row in rows] == [str(n) for n in [*CLASSES, 3]]
  assert (rows[11]['file'], rows[11]['index']) == ('twelve.idx', '11')
  assert (rows[12]['file'], rows[12]['index']) == ('3.png', '0')
  assert float(rows[12]['probability']) == pytest.approx(0.329723, abs=1e-6)
  assert sorted(os.listdir(tmp_path)) == [
    '3.png',
    'all.csv',
    'labels.idx',
    'twelve.idx',
  ]


@pytest.mark.slow
def test_with_labels_comes_the_accuracy(run, tmp_path):
  lines = run('--images=twelve.idx', '--labels=labels.idx')
  assert lines[-1] == 'accuracy 1.0000 (12 of 12 images)'
  wrong = np.array([0, 1, 2, *CLASSES[3:]], np.uint8)
  (tmp_path / 'labels.idx').write_bytes(pack(wrong))
  lines = run('--images=twelve.idx', '--labels=labels.idx', '--output=all.csv')
  assert lines[-1] == 'accuracy 0.7500 (9 of 12 images)'
  rows = read_csv('all.csv')
  assert [row['label'] for row in rows] == [str(n) for n in wrong]


@pytest.mark.slow
def test_what_is_dark_on_light_is_inverted(run, tmp_path):
  (tmp_path / 'dark.png').write_bytes(encode_png(255 - make_images([2])[0]))
  assert run('--images=dark.png', '--invert') == ['dark.png  2  0.3297']
  assert run('--images=dark.png', '--noinvert') != ['dark.png  2  0.3297']


@pytest.mark.slow
def test_bright_images_get_a_hint(run, tmp_path, export_dir, set_flags, capsys):
  image = np.full_like(make_images([2])[0], 250)
  (tmp_path / 'bright.png').write_bytes(encode_png(image))
  for words, hints in (([], 1), (['--invert'], 0)):
    set_flags(f'--export_dir={export_dir}', '--images=bright.png', *words)
    predict.main()
    found = capsys.readouterr()
    assert len(found.out.splitlines()) == 1
    assert found.err.count('see --invert') == hints


def test_a_pattern_is_taken(run, tmp_path):
  for i in (5, 1):
    (tmp_path / f'{i}.png').write_bytes(encode_png(make_images([i])[0]))
  lines = run('--images=*.png')
  assert lines == [f'{i}.png  {i}  0.3297' for i in (1, 3, 5)]


@pytest.fixture(scope='module')
def sums_dir(tmp_path_factory):
  """A model of x float32 [n, 2] and n int64 [n]: their sum, and n doubled."""
  folder = tmp_path_factory.mktemp('sums') / 'model'
  with tf.Graph().as_default(), tf.Session() as session:
    x = tf.placeholder(tf.float32, [None, 2])
    n = tf.placeholder(tf.int64, [None])
    scale = tf.get_variable('scale', initializer=1.0)
    session.run(scale.initializer)
    total = scale * tf.reduce_sum(x, 1) + tf.cast(n, tf.float32)
    with tf.control_dependencies([tf.assert_less(n, tf.cast(9, tf.int64))]):
      twice = tf.stack([n, 2 * n], axis=1)
    saved_model.write(
      str(folder),
      session,
      tf.train.Saver([scale]),
      {'x': x, 'n': n},
      {'total': total, 'twice': twice},
    )
  return folder


@pytest.fixture
def run_sums(set_flags, sums_dir, monkeypatch, tmp_path, capsys):
  monkeypatch.chdir(tmp_path)
  x, n = np.arange(24, dtype=np.float64).reshape(12, 2) / 4, np.arange(12) % 8
  np.savez(tmp_path / 'new.npz', x=x, n=n, label=n)
  (tmp_path / 'one.jsonl').write_text('{"x": [1, 2.5], "n": 3, "why": "?"}\n')

  def run_main(*flags):
    set_flags(f'--export_dir={sums_dir}', *flags)
    predict.main()
    return capsys.readouterr().out.splitlines()

  return run_main


@pytest.mark.slow
@pytest.mark.parametrize('chunk_size', [5, 250])
def test_examples_of_any_model_are_predicted(run_sums, chunk_size):
  lines = run_sums(
    '--inputs=one.jsonl,*.npz',
    '--output=all.csv',
    f'--chunk_size={chunk_size}',
  )
  assert lines[:2] == [
    'one.jsonl[0]  total 6.5  twice 3 6',
    'new.npz[0]  total 0.25  twice 0 0',
  ]
  assert lines[-1] == 'new.npz: and 2 more, in all.csv'
  rows = read_csv('all.csv')
  assert len(rows) == 13
  assert rows[12] == {
    'file': 'new.npz',
    'index': '11',
    'total': '14.25',
    'twice_0': '3',
    'twice_1': '6',
  }


@pytest.mark.slow
def test_an_op_that_fails_names_the_examples(run_sums, tmp_path):
  np.savez(tmp_path / 'large.npz', x=np.zeros([4, 2]), n=[0, 1, 2, 9])
  with pytest.raises(
    cli.RunError, match=r'^the model fails on the examples 2 to 3: \S[^\n]+$'
  ):
    run_sums('--inputs=large.npz', '--chunk_size=2')


def test_a_model_of_something_else_takes_no_images(run_sums, tmp_path):
  (tmp_path / '3.png').write_bytes(encode_png(make_images([3])[0]))
  with pytest.raises(
    cli.RunError,
    match=r'takes n int64 \[n\], x float32 \[n, 2\] and gives total float32 '
    r'\[n\], twice int64 \[n, 2\], expected images .*: give its examples by '
    '--inputs',
  ):
    run_sums('--images=3.png')


def command(module, *flags):
  return [sys.executable, '-m', f'distmnist.{module}', *map(str, flags)]


@pytest.mark.daily
@pytest.mark.slow
def test_the_reader_of_the_lines_may_go(export_dir, tmp_path):
  (tmp_path / '3.png').write_bytes(encode_png(make_images([3])[0]))
  # More lines than a pipe holds.
  images = ','.join([f'{tmp_path}/3.png'] * 5000)
  (tmp_path / 'flags').write_text(f'--images={images}')
  with subprocess.Popen(
    command(
      'predict', f'--export_dir={export_dir}', f'--flagfile={tmp_path}/flags'
    ),
    cwd=REPO,
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    text=True,
  ) as process:
    assert process.stdout.readline() == f'{tmp_path}/3.png  3  0.3297\n'
    process.stdout.close()
    assert 'Traceback' not in process.stderr.read()
  assert process.returncode == -signal.SIGPIPE


def run_command(program, *flags):
  """Runs a program as a user does; returns its lines."""
  return programs.run_forked(program, *flags)[0].splitlines()


@pytest.mark.daily
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_what_two_ps_have_trained_predicts_mnist_as_it_was_reported(
  mnist_dir, tmp_path
):
  run, model = tmp_path / 'run', tmp_path / 'models' / '1'
  run_command(
    'launch',
    *('--num_ps=2', '--num_workers=2', '--', '--model=dnn'),
    *('--train_steps=300', '--optimizer=adam', '--learning_rate=0.001'),
    *(f'--logdir={run}', f'--data_dir={mnist_dir}'),
  )
  report = read_report(run)
  [line] = run_command('export', f'--logdir={run}', f'--export_dir={model}')
  assert line.startswith(f'step {report["global_step"]}  dnn on mnist, images ')

  images, labels = (
    next((mnist_dir / 'mnist').glob(f't10k-{name}-ubyte*'))
    for name in ('images-idx3', 'labels-idx1')
  )
  lines = run_command(
    'predict',
    *(f'--export_dir={model}', f'--images={images}', f'--labels={labels}'),
    f'--output={tmp_path}/all.csv',
  )
  assert len(lines) == 12
  rows = read_csv(tmp_path / 'all.csv')
  num_correct = sum(row['class'] == row['label'] for row in rows)
  assert len(rows) == report['test_examples'] == 10000
  assert num_correct / 10000 == report['test_accuracy'] > 0.8
  assert lines[-1] == (
    f'accuracy {report["test_accuracy"]:.4f} ({num_correct:,} of 10,000 images)'
  )


def test_an_output_whose_shape_depends_on_the_chunk_is_named(
  set_flags, tmp_path
):
  write_output(
    tmp_path / 'model', lambda x: tf.tile(x[:, None], [1, tf.shape(x)[0]])
  )
  model = saved_model.Model(str(tmp_path / 'model'))
  set_flags('--chunk_size=2')
  with pytest.raises(cli.RunError, match=r"'y' of \[1\] for some examples and"):
    predict.predict(model, {'x': np.ones(3, np.float32)})
