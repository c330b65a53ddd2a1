"""distmnist beside its peers: the same net, batch, data, machine and run.

  python benchmarks/peers.py [--nets=mlp,cnn] [--peers=NAME,...] [--steps=N]
      [--repeats=3] [--to_accuracy] [--torch_python=PATH] [--out=FOLDER]

Two workers each, on 127.0.0.1, on the CPU; one repeat runs all peers one after
another, so that ratios are of neighbouring runs. The peers are small scripts in
benchmarks/peers:

  ceiling        two separate trainings of distmnist at the same time;
                 ceiling_10 with 10 steps in a session.run
  async_sgd ...  distmnist's rules, by `python -m distmnist.launch`; downpour
                 and agn exchange with the ps every 10 steps (T=10);
                 async_sgd_10 ... also have 10 steps in a session.run;
                 async_sgd_float16 and sync_sgd_float16 move half the bytes
  classic        the script of the tutorials: feed_dict, asynchronous, 1 ps
  bare           what plain TensorFlow allows with 1 ps, a floor for the step of
                 async_sgd: all weights pulled as one message, all gradients
                 pushed as one, Adam on the ps, and nothing else; bare_10 with
                 10 steps in a session.run
  tf2_ps         ParameterServerStrategy: coordinator, 1 ps; tf2_ps_10 has 10
                 steps a call, as its guide advises
  tf2_mirrored   MultiWorkerMirroredStrategy; tf2_mirrored_10 likewise
  torch_ddp      PyTorch, DistributedDataParallel over gloo

The same for all: MNIST, all 60,000 images, unpacked, uint8 in memory; the mlp
(784-100-10, sigmoid, Glorot, batch 100, Adam 0.003) and the cnn (batch 128,
Adam 0.001, dropout 0.5); one computing thread in each worker. TensorFlow has
intra_op 1 and inter_op 2, distmnist's own numbers: with inter_op 1, a step that
waits for the ps blocks what could run meanwhile; the servers of tf2_ps have
inter_op 3, the least that its guide allows. PyTorch has OMP_NUM_THREADS=1.
A worker reads a shard of its own; distmnist's workers share out each epoch,
batch by batch; under tf2_ps each reads the whole set in an order of its own,
since that API gives all workers the same input. TensorFlow 2 has its fused
Adam: Keras's optimizers are slower and do not support a ps.

What is measured, medians over the repeats:

  images/s       over the time in which all workers train, after their first
                 step, summed over the workers. For distmnist from report.json,
                 for the others from their timestamps. --steps counts the steps
                 of a worker; an asynchronous classic worker that starts late
                 is waited for, and nothing before that counts. tf2_ps is
                 measured by its coordinator after 20 calls.
  first step     seconds from the command until some worker, and until every
                 worker, has made a step; the coordinator of tf2_ps does not
                 know which did. Distmnist's logs are read every 50 ms.
  gone           seconds from the last step until no process is left. In that
                 time all peers compute the accuracy on the 10,000 test images;
                 distmnist also saves and writes its report. A server that
                 never ends is killed by us after the workers: `killed`.
  peak MB        the sum of all processes' peak resident memory, sampled twice
                 a second (VmHWM). Pages that forked tasks share count in each.
  CPU s          of all processes, from start to end, as the kernel counts it.

With --to_accuracy each peer runs --accuracy_repeats more times, for --epochs
passes of all workers over the data. Every 20,000 (mlp) or 6,400 (cnn) images
its chief saves the weights and the time: distmnist by --save_steps, as
checkpoints that also hold Adam's slots; the others by numpy.savez. After the
run, one program computes the test accuracy of all snapshots, so that evaluation
takes no time from a training. The seconds run from the command to the first
weights that reach 97 % (mlp) or 99 % (cnn).

A peer that fails is named with its last lines, and the exit code is 1; the
others go on. Without PyTorch, that peer is skipped: see the extra `bench`.
"""

import json
import os
import pathlib
import shutil
import sys
import tempfile

from lib import (
  options,
  peer_kinds,
  peer_list,
  peer_scripts,
  peer_tables,
  processes,
  tables,
)

from distmnist.common import cli
from distmnist.data import idx
from distmnist.datasets import mnist

# Local steps of a worker that take 10 to 30 s; the default of --steps.
STEPS = {'mlp': 6000, 'cnn': 60}
EPOCHS = {'mlp': 8, 'cnn': 4}
SNAPSHOT_IMAGES = {'mlp': 20000, 'cnn': 6400}
NUM_IMAGES = 60000


# ---- A run ----
def measure(peer, work):
  """Runs a peer; returns its raw result, a dict: status, reason, measures."""
  work.folder.mkdir(parents=True)
  try:
    result = peer.run(work)
    snapshots = result.pop('snapshots')
    if work.snapshot_steps:
      result |= find_target(work, snapshots)
    return {'status': 'ok', **result}
  except peer_scripts.SkippedError as reason:
    return {'status': 'skipped', 'reason': str(reason)}
  except processes.ProcessError as error:
    return {'status': 'failed', 'reason': str(error)}
  except Exception as error:
    # A record that is missing or has no step, say: the peer's fault as well.
    return {'status': 'failed', 'reason': f'{type(error).__name__}: {error}'}


def find_target(work, snapshots):
  """Computes when the target was reached.

  Args:
    work: peer_kinds.Work.
    snapshots: list of (seconds since the command, path), ascending.

  Returns:
    dict: accuracies, a list of [seconds, accuracy] until the target;
    to_accuracy_secs, None if it was not reached.
  """
  target = peer_list.TARGETS[work.net]
  judge = processes.Process(
    'accuracy',
    [
      *(sys.executable, str(peer_kinds.FOLDER / 'accuracy.py'), work.net),
      *(str(work.data), str(target), *(path for _, path in snapshots)),
    ],
    work.folder / 'accuracy.log',
  )
  processes.Group().run([judge], work.limit_secs)
  accuracies = json.loads(judge.log.read_text().splitlines()[-1])
  # The accuracies end at the target.
  pairs = [
    (secs, accuracy)
    for (secs, _), accuracy in zip(snapshots, accuracies, strict=False)
  ]
  reached = [secs for secs, accuracy in pairs if accuracy >= target]
  return {
    'accuracies': pairs,
    'to_accuracy_secs': reached[0] if reached else None,
  }


def prepare_data(folder):
  """Writes the unpacked images, as distmnist and as the scripts read them."""
  data_dir = os.environ.get('DISTMNIST_DATA_DIR') or '~/.cache/distmnist'
  files = mnist.prepare(os.path.expanduser(data_dir))
  (folder / 'mnist').mkdir()
  for name, path in files.items():
    (folder / 'mnist' / name).write_bytes(idx.read_content(path))
  for split in ('train', 'test'):
    peer_kinds.common.write_data(folder, split, *mnist.load(str(folder), split))


def run_all(args, save):
  """Runs everything; returns the list of raw results.

  Args:
    args: Namespace of `parse_args`.
    save: callable(results), called after each run.
  """
  results, skipped = [], set()
  with tempfile.TemporaryDirectory() as scratch:
    scratch = pathlib.Path(scratch)
    data = scratch / 'data'
    data.mkdir()
    prepare_data(data)
    for net, mode, repeat, name in list_runs(args):
      if name in skipped:
        continue
      batch_size = peer_kinds.common.NETS[net].batch_size
      steps, snapshot_steps = args.steps or STEPS[net], 0
      if mode == 'accuracy':
        epochs = args.epochs or EPOCHS[net]
        steps = round(epochs * NUM_IMAGES / batch_size / peer_kinds.NUM_WORKERS)
        snapshot_steps = SNAPSHOT_IMAGES[net] // batch_size
      folder = scratch / 'run'
      result = measure(
        peer_list.PEERS[name],
        peer_kinds.Work(
          *(net, steps, snapshot_steps, data, folder, args.torch_python),
          args.limit_secs,
        ),
      )
      if result['status'] == 'failed' and args.out:
        kept = args.out / 'failed' / f'{net}_{mode}_{name}_{repeat}'
        shutil.copytree(
          folder, kept, ignore=shutil.ignore_patterns('*.npz', 'run_?')
        )
      shutil.rmtree(folder)
      if result['status'] == 'skipped':
        skipped.add(name)
      head = {'net': net, 'mode': mode, 'repeat': repeat, 'peer': name}
      results.append({**head, **result})
      say(results[-1])
      save(results)
  return results


def list_runs(args):
  """Yields (net, mode, repeat, peer) in the order of the runs."""
  for net in args.nets:
    for repeat in range(args.repeats):
      for name in args.peers:
        yield net, 'speed', repeat, name
    for repeat in range(args.to_accuracy * args.accuracy_repeats):
      for name in args.peers:
        if name not in peer_list.CEILINGS:
          yield net, 'accuracy', repeat, name


def say(result):
  """Reports on stderr how a run went."""
  head = ' '.join(str(result[k]) for k in ('net', 'mode', 'repeat', 'peer'))
  if result['status'] != 'ok':
    text = f'{result["status"]}: {result["reason"]}'
  elif result['mode'] == 'accuracy':
    secs = tables.format_value(result['to_accuracy_secs'], '.1f')
    text = f'{secs} s to the target'
  else:
    rate = tables.format_value(result['examples_per_sec'], ',.0f')
    text = f'{rate} images/s'
  print(f'{head}: {text}', file=sys.stderr, flush=True)


# ---- The program ----
def parse_args(words):
  parser = options.make_parser(__doc__)
  count, peers = options.count, peer_list.PEERS
  add = parser.add_argument
  add('--nets', type=options.names_of(STEPS), default=list(STEPS))
  add('--peers', type=options.names_of(peers), default=list(peers))
  add('--steps', type=count, help=f'of a worker, for speed; by default {STEPS}')
  add('--repeats', type=count, default=3)
  add('--to_accuracy', action='store_true', help='measure that as well')
  add('--accuracy_repeats', type=count, default=1)
  add('--epochs', type=float, help=f'bound of that; by default {EPOCHS}')
  add('--torch_python', default=sys.executable, help='a Python with torch')
  add('--limit_secs', type=float, default=1800, help='of one run')
  add('--out', type=pathlib.Path, help='folder: raw.json, table.md, plot.png')
  return parser.parse_args(words)


def main(words):
  """Returns the exit code; `words` are those of the command line."""
  args = parse_args(words)
  # A peer that finds a GPU would measure something else.
  os.environ['CUDA_VISIBLE_DEVICES'] = ''
  machine = f'{tables.describe_machine()}; medians of {args.repeats} runs'

  def report(results):
    print(machine)
    peer_tables.print_tables(results)

  def save(results):
    raw = {'machine': machine, 'results': results}
    tables.save(args.out, raw, lambda: report(results))

  try:
    results = run_all(args, save)
  except cli.RunError as error:
    print(f'peers.py: error: {error}', file=sys.stderr)
    return 1
  report(results)
  if args.out:
    figure = peer_tables.build_figure(results, machine)
    figure.savefig(args.out / 'plot.png')
    print(f'\nall in {args.out}')
  return int(any(r['status'] == 'failed' for r in results))


if __name__ == '__main__':
  processes.exit_by(main, sys.argv[1:])
