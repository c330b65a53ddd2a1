"""What is compared: the peers, their titles, and the accuracies to reach."""

import dataclasses

from lib.peer_kinds import NUM_WORKERS, Distmnist
from lib.peer_scripts import Script

PERIOD = 10
TARGETS = {'mlp': 0.97, 'cnn': 0.99}


def with_flag(peer, flag):
  return dataclasses.replace(peer, flags=[*peer.flags, flag])


def ten_a_run(peer):
  return with_flag(peer, '--steps_per_run=10')


CEILING = Distmnist(0, [], num_launches=NUM_WORKERS, num_workers=1)
RULES = {
  'async_sgd': Distmnist(1, ['--strategy=async_sgd']),
  'sync_sgd': Distmnist(1, ['--strategy=sync_sgd'], NUM_WORKERS),
  'ring_allreduce': Distmnist(0, ['--strategy=ring_allreduce'], NUM_WORKERS),
  'downpour': Distmnist(
    1,
    ['--strategy=downpour', f'--n_fetch={PERIOD}', f'--n_push={PERIOD}'],
    PERIOD,
  ),
  'agn': Distmnist(
    1, ['--strategy=agn', f'--communication_period={PERIOD}'], PERIOD
  ),
}
PEERS = {
  'ceiling': CEILING,
  'ceiling_10': ten_a_run(CEILING),
  **RULES,
  **{f'{name}_10': ten_a_run(rule) for name, rule in RULES.items()},
  **{
    f'{name}_float16': with_flag(RULES[name], '--wire_dtype=float16')
    for name in ('async_sgd', 'sync_sgd')
  },
  'classic': Script('classic.py', num_ps=1),
  'bare': Script('bare.py', num_ps=1),
  'bare_10': Script('bare.py', num_ps=1, steps_per_call=10),
  'tf2_ps': Script('tf2_ps.py', num_ps=1, has_coordinator=True),
  'tf2_ps_10': Script(
    'tf2_ps.py', num_ps=1, has_coordinator=True, steps_per_call=10
  ),
  'tf2_mirrored': Script('tf2_mirrored.py'),
  'tf2_mirrored_10': Script('tf2_mirrored.py', steps_per_call=10),
  'torch_ddp': Script('torch_ddp.py', is_torch=True),
}
TITLES = {
  'ceiling': 'two processes, no communication (distmnist)',
  'ceiling_10': 'the same, 10 steps a run',
  'async_sgd': 'distmnist async_sgd, 1 ps',
  'sync_sgd': 'distmnist sync_sgd, 1 ps',
  'ring_allreduce': 'distmnist ring_allreduce',
  'downpour': f'distmnist downpour, T={PERIOD}, 1 ps',
  'agn': f'distmnist agn, T={PERIOD}, 1 ps',
  'async_sgd_10': 'distmnist async_sgd, 10 steps a run',
  'sync_sgd_10': 'distmnist sync_sgd, 10 steps a run',
  'ring_allreduce_10': 'distmnist ring_allreduce, 10 steps a run',
  'agn_10': f'distmnist agn, T={PERIOD}, 10 steps a run',
  'downpour_10': f'distmnist downpour, T={PERIOD}, 10 steps a run',
  'async_sgd_float16': 'distmnist async_sgd, float16 on the wire',
  'sync_sgd_float16': 'distmnist sync_sgd, float16 on the wire',
  'classic': 'classic script, async, 1 ps',
  'bare': 'bare TensorFlow, async, 1 ps',
  'bare_10': 'bare TensorFlow, async, 10 steps a run',
  'tf2_ps': 'TF2 ParameterServerStrategy, 1 ps',
  'tf2_ps_10': 'TF2 ParameterServerStrategy, 10 steps a call',
  'tf2_mirrored': 'TF2 MultiWorkerMirroredStrategy',
  'tf2_mirrored_10': 'TF2 MultiWorkerMirroredStrategy, 10 steps a call',
  'torch_ddp': 'PyTorch DDP, gloo',
}
# They do not train one net, so they are not raced to an accuracy.
CEILINGS = {'ceiling', 'ceiling_10'}
