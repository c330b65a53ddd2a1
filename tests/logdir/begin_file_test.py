"""begin_file: whether this launch has begun its run."""

from distmnist.logdir import begin_file


def test_a_launch_has_begun_once_it_has_said_so(tmp_path, monkeypatch):
  logdir = str(tmp_path)
  monkeypatch.delenv('DISTMNIST_LAUNCH_ID', raising=False)
  begin_file.write(logdir, None)
  assert begin_file.has_begun(logdir) and begin_file.read(logdir) == {}
  monkeypatch.setenv('DISTMNIST_LAUNCH_ID', 'one')
  assert not begin_file.has_begun(logdir)
  begin_file.write(logdir, 'run/model.ckpt-9')
  assert begin_file.has_begun(logdir)
  assert begin_file.read(logdir)['from'] == 'run/model.ckpt-9'
  monkeypatch.setenv('DISTMNIST_LAUNCH_ID', 'two')
  assert not begin_file.has_begun(logdir)
  (tmp_path / 'distmnist-files' / 'begin.json').write_text('[')
  assert begin_file.read(logdir) == {}
