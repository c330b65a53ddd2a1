#!/usr/bin/env python3
"""A kubectl that checks how it is called and plays a cluster's answers.

In the folder FAKE_KUBECTL: moments.json is a list of the cluster's states in
turn, {"object": dict, "pods": list of dict}; each look at the object goes to
the next, and after a delete there are no pods, or at the first look those of
leaving.json. exists.json has the objects that are there before, and refuses
what it says when it cannot create all. calls has a line of JSON for each call;
a call that is not of the protocol ends with 64.
"""

import json
import os
import pathlib
import re
import sys
import time


def main(words):
  folder = pathlib.Path(os.environ['FAKE_KUBECTL'])
  text = '' if words[-1].startswith('pod/') else sys.stdin.read()
  with open(folder / 'calls', 'a') as file:
    file.write(json.dumps([words, text]) + '\n')
  if words[:2] == ['--namespace', 'ml']:
    words = words[2:]
  as_json = ['--ignore-not-found', '-o', 'json']
  if words == ['create', '-f', '-']:
    if not text.lstrip('#').strip():
      sys.exit('error: no objects passed to create')
    if (folder / 'refuses').exists():
      sys.exit((folder / 'refuses').read_text())
  elif words == ['get', '-f', '-', *as_json]:
    # As kubectl: nothing, the one that is found, or a list.
    path = folder / 'exists.json'
    found = json.loads(path.read_text()) if path.exists() else []
    if found:
      print(json.dumps(found[0] if len(found) == 1 else {'items': found}))
  elif is_selected(words, 'get', 'app=distmnist,run=mnist,', as_json):
    if words[1] == 'pods':
      print(json.dumps({'items': look(folder)['pods']}))
    else:
      moments = json.loads((folder / 'moments.json').read_text())
      if len(moments) > 1:
        write(folder / 'moments.json', moments[1:])
      write(folder / 'now.json', moments[0])
      found = moments[0]['object']
      print(json.dumps({'items': [found] if found else []}))
  elif words[:2] == ['logs', '--follow'] and words[-1].startswith('pod/'):
    name = words[-1].removeprefix('pod/')
    print(f'the log of {name}' if len(words) == 3 else f'more of {name}')
    sys.stdout.flush()
    (folder / 'followed').touch()
    while name.endswith('forever') and not (folder / 'deleted').exists():
      time.sleep(0.01)
  elif is_selected(words, 'delete', 'run=mnist,', [as_json[0], '--wait=false']):
    (folder / 'deleted').touch()
  else:
    print(f'not of the protocol: {words}', file=sys.stderr)
    sys.exit(64)


def is_selected(words, verb, labels, ending):
  """Whether a call is of what one launch has created, and nothing else."""
  return (
    (words[0], words[2]) == (verb, '--selector')
    and re.fullmatch(labels + r'launch=\w+', words[3])
    and words[4:] == ending
  )


def look(folder):
  if (folder / 'deleted').exists():
    leaving = folder / 'leaving.json'
    if not leaving.exists():
      return {'pods': []}
    pods = json.loads(leaving.read_text())
    leaving.unlink()
    return {'pods': pods}
  return json.loads((folder / 'now.json').read_text())


def write(path, value):
  path.with_suffix('.new').write_text(json.dumps(value))
  path.with_suffix('.new').rename(path)


if __name__ == '__main__':
  main(sys.argv[1:])
