"""checkpoints: the log directory, its flags, what fits a graph."""

import glob
import itertools
import os
import pathlib
import re
import shutil

import pytest
import tensorflow.compat.v1 as tf

from distmnist import checkpoints, cli, placement, workload


def save(folder, step=3, **shapes):
  """Writes a checkpoint with variables of zeros; returns its path."""
  with tf.Graph().as_default(), tf.Session() as session:
    tf.train.get_or_create_global_step().assign(step)
    for name, shape in shapes.items():
      tf.get_variable(name, shape, initializer=tf.zeros_initializer())
    session.run(tf.global_variables_initializer())
    session.run(tf.train.get_global_step().assign(step))
    saver = tf.train.Saver()
    return saver.save(session, checkpoints.prefix(folder), step)


def test_no_logdir_is_none(set_flags):
  set_flags()
  assert checkpoints.logdir_from_flags() is None


def test_the_logdir_may_be_below_home(set_flags, monkeypatch):
  monkeypatch.setenv('HOME', '/home/ada')
  set_flags('--logdir=~/run')
  assert checkpoints.logdir_from_flags() == '/home/ada/run'


def test_the_chief_keeps_the_flags_and_takes_an_old_report_away(
  set_flags, tmp_path
):
  logdir = tmp_path / 'a' / 'run'
  logdir.mkdir(parents=True)
  (logdir / 'report.json').write_text('{}')
  assert checkpoints.has_ended(str(logdir))
  set_flags(f'--logdir={logdir}', '--model=cnn', '--hidden_units=30,20')
  checkpoints.make_logdir(str(logdir), is_chief=True)
  assert not checkpoints.has_ended(str(logdir))
  kept = checkpoints.read_flags(str(logdir))
  assert {'--model=cnn', '--hidden_units=30,20'} < set(kept)
  assert not [word for word in kept if word.startswith('--logdir')]
  assert [p.name for p in logdir.iterdir()] == ['train.flags']


def test_flags_that_were_kept_can_be_given_again(set_flags, tmp_path):
  set_flags('--model=dnn', '--hidden_units=30,20', '--validation_images=7')
  checkpoints.make_logdir(str(tmp_path), is_chief=True)
  set_flags('--model=cnn', '--validation_images=5')
  set_flags(*checkpoints.read_flags(str(tmp_path)))
  assert workload.describe()[0] == 'dnn'
  found = {flag.name: flag.value for flag in checkpoints.our_flags()}
  assert found['hidden_units'] == ['30', '20']
  assert found['validation_images'] == 7


def test_a_worker_makes_the_directory_and_writes_nothing(set_flags, tmp_path):
  set_flags()
  logdir = tmp_path / 'run'
  checkpoints.make_logdir(str(logdir), is_chief=False)
  assert list(logdir.iterdir()) == []


def test_flags_of_libraries_are_not_ours(set_flags):
  set_flags()
  names = {flag.name for flag in checkpoints.our_flags()}
  assert {'logdir', 'model', 'help'} < names
  assert not {'verbosity', 'cli_test_count'} & names


def test_the_flags_of_the_program_itself_are_ours(set_flags, monkeypatch):
  """absl files the flags of __main__ under the path of the program."""
  set_flags()
  modules = {'/x/train.py': ['a flag'], 'absl.logging': ['another']}
  monkeypatch.setattr('sys.argv', ['/x/train.py'])
  monkeypatch.setattr(
    type(checkpoints.FLAGS), 'flags_by_module_dict', lambda self: modules
  )
  assert checkpoints.our_flags() == ['a flag']


def test_a_logdir_that_cannot_be_written_is_refused(set_flags, tmp_path):
  set_flags()
  (tmp_path / 'file').write_text('')
  logdir = str(tmp_path / 'file' / 'run')
  with pytest.raises(
    cli.RunError,
    match=f'^--logdir={re.escape(logdir)} cannot be written: Not a directory; '
    'choose a directory of your own$',
  ):
    checkpoints.make_logdir(logdir, is_chief=True)


def test_a_directory_without_a_run_is_named(tmp_path):
  path = tmp_path / 'train.flags'
  with pytest.raises(cli.RunError) as caught:
    checkpoints.read_flags(str(tmp_path))
  assert str(caught.value) == (
    f'no run of distmnist.train in --logdir={tmp_path}: {path} cannot be read '
    '(No such file or directory)'
  )


def test_the_latest_checkpoint_is_found_and_knows_its_step(tmp_path):
  assert checkpoints.find_latest(str(tmp_path)) is None
  save(str(tmp_path), step=3)
  path = save(str(tmp_path), step=12)
  assert checkpoints.find_latest(str(tmp_path)) == path
  assert path == checkpoints.path_of_step(str(tmp_path), 12)
  assert checkpoints.read_step(path) == 12


def test_a_directory_that_is_not_there_has_no_checkpoint(tmp_path):
  assert checkpoints.find_latest(str(tmp_path / 'nowhere')) is None


def test_the_best_checkpoint_is_not_the_latest(tmp_path):
  best = checkpoints.best_dir(str(tmp_path))
  os.makedirs(best)
  save(best, step=2)
  assert checkpoints.find_latest(str(tmp_path)) is None
  assert checkpoints.read_step(checkpoints.find_latest(best)) == 2


@pytest.mark.parametrize('shape', [[7, 2], [3, 9]])
@pytest.mark.parametrize(
  'num_saved, num_found', list(itertools.permutations([1, 2, 3, 7], 2))
)
def test_the_number_of_shards_does_not_matter(
  tmp_path, num_saved, num_found, shape
):
  def build(num_ps):
    with placement.sharded(num_ps):
      w = tf.get_variable('w', shape)
    # With slots, as an optimizer has them.
    gradients = [tf.zeros(part.shape) for part in tf.global_variables()]
    tf.train.AdamOptimizer().apply_gradients(
      zip(gradients, tf.global_variables(), strict=True)
    )
    return tf.convert_to_tensor(w)

  with tf.Graph().as_default(), tf.Session() as session:
    w = build(num_saved)
    session.run(tf.global_variables_initializer())
    saved = session.run(w)
    path = tf.train.Saver().save(session, str(tmp_path / 'x'))
  with tf.Graph().as_default(), tf.Session() as session:
    w = build(num_found)
    checkpoints.check_fits(path, tf.global_variables())
    tf.train.Saver().restore(session, path)
    assert session.run(w).tolist() == saved.tolist()


def test_a_variable_that_is_missing_is_named(tmp_path, tf_session):
  path = save(str(tmp_path), w=[2])
  tf.get_variable('w', [2])
  tf.get_variable('w/Momentum', [2])
  with pytest.raises(cli.RunError) as caught:
    checkpoints.check_fits(path, tf.global_variables())
  assert str(caught.value) == (
    f'checkpoint {path} has no w/Momentum: it comes from another model or '
    'optimizer; give the flags it was trained with, or another --logdir'
  )


def test_another_shape_is_named_whole(tmp_path, tf_session):
  path = save(str(tmp_path), w=[5, 2])
  with placement.sharded(2):
    tf.get_variable('w', [6, 2])
  with pytest.raises(cli.RunError) as caught:
    checkpoints.check_fits(path, tf.global_variables())
  assert str(caught.value) == (
    f'checkpoint {path} has w with shape [5, 2], but the model has [6, 2]: it '
    'comes from another model; give the flags it was trained with, or another '
    '--logdir'
  )


def test_a_checkpoint_may_hold_more_than_is_asked_for(tmp_path, tf_session):
  path = save(str(tmp_path), w=[2], unused=[3])
  tf.get_variable('w', [2])
  checkpoints.check_fits(path, tf.global_variables())
  with pytest.raises(cli.RunError, match='has no x: '):
    checkpoints.check_fits(path, [tf.get_variable('x', [2])])


def test_a_file_that_is_no_checkpoint_cannot_be_read(tmp_path):
  path = save(str(tmp_path), w=[2])
  (tmp_path / (os.path.basename(path) + '.index')).write_bytes(b'rubbish' * 50)
  for name in (path, str(tmp_path / 'nowhere')):
    with pytest.raises(
      cli.RunError, match=f'^checkpoint {re.escape(name)} cannot be read: .'
    ):
      checkpoints.check_fits(name, [])


def copy_of(path, folder):
  """Copies a checkpoint's files to `folder`; returns its new path."""
  for file in glob.glob(f'{path}.*'):
    shutil.copy(file, folder)
  return os.path.join(folder, os.path.basename(path))


def truncate(name):
  data = pathlib.Path(name).read_bytes()
  pathlib.Path(name).write_bytes(data[: len(data) // 2])


def flip(name):
  data = bytearray(pathlib.Path(name).read_bytes())
  data[len(data) // 2] ^= 1
  pathlib.Path(name).write_bytes(data)


def empty(name):
  pathlib.Path(name).write_bytes(b'')


DATA = 'data-00000-of-00001'


@pytest.mark.parametrize(
  'harm, ending',
  [
    *((harm, DATA) for harm in (truncate, flip, empty, os.remove)),
    *((harm, 'index') for harm in (truncate, empty, os.remove)),
  ],
)
def test_a_checkpoint_that_is_not_whole_is_named_and_the_one_before_taken(
  tmp_path, harm, ending
):
  first = save(tmp_path, step=3, w=[50])
  with tf.Graph().as_default(), tf.Session() as session:
    w = tf.get_variable('w', [50])
    step = tf.train.get_or_create_global_step()
    saver = tf.train.Saver()
    saver.recover_last_checkpoints([first])
    session.run([w.initializer, step.initializer])
    second = saver.save(session, checkpoints.prefix(tmp_path), 9)
  assert checkpoints.find_whole(str(tmp_path), print) == second
  harm(f'{second}.{ending}')
  lines = []
  assert checkpoints.find_whole(str(tmp_path), lines.append) == first
  [line] = lines
  assert line.startswith(f'checkpoint {second} is not whole, and not used: ')
  truncate(f'{first}.index')
  with pytest.raises(
    cli.RunError, match='^none of the checkpoints in .* is whole: .*never'
  ):
    checkpoints.find_whole(str(tmp_path), lines.append)


@pytest.mark.parametrize('harm', [truncate, empty, os.remove])
def test_without_the_list_the_checkpoints_are_found_by_name(tmp_path, harm):
  paths = [save(tmp_path, step=step, w=[2]) for step in (3, 20, 100)]
  harm(str(tmp_path / 'checkpoint'))
  found = checkpoints.list_checkpoints(str(tmp_path))
  # A list that was cut short may still name one.
  assert found[0] == paths[2] or found == paths[::-1]


def test_a_folder_that_was_moved_keeps_its_checkpoints(tmp_path):
  (tmp_path / 'a').mkdir()
  save(tmp_path / 'a', w=[2])
  (tmp_path / 'a').rename(tmp_path / 'b')
  assert checkpoints.find_whole(str(tmp_path / 'b'), print) == str(
    tmp_path / 'b' / 'model.ckpt-3'
  )


def test_no_checkpoint_is_none(tmp_path):
  assert checkpoints.find_whole(str(tmp_path), print) is None
  assert checkpoints.find_whole(str(tmp_path / 'nowhere'), print) is None


def make_again(restart):
  """What a recovery later in the training begins with."""
  restart.remember(tf.train.Saver([tf.Variable(0, name='v')]))
  return restart.find()


def make_restart(set_flags, logdir, resume):
  set_flags(f'--resume={resume}')
  restart = checkpoints.restart_from_flags(str(logdir), 10, lambda line: None)
  restart.prepare()
  return restart


def test_auto_begins_with_the_latest(set_flags, tmp_path, tf_session):
  path = save(tmp_path, w=[2])
  restart = make_restart(set_flags, tmp_path, 'auto')
  assert restart.find() == path
  assert not restart.is_finished()
  assert make_again(restart) == path
  restart = make_restart(set_flags, tmp_path, 'auto')
  save(tmp_path, step=10, w=[2])
  assert restart.is_finished()


def test_never_moves_the_earlier_run_aside(set_flags, tmp_path):
  path = save(tmp_path, w=[2])
  (tmp_path / 'worker_0').mkdir()
  (tmp_path / 'logs').mkdir()
  restart = make_restart(set_flags, tmp_path, 'never')
  assert restart.find() is None
  [aside] = tmp_path.glob('earlier_*')
  assert (aside / os.path.basename(f'{path}.index')).exists()
  assert (aside / 'worker_0').exists()
  assert sorted(p.name for p in tmp_path.iterdir()) == [aside.name, 'logs']


def test_never_goes_on_once_the_launcher_starts_the_task_again(
  set_flags, tmp_path, monkeypatch
):
  path = save(tmp_path, w=[2])
  monkeypatch.setenv('DISTMNIST_ATTEMPT', '2')
  assert make_restart(set_flags, tmp_path, 'never').find() == path


@pytest.mark.parametrize('is_folder', [False, True])
@pytest.mark.parametrize('is_own', [False, True])
def test_a_path_is_what_the_training_begins_with(
  set_flags, tmp_path, tf_session, is_folder, is_own
):
  logdir, other = tmp_path / 'run', tmp_path / 'other'
  logdir.mkdir()
  other.mkdir()
  save(logdir, step=5, w=[2])
  path = save(logdir if is_own else other, step=9, w=[2])
  given = os.path.dirname(path) if is_folder else path
  restart = make_restart(set_flags, logdir, given)
  found = restart.find()
  assert checkpoints.read_step(found) == 9
  # What the training has saved itself comes before it from then on.
  own = save(logdir, step=12, w=[2])
  assert make_again(restart) == own


@pytest.mark.parametrize('given', ['nowhere', 'run/model.ckpt-7', 'run', ''])
def test_a_path_without_a_checkpoint_is_refused(set_flags, tmp_path, given):
  (tmp_path / 'run').mkdir()
  with pytest.raises(cli.UsageError, match='^--resume=.*: no checkpoint there'):
    make_restart(set_flags, tmp_path / 'logdir', tmp_path / given)


def test_a_path_that_is_not_whole_is_refused(set_flags, tmp_path):
  path = save(tmp_path, w=[2])
  truncate(f'{path}.data-00000-of-00001')
  with pytest.raises(cli.RunError, match=r'^--resume=.* is not whole: '):
    make_restart(set_flags, tmp_path / 'logdir', path)


def test_the_last_checkpoints_are_kept(set_flags, tmp_path, tf_session):
  set_flags('--keep_checkpoints=2')
  step = tf.train.get_or_create_global_step()
  tf_session.run(step.initializer)
  saver = checkpoints.saver_from_flags()
  for i in (1, 2, 3):
    checkpoints.save(saver, tf_session, str(tmp_path), i)
  # A restarted chief drops those of before, too.
  saver = checkpoints.saver_from_flags()
  restart = checkpoints.restart_from_flags(str(tmp_path), 10, print)
  restart.remember(saver)
  checkpoints.save(saver, tf_session, str(tmp_path), 4)
  assert [
    os.path.basename(path)
    for path in checkpoints.list_checkpoints(str(tmp_path))
  ] == ['model.ckpt-4', 'model.ckpt-3']
  assert not glob.glob(f'{tmp_path}/*-2.*')


def test_a_checkpoint_that_cannot_be_written_is_named(
  set_flags, tmp_path, tf_session
):
  set_flags()
  tf_session.run(tf.train.get_or_create_global_step().initializer)
  saver = checkpoints.saver_from_flags()
  folder = tmp_path / 'run'
  folder.write_text('a file')
  with pytest.raises(
    cli.RunError, match='^cannot write checkpoint .*run/model.ckpt-1: .*room'
  ):
    checkpoints.save(saver, tf_session, str(folder), 1)


@pytest.mark.parametrize(
  'error_class, text',
  [
    (tf.errors.UnavailableError, 'UNAVAILABLE: From /job:worker:'),
    (tf.errors.CancelledError, 'RecvFromRemote: Socket closed'),
  ],
)
def test_a_ps_that_dies_while_the_chief_saves_is_no_full_disk(
  tmp_path, tf_session, error_class, text
):
  tf.train.get_or_create_global_step()
  part = tmp_path / 'model.ckpt-1.data-00000-of-00001'

  class Saver(tf.train.Saver):
    def save(self, *args, **kwargs):
      part.write_text('half of it')
      [op] = [
        op
        for op in tf.get_default_graph().get_operations()
        if op.type == 'SaveV2'
      ]
      raise error_class(op.node_def, op, text)

  with pytest.raises(error_class):
    checkpoints.save(Saver(), tf_session, str(tmp_path), 1)
  assert not part.exists()


def test_a_disk_that_is_too_small_is_found_out_at_the_start(
  tmp_path, tf_session, monkeypatch
):
  w = tf.get_variable('w', [1000, 1000])
  checkpoints.check_space(str(tmp_path), [w])
  usage = shutil.disk_usage(tmp_path)._replace(free=3_000_000)
  monkeypatch.setattr(shutil, 'disk_usage', lambda folder: usage)
  with pytest.raises(
    cli.RunError, match='3.0 MB are free, and one checkpoint takes 4.0 MB'
  ):
    checkpoints.check_space(str(tmp_path), [w])


def test_the_chief_signs_its_folder(tmp_path):
  assert not checkpoints.is_signed(str(tmp_path), 'abc')
  checkpoints.sign(str(tmp_path), 'abc')
  assert checkpoints.is_signed(str(tmp_path), 'abc')
  assert not checkpoints.is_signed(str(tmp_path), 'abd')
