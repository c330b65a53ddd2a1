#!/usr/bin/env python3
"""A kubectl that checks how it is called and plays a cluster's answers.

In the folder FAKE_KUBECTL: moments.json is a list of the cluster's states in
turn, {"object": dict, "pods": list of dict}, one for each look; after a delete
there are no pods, or at the first look those of leaving.json. exists.json has
the objects that are there before. calls has a line of JSON for each call; a
call that is not of the protocol ends with 64.
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
  elif words == ['get', '-f', '-', *as_json]:
    # As kubectl: nothing, the one that is found, or a list.
    path = folder / 'exists.json'
    found = json.loads(path.read_text()) if path.exists() else []
    if found:
      print(json.dumps(found[0] if len(found) == 1 else {'items': found}))
  elif is_selected(words, 'get', as_json) and words[1].endswith(',pods'):
    found = look(folder)
    print(json.dumps({'items': [found['object'], *found['pods']]}))
  elif words[:2] == ['logs', '--follow'] and words[-1].startswith('pod/'):
    name = words[-1].removeprefix('pod/')
    print(f'the log of {name}' if len(words) == 3 else f'more of {name}')
    sys.stdout.flush()
    (folder / 'followed').touch()
    while name.endswith('forever') and not (folder / 'deleted').exists():
      time.sleep(0.01)
  elif is_selected(words, 'delete', [as_json[0], '--wait=false']):
    (folder / 'deleted').touch()
  else:
    print(f'not of the protocol: {words}', file=sys.stderr)
    sys.exit(64)


def is_selected(words, verb, ending):
  """Whether a call is of what one launch has created, and nothing else."""
  return (
    (words[0], words[2]) == (verb, '--selector')
    and re.fullmatch(r'run=mnist,launch=\w+', words[3])
    and words[4:] == ending
  )


def look(folder):
  """Returns the state of the cluster at this look."""
  path = folder / 'moments.json'
  now, *later = json.loads(path.read_text())
  if (folder / 'deleted').exists():
    leaving = folder / 'leaving.json'
    pods = json.loads(leaving.read_text()) if leaving.exists() else []
    leaving.unlink(missing_ok=True)
    return {**now, 'pods': pods}
  if later:
    path.write_text(json.dumps(later))
  return now


if __name__ == '__main__':
  main(sys.argv[1:])
