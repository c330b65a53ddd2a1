"""python -m distmnist.report."""

import sys

import pytest

from distmnist import report
from distmnist.common import cli
from distmnist.watching import html_report, metrics_file


@pytest.fixture
def folder(tmp_path, set_flags):
  set_flags(f'--logdir={tmp_path}')
  ps = metrics_file.Writer(str(tmp_path), 'ps 0', 'a', host='h', pid=1)
  ps.write('sample', state='serving')
  return tmp_path


@pytest.mark.slow
def test_it_prints_where_the_page_is(folder, capsys):
  report.main()
  assert capsys.readouterr().out == f'{folder}/report.html\n'
  assert (folder / 'report.html').is_file()


def test_where_nothing_can_draw_it_says_what_to_install(folder, monkeypatch):
  monkeypatch.setitem(sys.modules, 'jinja2', None)
  with pytest.raises(cli.RunError, match=r'pip install distmnist\[plots\]$'):
    report.main()
  assert not (folder / 'report.html').exists()


def test_a_folder_of_another_user_is_told(folder, monkeypatch):
  def write(*args):
    raise PermissionError(13, 'Permission denied')

  monkeypatch.setattr(html_report, 'write', write)
  with pytest.raises(cli.RunError, match='cannot be written: Permission den'):
    report.main()
