"""logdirs: the folder that all workers share."""

import os

from distmnist.logdir import logdirs


def test_no_logdir_is_none(set_flags):
  set_flags()
  assert logdirs.from_flags() is None


def test_the_logdir_may_be_below_home(set_flags, monkeypatch):
  monkeypatch.setenv('HOME', '/home/ada')
  set_flags('--logdir=~/run')
  assert logdirs.from_flags() == '/home/ada/run'


def test_the_folder_is_made_and_what_is_in_it_stays(tmp_path):
  logdir = tmp_path / 'a' / 'run'
  logdirs.make(str(logdir))
  assert os.listdir(logdir) == ['distmnist-files']
  (logdir / 'report.json').write_text('{}')
  logdirs.make(str(logdir))
  assert logdirs.has_ended(str(logdir))
  logdirs.remove_report(str(logdir))
  assert not logdirs.has_ended(str(logdir))
  logdirs.remove_report(str(logdir))


def test_the_chief_signs_its_folder(tmp_path):
  assert not logdirs.is_signed(str(tmp_path), 'abc')
  logdirs.sign(str(tmp_path), 'abc')
  assert logdirs.is_signed(str(tmp_path), 'abc')
  assert not logdirs.is_signed(str(tmp_path), 'abd')
  logdirs.sign(str(tmp_path), 'abd')
  assert logdirs.is_signed(str(tmp_path), 'abd')
  assert not logdirs.is_signed(str(tmp_path), 'abc')
  assert logdirs.was_signed(str(tmp_path), 'abc')
  assert not logdirs.was_signed(str(tmp_path), 'abe')
