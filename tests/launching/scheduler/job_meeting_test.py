import json
import shutil

import pytest

from distmnist.launching.scheduler import job_meeting


@pytest.fixture
def folder(tmp_path):
  folder = tmp_path / 'jobs' / '1'
  folder.mkdir(parents=True)
  return folder


def test_who_has_a_place_is_known_to_all(folder):
  first, second = (
    job_meeting.Meeting(str(folder), name) for name in ('ps 0', 'worker 0')
  )
  names = ['ps 0', 'worker 0', 'worker 1']
  assert second.read_places(names) == {}
  first.say('place', 'a:1')
  second.say('place', 'b:2')
  assert first.read_places(names) == {'ps 0': 'a:1', 'worker 0': 'b:2'}
  assert first.hear('end') == ''


def test_a_run_that_is_over_is_no_error(folder):
  meeting = job_meeting.Meeting(str(folder), 'ps 0')
  assert meeting.is_open
  (folder.parent / job_meeting.REQUEST).write_text(json.dumps({'a': 1}))
  assert job_meeting.read_request(str(folder)) == {'a': 1}
  shutil.rmtree(folder.parent)
  assert not meeting.is_open
  assert job_meeting.read_request(str(folder)) is None
  meeting.say('end', '0')
  assert meeting.hear('end') == ''


@pytest.mark.slow
def test_a_side_that_is_silent_is_lost_and_one_that_beats_is_not(
  folder, monkeypatch
):
  now = [0.0]
  monkeypatch.setattr(job_meeting.time, 'monotonic', lambda: now[0])
  meeting = job_meeting.Meeting(str(folder), 'ps 0')
  pulse = job_meeting.Pulse(meeting.path('job'))
  for now[0] in range(0, 200, 5):
    meeting.say('job', str(now[0]))
    assert not pulse.is_lost()
  # From here on the job is no more.
  lost = [now[0] for now[0] in range(200, 300, 5) if pulse.is_lost()]
  assert 255 <= lost[0] <= 265
