"""launch --like: what is taken over of a run, what is not, what wins."""

import os
import socket

import pytest
from absl import flags
from absl.testing import flagsaver

from distmnist.common import cli, versions
from distmnist.common.names import TRAIN
from distmnist.launching import cluster_flags, repeating
from distmnist.logdir import run_flags
from distmnist.watching import metrics_file

OF_CHIEF = (
  *('--job_name=worker', '--task_index=0', '--ps_hosts=h:1'),
  *('--worker_hosts=h:2,h:3,h:4', '--start_timeout_secs=60.0'),
  *('--intra_op_parallelism_threads=2', '--inter_op_parallelism_threads=2'),
  *('--seed=5', '--learning_rate=0.05', '--train_steps=300', '--history'),
  *('--resume=never', '--report_file=r.json', '--strategy=sync_sgd'),
)
TASKS = 'ps 0', 'worker 0', 'worker 1', 'worker 2', 'evaluator 0'
THREADS = '--intra_op_parallelism_threads=2', '--inter_op_parallelism_threads=2'
TAKEN = '--seed=5', '--learning_rate=0.05', '--train_steps=300', '--history'


@pytest.fixture(autouse=True)
def _keep_flags():
  with flagsaver.flagsaver():  # The defaults as well.
    yield


@pytest.fixture
def run(tmp_path):
  """The log directory of a run."""
  return make_run(tmp_path / 'run', launcher='local', launch_flags=['--gpus=0'])


def make_run(folder, kept=OF_CHIEF, given=('--seed=5',), **of_launcher):
  (folder / 'metrics').mkdir(parents=True)
  (folder / 'train.flags').write_text('\n'.join(kept) + '\n')
  if of_launcher:
    writer = metrics_file.Writer(
      *(str(folder), 'launcher', 'l'),
      host=socket.gethostname(),
      tasks=TASKS,
      flags=list(given),
      **of_launcher,
    )
    writer.write('end', ok=True, code=0, text='')
  return str(folder)


def take(set_flags, *words, given=()):
  set_flags(*words)
  return repeating.from_flags(list(given))


def test_without_like_all_is_as_it_was_given(set_flags):
  given = ['--seed', '3']
  found = take(set_flags, '--num_ps=2', '--logs_dir=x', given=given)
  assert found.train_flags == given
  assert found.launch_flags == ['--num_ps=2']
  assert found.num_cores is None


def test_a_run_is_made_again_with_all_but_its_places(set_flags, run):
  found = take(set_flags, f'--like={run}')
  assert set(found.train_flags) == {
    *TAKEN,
    *('--strategy=sync_sgd', f'--logdir={run}_2'),
  }
  assert cluster_flags.NUM_PS.value == 1
  assert cluster_flags.NUM_WORKERS.value == 3
  assert flags.FLAGS.gpus == '0'
  # As many threads for each worker as then, and the launcher's for the ps.
  assert found.num_cores == 6
  assert set(found.launch_flags) == {
    *('--gpus=0', '--launcher=local', '--num_ps=1', '--num_workers=3')
  }


def test_flags_of_several_lines_or_values_are_taken_over(set_flags, tmp_path):
  lines = 'module load cuda\nsource env/bin/activate'
  conf = ['spark.a=1', 'spark.b=x\ny']
  given = f'--slurm_setup={lines}', *(f'--spark_conf={each}' for each in conf)
  words = take(set_flags, *given).launch_flags
  assert {*words} == {*given}
  run = make_run(tmp_path / 'run', launcher='local', launch_flags=words)
  for flag in 'slurm_setup', 'spark_conf':
    flags.FLAGS[flag].unparse()
  again = take(set_flags, f'--like={run}').launch_flags
  assert {*given} < {*again}
  assert flags.FLAGS.slurm_setup == lines and flags.FLAGS.spark_conf == conf


def test_secrets_are_not_kept_and_are_to_be_given_again(
  set_flags, tmp_path, caplog
):
  caplog.set_level('INFO')
  open_word = '--spark_conf=spark.ssl.keyStore=/store'
  secret = '--spark_conf=spark.ssl.keyPassword=hunter2'
  hidden = '--spark_conf=spark.ssl.keyPassword=...'
  words = take(set_flags, open_word, secret).launch_flags
  assert words == [open_word, hidden]
  for i, kept in enumerate([words, [open_word, secret]]):
    run = make_run(tmp_path / f'run{i}', launcher='spark', launch_flags=kept)
    flags.FLAGS['spark_conf'].unparse()
    caplog.clear()
    found = take(set_flags, f'--like={run}').launch_flags
    assert open_word in found and hidden not in found
    assert flags.FLAGS.spark_conf == ['spark.ssl.keyStore=/store']
    assert hidden in caplog.text and 'hunter2' not in caplog.text
    caplog.clear()
    found = take(set_flags, f'--like={run}', secret).launch_flags
    assert {open_word, hidden} < {*found} and secret not in found
    assert flags.FLAGS.spark_conf == [
      word.removeprefix('--spark_conf=') for word in (open_word, secret)
    ]
    assert hidden not in caplog.text


def test_what_is_given_besides_wins(set_flags, run):
  given = '--nohistory', '--epochs', '2', '--logdir', f'{run}/../x'
  found = take(set_flags, f'--like={run}', '--num_workers=2', given=given)
  assert cluster_flags.NUM_WORKERS.value == 2 and found.num_cores == 4
  assert set(found.train_flags[: -len(given)]) == {
    *('--seed=5', '--learning_rate=0.05', '--strategy=sync_sgd')
  }
  assert found.train_flags[-len(given) :] == list(given)
  assert found.launch_flags.count('--num_workers=2') == 1
  assert '--num_workers=3' not in found.launch_flags


@pytest.mark.parametrize(
  'given',
  [
    ('--optimizer', 'momentum', '--learning_rate', '-0.1'),
    ('--learning_rate=-0.1', '--optimizer', 'momentum'),
    ('--optimizer', 'seed', '--learning_rate', '-.1'),
    ('--learning_rate=1', 'momentum'),  # Which is no flag: train says so.
  ],
)
def test_a_value_is_not_taken_for_a_flag(set_flags, tmp_path, given):
  kept = '--momentum=0.95', '--seed=3', '--learning_rate=0.5'
  run = make_run(tmp_path / 'run', kept, launcher='local')
  found = take(set_flags, f'--like={run}', given=given)
  own = f'--logdir={run}_2'
  assert found.train_flags == [*kept[:2], own, *given]


def test_what_stands_before_all_flags_is_no_value(set_flags, tmp_path):
  given = ['stray', '--of_script', '-1', '--other', '']
  run = make_run(
    *(tmp_path / 'run', (), given),
    launcher='local',
    launch_flags=['--module=script'],
  )
  os.remove(f'{run}/train.flags')
  words = take(set_flags, f'--like={run}').train_flags
  assert words[:-1] == ['stray', '--of_script=-1', '--other=']


def test_threads_that_a_user_has_given_are_those_of_all_tasks(
  set_flags, tmp_path
):
  run = make_run(tmp_path / 'run', given=THREADS[:1], launcher='local')
  found = take(set_flags, f'--like={run}')
  assert {*THREADS} < {*found.train_flags} and found.num_cores is None


def test_with_another_launcher_all_tasks_have_the_threads_of_a_worker(
  set_flags, run
):
  found = take(set_flags, f'--like={run}', '--launcher=ssh')
  assert {*THREADS} < {*found.train_flags} and found.num_cores is None
  assert found.launch_flags.count('--launcher=ssh') == 1


@pytest.mark.parametrize(
  'kept, shape',
  [
    (OF_CHIEF, (1, 3)),
    (['--worker_hosts=a:1,b:1'], (0, 2)),
    (['--seed=1', '--worker_hosts='], (0, 1)),
  ],
)
def test_a_run_whose_tasks_were_started_by_hand_has_its_hosts(
  set_flags, tmp_path, kept, shape
):
  run = make_run(tmp_path / 'run', kept)
  found = take(set_flags, f'--like={run}')
  assert (cluster_flags.NUM_PS.value, cluster_flags.NUM_WORKERS.value) == shape
  assert not [word for word in found.train_flags if 'hosts' in word]
  assert ({*THREADS} < {*found.train_flags}) == (kept is OF_CHIEF)


@pytest.mark.parametrize('is_known', [False, True])
def test_a_launcher_that_is_not_known_is_said(
  set_flags, tmp_path, caplog, is_known
):
  caplog.set_level('INFO')
  launcher = {'launcher': 'local'} if is_known else {}
  run = make_run(tmp_path / 'run', **launcher)
  words = '--launcher=local', f'--module={TRAIN}'
  for given, told in ((), words), (words[:1], words[1:]), (words, ()):
    for flag in 'launcher', 'module':
      flags.FLAGS[flag].unparse()
    caplog.clear()
    take(set_flags, f'--like={run}', *given)
    expected = () if is_known else told
    assert [w for w in words if w in caplog.text] == [*expected]


def test_each_new_run_has_a_folder_of_its_own(set_flags, run):
  os.mkdir(f'{run}_2')
  assert f'--logdir={run}_3' in take(set_flags, f'--like={run}/').train_flags
  link = f'{run}_link'
  os.symlink(run, link)
  for same in (run, f'{run}/', link):
    with pytest.raises(cli.UsageError, match=f'--logdir={same} '):
      take(set_flags, f'--like={run}', given=[f'--logdir={same}'])


def test_a_run_goes_on_from_what_its_first_life_began_with(set_flags, tmp_path):
  kept = ['--resume=other/model.ckpt-7']
  run = make_run(tmp_path / 'run', kept)
  set_flags('--resume=auto')
  run_flags.write(run, 20)
  found = take(set_flags, f'--like={run}')
  assert kept[0] in found.train_flags


def test_the_problem_is_what_it_was(set_flags, tmp_path, caplog):
  caplog.set_level('INFO')
  mine = tmp_path / 'mine.py'
  run = make_run(tmp_path / 'run', [f'--problem={mine}', '--of_problem=1'])
  copy = f'{run}/problem.py'
  for text, expected in (('a = 1\n', mine), ('a = 2\n', copy), (None, copy)):
    (tmp_path / 'run' / 'problem.py').write_text('a = 1\n')
    mine.unlink(missing_ok=True)
    if text:
      mine.write_text(text)
    caplog.clear()
    words = take(set_flags, f'--like={run}').train_flags
    named = [word for word in words if word.startswith('--problem=')]
    assert named[-1] == f'--problem={expected}'
    assert '--of_problem=1' in words  # Known to the file alone.
    assert (copy in caplog.text) == (expected == copy)


def test_flags_that_train_has_no_more_are_left_out(set_flags, tmp_path, caplog):
  caplog.set_level('INFO')
  run = make_run(tmp_path / 'run', [*OF_CHIEF, '--gone=1'])
  words = take(set_flags, f'--like={run}').train_flags
  assert '--gone=1' not in words and '--gone' in caplog.text


def test_a_run_that_never_began_has_the_flags_of_its_launcher(
  set_flags, tmp_path
):
  run = make_run(
    *(tmp_path / 'run', (), ['--seed', '3', '--mine=4', '--logdir', 'x']),
    launcher='local',
    launch_flags=['--module=script', '--nofork_tasks'],
  )
  os.remove(f'{run}/train.flags')
  found = take(set_flags, f'--like={run}')
  assert found.train_flags == ['--seed=3', '--mine=4', f'--logdir={run}_2']
  assert cluster_flags.MODULE.value == 'script'
  assert flags.FLAGS.fork_tasks is False


def test_what_makes_the_numbers_differ_is_said(set_flags, run, caplog):
  caplog.set_level('INFO')
  now = versions.find()
  then = now | {'numpy': '1.0', 'commit': 'abc'}
  writer = metrics_file.Writer(run, 'worker 0', 'w', host='h', versions=then)
  writer.write('sample', state='training')
  set_flags(*OF_CHIEF, '--learning_rate=0.01')
  run_flags.write(run, 20)
  take(set_flags, f'--like={run}')
  assert f'numpy 1.0 -> {now["numpy"]}' in caplog.text
  assert 'commit abc -> ' in caplog.text and 'tensorflow' not in caplog.text
  assert 'step 20: --learning_rate 0.05 -> 0.01' in caplog.text


def test_where_no_run_is_the_folder_is_named(set_flags, tmp_path):
  with pytest.raises(cli.UsageError, match=f'--like={tmp_path}: no run '):
    take(set_flags, f'--like={tmp_path}')


def test_a_run_of_another_user_is_not_made_again(set_flags, run, monkeypatch):
  monkeypatch.setattr(os, 'geteuid', lambda: os.getuid() + 12345)
  os.chown(run, 4321, -1)
  with pytest.raises(cli.UsageError, match=r'another user \(uid 4321\)'):
    take(set_flags, f'--like={run}')


@pytest.mark.parametrize(
  'words, named',
  [
    (['--flagfile=logs/run/train.flags'], 'logs/run'),
    (['--flagfile', 'train.flags'], '.'),
    (['--flagfile=configs/cnn_async.flags'], None),
    (['--seed=1'], None),
  ],
)
def test_the_flags_of_a_run_as_a_flagfile_lead_to_like(words, named):
  found = repeating.explain_flagfile(words)
  assert found == (
    named and f'to make that run again: --like={named} before the --'
  )
