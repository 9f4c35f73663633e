"""Network: any torch module, trained on minibatches of sets."""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, Literal, TypedDict

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import clone
from torch import Tensor, nn

from setwise._facts import checked
from setwise._peers import ALONE, Peers, launched
from setwise.learners.base import Fitted, Learner, Model, Task
from setwise.learners.inputs import raw_of
from setwise.learners.network.checkpoint import read_tensors, write_tensors
from setwise.learners.network.encoding import as_numbers
from setwise.learners.network.fingerprint import data_digest, fingerprint
from setwise.learners.network.initialization import begin
from setwise.learners.network.modules import MLP, RawNetwork, Rows, make_body, predict, units
from setwise.learners.network.scores import Scores
from setwise.learners.network.training import Settings, Training, resolve_schedule
from setwise.learners.progress import Progress
from setwise.objective import Objective

__all__ = ["Network", "NetworkModel"]

FILE = "network.safetensors"
CHECKPOINT = "checkpoint{}.safetensors"
PILOT = 0.25  # of the usual steps: more would make it surer of its classes, not more right
DOUBT = 0.2  # weight of equal probabilities that a guide's probabilities are mixed with


class Custom(TypedDict):
    """The saved form of a network with a module of the user's own."""

    module: Literal["custom"]
    n_features: int


class Told(TypedDict):
    """The saved form of a network with the default module."""

    module: Literal["mlp"]
    n_features: int
    hidden: list[int]
    dropout: float


class NetworkModel(Model):
    """A trained network; `network` maps rows of X to raw parameters."""

    def __init__(self, network: RawNetwork, n_features: int) -> None:
        self.network, self.n_features = network.eval(), n_features

    def raw(self, X: Any) -> NDArray[np.float64]:
        """Raw parameters of each row, (rows, outputs), computed in batches."""
        rows = Rows(X, self.network.base.device)
        if len(rows) and (found := rows.n_features) != self.n_features:
            raise ValueError(f"X has {found} features, the network has {self.n_features}")
        return np.asarray(predict(self.network, rows, np.arange(len(rows))).cpu())

    def save(self, folder: Path) -> dict[str, Any]:
        """Writes the weights; returns what the default module is rebuilt from."""
        write_tensors(Path(folder) / FILE, self.network.state_dict(), {})
        body, facts = self.network.body, {"n_features": self.n_features}
        if not isinstance(body, MLP):
            return {"module": "custom", **facts}
        return {"module": "mlp", **facts, "hidden": body.hidden, "dropout": body.dropout}

    @classmethod
    def load(cls, folder: Path, facts: dict[str, Any], module: Any = None) -> NetworkModel:
        """The network that `save` wrote; a user's own module must be given, for its code."""
        tensors, _ = read_tensors(Path(folder) / FILE)
        told: Told = checked(facts, Told if facts.get("module") == "mlp" else Custom, "the network")
        base, unit = (tensors.get(name, torch.zeros(())) for name in ("base", "unit"))
        sound = base.is_floating_point() and base.ndim == 1 and base.shape == unit.shape
        if not sound or not all(bool(t.isfinite().all()) for t in tensors.values()):
            raise ValueError(f"{FILE} does not hold finite weights of a network")
        if told["module"] == "mlp":
            network = RawNetwork(_described(told, tensors), base, unit)
        elif module is not None:
            network = RawNetwork(make_body(module, told["n_features"], len(base)), base, unit)
        else:
            raise ValueError(
                "this network is a module of your own, whose code is not in the folder: pass the "
                "module to setwise.load(folder, module=...), with any weights"
            )
        try:
            network.load_state_dict(tensors, assign=told["module"] == "mlp")
        except RuntimeError as error:
            raise ValueError(f"the saved weights do not fit the module: {error}") from error
        return cls(network, told["n_features"])

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "network": copy.deepcopy(self.network).cpu()}


def _described(told: Told, tensors: dict[str, Tensor]) -> MLP:
    """The default module without its weights, if these have the right shapes."""
    if len(told["hidden"]) > len(tensors) or not 0 <= told["dropout"] < 1:
        raise ValueError("the network has more layers than weights, or no such dropout")
    knots, scores = tensors.get("body.scores.knots"), None
    if knots is not None:
        if (
            knots.ndim != 2
            or len(knots) != told["n_features"]
            or not bool((knots.diff() >= 0).all())
        ):
            raise ValueError("the network's knots do not rise, or are not of its features")
        empty = torch.empty(knots.shape, dtype=torch.float64, device="meta")
        scores = Scores(empty, empty.clone())
    sizes = told["n_features"], len(tensors["base"]), told["hidden"], told["dropout"]
    with torch.device("meta"):  # where sizes, whatever they are, take no memory
        body = MLP(*sizes, scores=scores)
    for name, wanted in body.state_dict().items():
        found = tensors.get(f"body.{name}")
        if found is None or (found.shape, found.dtype) != (wanted.shape, wanted.dtype):
            raise ValueError(f"the saved weights do not fit the module: {name}")
    if not bool((tensors["body.deviation"] > 0).all()):
        raise ValueError("the network divides by a deviation that is not positive")
    return body


class _PilotProgress(Progress):
    """Shows a bar that says what it is about, and leaves the record of the fit alone."""

    keeps = False

    @contextmanager
    def running(self, what: str, total: int | None) -> Iterator[None]:
        with super().running(what.replace("Network", "Pilot network"), total):
            yield


class Network(Learner):
    """A neural network: any torch module from rows of X to raw parameters.

    `module` is a `torch.nn.Module` (copied for each fit) or a function `(n_features, n_outputs)`
    that builds one; None is a perceptron with standardised inputs, `hidden` layers of ReLU and
    `dropout`. With `inputs="ranks"` features become normal scores of their ranks first, which suits
    those with a long tail. Its outputs are added to the intercept-only maximum likelihood,
    locations in units of the spread of the targets, so that the size of targets does not matter.
    Minibatches are of `batch_size` *sets* (None: about 512 members), and each distinct row of a
    batch goes through the module once. AdamW with `lr`, `weight_decay` and gradients of norm at
    most `clip`; `schedule` is "cosine", "constant" (both after a short warm-up) or a function
    `(step, total) -> factor`. `epochs` None is about 3 000 steps, 20 to 200 epochs.

    With `eval` sets, training stops once `patience` epochs in a row (None: never) were worse than
    the best one by more than chance explains, and returns to it; otherwise it follows the schedule
    to its end. `augment` is a function of a batch of rows, as tensors that the module would see,
    which is called while it learns and gives as many rows: shifted images, noise.

    `device` None is CUDA where there is one. There sets of one size are laid out on the device, and
    a whole step is recorded once as a CUDA graph and replayed; a module that cannot be recorded is
    called step by step, and the log "setwise" says so. `precision="bf16"` runs the module, never
    the likelihood, in mixed precision, "tf32" rounds factors of products of matrices on CUDA.
    `compile=True` passes the module through `torch.compile`, which takes a while and pays for large
    ones. `checkpoint` is a folder that is written to after every epoch: an interrupted fit resumes
    from there, to the same weights; a checkpoint of other data, choices or first weights is
    refused. X may also be a tensor of any shape (rows, …) or a map-style `Dataset`.

    With `distributed=True` the processes that torchrun has started train one network, each on its
    share of the sets of every batch: to the model that one process finds, but for rounding and for
    random numbers that a module draws. All are given the same X and observations. A checkpoint is
    written by the first of them and may be resumed by another number; all must see its folder.

    >>> import setwise as sw
    >>> X = np.linspace(-1, 1, 200)[:, None]
    >>> means = sw.Mean().observe(X[:, 0] ** 2, sw.Sets.random(200, 400, 2, seed=0))
    >>> objective = Objective(sw.Normal(), [means], 200)
    >>> fitted = Network(epochs=30).fit(Task(X, objective, *objective.start()))
    >>> bool(np.abs(fitted.model.raw(X)[:, 0] - X[:, 0] ** 2).mean() < 0.05)
    True
    """

    stored: ClassVar[bool] = True
    _effort = 1.0  # share of the usual steps that finds a beginning

    def __init__(
        self,
        module: nn.Module | Callable[[int, int], nn.Module] | None = None,
        *,
        hidden: Sequence[int] = (128, 128),
        dropout: float = 0.0,
        inputs: str = "standard",
        epochs: int | None = None,
        batch_size: int | None = None,
        lr: float = 1e-3,
        weight_decay: float = 0.3,
        schedule: str | Callable[[int, int], float] = "cosine",
        clip: float | None = 1.0,
        patience: int | None = 20,
        device: str | torch.device | None = None,
        precision: str = "float32",
        augment: Callable[[Tensor], Tensor] | None = None,
        compile: bool = False,
        checkpoint: str | Path | None = None,
        distributed: bool = False,
    ) -> None:
        self.module = module
        self.hidden = hidden
        self.dropout = dropout
        self.inputs = inputs
        self.epochs = epochs
        self.batch_size = batch_size
        self.lr = lr
        self.weight_decay = weight_decay
        self.schedule = schedule
        self.clip = clip
        self.patience = patience
        self.device = device
        self.precision = precision
        self.augment = augment
        self.compile = compile
        self.checkpoint = checkpoint
        self.distributed = distributed

    def fit(self, task: Task) -> Fitted:
        """Trains a network on the task."""
        settings = self._settings(task.objective)
        rows, peers = Rows(task.X, settings.device), settings.peers
        if peers.size > 1:
            task = _agreed(task, rows, peers)
        family = task.objective.family
        base, unit = units(family, task.raw, task.shared)
        scores, moments = None, None
        if self.module is None:
            scores, moments = rows.scores() if self.inputs == "ranks" else (None, rows.moments())

        def make(number: int) -> RawNetwork:
            torch.manual_seed(task.seed + 7919 * number)
            if moments is None:
                body = make_body(self.module, rows.n_features, len(base), number)
            else:
                body = MLP(rows.n_features, len(base), self.hidden, self.dropout, moments, scores)
            network = RawNetwork(body, base.clone(), unit.clone()).to(settings.device)
            with torch.no_grad():  # gives lazy layers their size; a wrong shape is an error
                network.eval()(rows.take(np.zeros(1, np.int64)))
            return network

        cuda = [settings.device] if settings.device.type == "cuda" else []
        path, digest = None, ""
        with torch.random.fork_rng(devices=cuda):
            network = make(0)
            ready = rows.prepared(network.prepare)
            if self.checkpoint is not None:
                path = Path(self.checkpoint) / CHECKPOINT.format(task.stage)
                digest = fingerprint(task, rows, settings, network, self.patience)
            if task.restarts > 1 and not (path and path.exists()):
                few = task.in_memory()
                own = ready if few is task else Rows(few.X, settings.device).prepared(ready.prepare)
                network = begin(make, few, own, settings, self._effort)
            for tensor in network.state_dict().values():
                if tensor.is_floating_point():
                    tensor.copy_(peers.of_first(tensor))
            torch.manual_seed(task.seed)
            training = Training(network, task, ready, settings, task.seed)
            converged = training.run(task, self.patience, path, digest)
        shared = training.shared.detach().double().cpu()
        model = NetworkModel(training.network, rows.n_features)
        return Fitted(model, shared, converged, training.kept)

    def peers(self) -> Peers:
        """The processes that torchrun started, if the fit is distributed."""
        return launched(self.device) if self.distributed else ALONE

    def for_steps(self, steps: int) -> Network:
        """The same with so many epochs."""
        made: Network = clone(self).set_params(epochs=steps)
        return made

    def _settings(self, objective: Objective) -> Settings:
        members = sum(int(o.sets.offsets[-1]) for o in objective.observations)
        size = self.batch_size
        if size is None:
            size = min(512 * objective.n_sets // members, objective.n_sets // 16)
            size = int(np.clip(size, 16, 256))
        n_batches = math.ceil(objective.n_sets / size)
        epochs = self.epochs
        if epochs is None:
            epochs = int(np.clip(3000 // n_batches, 20, 200))
        positive = {"epochs": epochs, "batch_size": size, "lr": self.lr, "clip": self.clip}
        for name, value in (positive | {"patience": self.patience}).items():
            if value is not None and not value > 0:
                raise ValueError(f"{name} must be positive, got {value}")
        if self.inputs not in ("standard", "ranks"):
            raise ValueError(f'inputs is "standard" or "ranks", got {self.inputs!r}')
        if self.module is not None and self.inputs != "standard":
            raise ValueError('inputs="ranks" is of the default module: yours prepares its own')
        if self.module is None and not all(size > 0 for size in self.hidden):
            raise ValueError(f"hidden must be positive numbers, got {self.hidden!r}")
        if self.precision not in ("float32", "tf32", "bf16"):
            raise ValueError(f'precision is "float32", "tf32" or "bf16", got {self.precision!r}')
        if self.augment is not None and not callable(self.augment):
            raise TypeError(f"augment is a function of a batch of rows, got {self.augment!r}")
        peers, device = self.peers(), self.device
        if peers.size > 1:
            device = peers.device
        return Settings(
            epochs=epochs,
            batch_size=size,
            lr=self.lr,
            weight_decay=self.weight_decay,
            schedule=resolve_schedule(self.schedule),
            clip=self.clip,
            precision=self.precision,
            device=torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu")),
            augment=self.augment,
            compiled=self.compile,
            peers=peers,
        )

    @staticmethod
    def pilot(task: Task) -> Tensor:
        """Logits of every row, (rows, classes), from a network that is trained for a short while.

        They guide learners that begin at a constant, from which classes that can be swapped would
        stay alike: a quarter of the usual steps is enough to tell the classes apart. The network is
        too sure of the rows it learned from, so its probabilities are mixed with equal ones.
        """
        alone = dataclasses.replace(
            task,
            X=as_numbers(task.X),
            eval=None,
            guide=None,
            progress=_PilotProgress(task.progress.verbose),
        )
        learner = Network()
        learner.epochs = math.ceil(PILOT * learner._settings(task.objective).epochs)
        learner._effort = PILOT
        raw = raw_of(learner.fit(alone).model, alone.X)
        p = torch.from_numpy(raw).softmax(1)
        logits = torch.lerp(p, torch.full_like(p, 1 / p.shape[1]), DOUBT).log()
        return logits - logits.mean(1, keepdim=True)


def _agreed(task: Task, rows: Rows, peers: Peers) -> Task:
    """The first process's copy of the task, after checking that all processes have the same one.

    Only the first one shows progress.
    """
    own = torch.zeros(peers.size, 16, dtype=torch.int64)
    own[peers.rank] = torch.tensor(list(data_digest(task, rows)))
    if not bool((peers.sum(own) == own[peers.rank]).all()):
        raise ValueError(
            "the processes of a distributed fit have different X, observations, held-out sets or "
            "random_state: give all of them the same, each takes its share of the sets by itself"
        )
    if peers.rank:
        task.progress.verbose = 0
    return dataclasses.replace(
        task, raw=peers.of_first(task.raw), shared=peers.of_first(task.shared)
    )
