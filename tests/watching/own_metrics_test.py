"""Any part of a task says what it has to say, kept or not."""

from distmnist.watching import metrics_file, own_metrics


def test_without_a_logdir_nothing_is_kept(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  metrics = own_metrics.OwnMetrics()
  with metrics.kept(None, 'ps 0', 'a', 60) as mine:
    assert mine is None
    metrics.write('event', event='wait')
    metrics.collect_by(dict)
  assert list(tmp_path.iterdir()) == []


def test_what_is_said_is_kept_until_the_end(tmp_path):
  metrics = own_metrics.OwnMetrics()
  with metrics.kept(str(tmp_path), 'worker 0', 'a', 60) as mine:
    metrics.collect_by(lambda: {'state': 'training', 'step': 7})
    metrics.write('event', event='recovered', step=3)
    mine.ending = 'stopped'
  metrics.write('event', event='wait')
  lines = metrics_file.read(str(tmp_path))
  assert [line.get('event') for line in lines].count('recovered') == 1
  assert lines[-2]['step'] == 7
  assert lines[-1]['ok'] and lines[-1]['text'] == 'stopped'
