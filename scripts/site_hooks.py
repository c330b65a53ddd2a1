"""Hooks for mkdocs: pages that are made, and links to files outside docs/.

README.md becomes the page index.md, and so on; --helpfull becomes flags.md, and
the docstrings of the Python calls become api.md.
A link that leaves docs/ (../examples/x.py) leads to a copy in the site; mkdocs
warns of missing files.
"""

import pathlib
import re
import subprocess
import sys

from mkdocs.structure.files import File

REPO = pathlib.Path(__file__).resolve().parents[1]
# Pages in the checkout's root, and their names in the site.
_PAGES = {
  'README.md': 'index.md',
  'CONTRIBUTING.md': 'contributing.md',
  'CHANGELOG.md': 'changelog.md',
}
_FIRST_PROGRAMS = 'train', 'launch', 'sweep'
# What the page of the Python calls shows, by its headings.
_CALLS = {
  'Trainings': [
    *('api.training.run', 'api.training.start', 'api.fit.fit'),
    *('api.process.Process', 'api.sweeping.run_sweep'),
    *('api.training.Report', 'api.process.Error'),
  ],
  "A loop of one's own": [
    'api.own_task.run_task',
    'training.own_loop.WorkerTask',
  ],
  'Deltas of a served model': [
    'serving.delta.apply',
    'serving.delta.apply_to_model',
  ],
  'Spark': [
    *('spark.training.run', 'spark.training.Options'),
    *('spark.feed.Feed', 'spark.prediction.predict'),
  ],
}
# [text](../path#anchor), except where it leads to another page of docs/.
_OUTSIDE = re.compile(r'\]\((?:\.\./)+(?!tutorial/)([\w./-]+)(#[\w-]+)?\)')
_SUBJECT = re.compile(r'^([A-Z][^:\n]*):$')
_FLAG = re.compile(r'^  (--\S+): (.*)')
# Each program has flags of its own; TensorFlow is imported once for all.
_PRINT_HELP = """
import importlib, os, sys
import distmnist.runtime
for program in sys.argv[1:]:
  print(f'== {program}', flush=True)
  if not os.fork():
    sys.argv = [program, '--helpfull']
    importlib.import_module(f'distmnist.{program}').run()
  os.wait()
"""


def on_config(config):
  """A page that has no place in the nav yet is a how-to."""
  named = str(config.nav)
  how_to = next(item['How-to'] for item in config.nav if 'How-to' in item)
  how_to += [
    path.name
    for path in sorted((REPO / 'docs').glob('*.md'))
    if f"'{path.name}'" not in named
  ]
  return config


def on_files(files, config):
  made = {page: make_page(name) for name, page in _PAGES.items()}
  made |= {'flags.md': make_flags(), 'api.md': make_calls()}
  for name, text in made.items():
    files.append(File.generated(config, name, content=text))
  copied = set()
  for file in files.documentation_pages():
    for path, _ in _OUTSIDE.findall(file.content_string):
      if (REPO / path).is_file() and path not in _PAGES:
        copied.add(path)
  for path in sorted(copied):
    content = (REPO / path).read_bytes()
    files.append(File.generated(config, f'source/{path}', content=content))
  return files


def on_page_markdown(markdown, page, **_):
  up = '../' * page.file.src_uri.count('/')

  def lead_to_copy(match):
    path, anchor = match[1], match[2] or ''
    if not match[0].startswith(f']({up}../'):
      return match[0]  # Another page of docs/.
    if path in _PAGES:
      return f']({up}{_PAGES[path]}{anchor})'
    if (REPO / path).is_dir():
      return ']'  # The words alone: a site has no folders to look into.
    return f']({up}source/{path}{anchor})'

  return _OUTSIDE.sub(lead_to_copy, markdown)


def make_page(name):
  """Returns a page of the checkout's root as one of docs/."""
  text = (REPO / name).read_text(encoding='utf-8')
  text = re.sub(r'\]\((?!docs/|https?:)', '](../', text)
  return text.replace('](docs/', '](')


def make_flags():
  """Returns the page of every flag: the programs' own words, by subject."""
  lines = [
    '# Every flag',
    '',
    'What `--helpfull` of each program prints. A flag stands under the first '
    'program that has it; `launch` and `sweep` pass on those of `train`.',
  ]
  seen = set()
  for program, text in read_help().items():
    lines += ['', f'## distmnist.{program}']
    for subject, flags in parse_help(text).items():
      new = {name: text for name, text in flags.items() if name not in seen}
      seen |= new.keys()
      if new:
        lines += ['', f'### {subject}', '']
        lines += [f'- `{name}`: {text}' for name, text in new.items()]
  return '\n'.join(lines) + '\n'


def make_calls():
  """Returns the page of the Python calls, for mkdocstrings to fill in."""
  lines = ['# Python calls', '', '[From Python](python.md) shows them in use.']
  for title, names in _CALLS.items():
    lines += ['', f'## {title}']
    for name in names:
      lines += ['', f'::: distmnist.{name}']
  return '\n'.join(lines) + '\n'


def find_programs():
  """Returns the names (list of str) of what `python -m distmnist.` starts."""
  found = {
    path.stem
    for path in (REPO / 'distmnist').glob('*.py')
    if "__name__ == '__main__'" in path.read_text()
  }
  return [*_FIRST_PROGRAMS, *sorted(found - {'check_flags', *_FIRST_PROGRAMS})]


def read_help():
  """Returns {program: what its --helpfull prints}."""
  done = subprocess.run(
    [sys.executable, '-c', _PRINT_HELP, *find_programs()],
    cwd=REPO,
    capture_output=True,
    text=True,
    check=True,
  )
  _, *parts = re.split(r'^== (\w+)\n', done.stdout, flags=re.M)
  return dict(zip(parts[::2], parts[1::2], strict=True))


def parse_help(text):
  """Returns {subject: {flag: explanation}} of what --helpfull prints."""
  subjects, flags, name = {}, {}, None
  for line in text.splitlines():
    if match := _SUBJECT.match(line):
      name = None
      flags = subjects.setdefault(match[1], {})
    elif match := _FLAG.match(line):
      name = match[1]
      flags[name] = match[2]
    elif name and line.startswith('    '):
      flags[name] += f' {line.strip()}'
  return {
    subject: {name: _escape(text) for name, text in flags.items()}
    for subject, flags in subjects.items()
    if flags and not subject.startswith('Library')
  }


def _escape(text):
  """Returns `text` escaped, for Markdown to show it as it is."""
  return re.sub(r'([*_<>\[\]`\\])', r'\\\1', text)
