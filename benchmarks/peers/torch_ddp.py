"""PyTorch's DistributedDataParallel over gloo: two processes in lock-step."""

import os

import common
import numpy as np
import torch
from torch import distributed, nn


class Flatten(nn.Module):
  """Flattens to [n, pixels]."""

  def forward(self, x):
    return x.flatten(1)


def make_net(name):
  """Returns (nn.Module, dict of layer name -> layer)."""
  if name == 'mlp':
    layers = {'hidden1': nn.Linear(784, 100), 'softmax': nn.Linear(100, 10)}
    return nn.Sequential(
      layers['hidden1'], nn.Sigmoid(), layers['softmax']
    ), layers
  layers = {
    'conv1': nn.Conv2d(1, 32, 5, padding=2),
    'conv2': nn.Conv2d(32, 64, 5, padding=2),
    'dense1': nn.Linear(3136, 1024),
    'softmax': nn.Linear(1024, 10),
  }
  return nn.Sequential(
    nn.Unflatten(1, (1, 28, 28)),
    *(layers['conv1'], nn.ReLU(), nn.MaxPool2d(2)),
    *(layers['conv2'], nn.ReLU(), nn.MaxPool2d(2)),
    Flatten(),
    *(layers['dense1'], nn.ReLU(), nn.Dropout(common.DROPOUT_RATE)),
    layers['softmax'],
  ), layers


def get_weights(layers):
  """Returns the weights in TensorFlow's order of dimensions."""
  found = {}
  for name, layer in layers.items():
    weights = layer.weight.detach().numpy()
    if weights.ndim == 4:
      weights = weights.transpose(2, 3, 1, 0)
    elif name == 'dense1':
      # Its inputs are channels first, then height and width.
      weights = weights.reshape(-1, 64, 7, 7).transpose(2, 3, 1, 0)
      weights = weights.reshape(3136, -1)
    else:
      weights = weights.T
    found[f'{name}/weights'] = np.ascontiguousarray(weights)
    found[f'{name}/biases'] = layer.bias.detach().numpy().copy()
  return found


def main():
  args = common.parse_args()
  torch.set_num_threads(1)
  host, _, port = args.workers[0].rpartition(':')
  os.environ |= {'MASTER_ADDR': host, 'MASTER_PORT': port}
  # gloo looks up the address of this host's name, which may have none.
  os.environ.setdefault('GLOO_SOCKET_IFNAME', 'lo')
  num_workers = len(args.workers)
  distributed.init_process_group('gloo', rank=args.task, world_size=num_workers)
  torch.manual_seed(0)
  net = common.NETS[args.net]
  model, layers = make_net(args.net)
  for layer in layers.values():
    nn.init.xavier_uniform_(layer.weight)
    nn.init.zeros_(layer.bias)
  # The initial weights are equal everywhere, the dropped units are not.
  torch.manual_seed(1 + args.task)
  replica = nn.parallel.DistributedDataParallel(model)
  optimizer = torch.optim.Adam(
    model.parameters(), net.learning_rate, fused=True
  )
  compute_loss = nn.CrossEntropyLoss()
  train_images, train_labels = map(
    torch.from_numpy, common.load(args.data, 'train')
  )
  batches = common.make_batches(
    len(train_labels), args.task, num_workers, net.batch_size
  )
  recorder = common.Recorder(args)
  for step in range(args.steps):
    batch = torch.from_numpy(next(batches))
    images = train_images[batch].float() * (1 / 255)
    optimizer.zero_grad()
    loss = compute_loss(replica(images), train_labels[batch].long())
    loss.backward()
    optimizer.step()
    recorder.step()
    if args.task == 0:
      recorder.snapshot_if_due(
        (step + 1) * num_workers, lambda: get_weights(layers)
      )
  facts = {}
  if args.task == 0:
    model.eval()

    def predict(images):
      with torch.inference_mode():
        return model(torch.from_numpy(images).float() * (1 / 255)).numpy()

    facts['test_accuracy'] = common.compute_accuracy(predict, args.data)
  recorder.save(**facts)
  distributed.destroy_process_group()


if __name__ == '__main__':
  main()
