"""Fitted estimators as ONNX: raw parameters and predictions, without Python or this library."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from setwise._files import beside
from setwise.distributions import point_estimate
from setwise.learners.boosting.base import Forest
from setwise.learners.boosting.trees import NAN, ZERO
from setwise.learners.ensemble import EnsembleModel, Match
from setwise.learners.linear import LinearModel
from setwise.learners.network import NetworkModel
from setwise.learners.network.modules import MLP
from setwise.learners.network.scores import Scores
from setwise.objective import respread

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto

__all__ = ["export_onnx"]

OPSETS = {"": 18, "ai.onnx.ml": 5}
EXACT = 1e-9  # relative error up to which a formula is the one looked for

Floats = NDArray[np.float64]


def export_onnx(est: Any, path: str | os.PathLike[str], X: Any = None) -> Path:
    """Writes the model; see `AggregateRegressor.export_onnx`."""
    try:
        import onnx
    except ImportError as error:
        raise ImportError(
            "ONNX files need the package onnx: pip install 'setwise[onnx]'"
        ) from error

    if not hasattr(est, "model_"):
        from sklearn.exceptions import NotFittedError

        raise NotFittedError("only a fitted model can be exported: call fit(X, observations) first")
    graph = _Graph(X)
    try:
        if est.encoder_ is not None:
            if est.encoder_.has_categories:
                raise NotImplementedError("features that are categories")
            graph.fill = np.array([column.fill for column in est.encoder_.columns])
        raw = graph.spread(est, graph.raw(est.model_, "X"))
        graph.node("Identity", [raw], out="raw")
        if hasattr(est, "classes_"):
            order = est.alignment_ and est.alignment_.classes
            moved = graph.take(raw, order) if order else raw
            graph.node("Softmax", [moved], out="probabilities", axis=1)
        else:
            graph.mean(est, raw)
    except NotImplementedError as error:
        raise NotImplementedError(
            f"no ONNX form is known for {error}: use a Linear, boosting or Network learner with "
            f"features that are numbers, or est.save(folder)"
        ) from None
    made = graph.model(est)
    onnx.checker.check_model(made, full_check=True)
    with beside(Path(path)) as new:
        new.write_bytes(made.SerializeToString())
    return Path(path)


class _Graph:
    """Nodes of a graph in the making; texts name values, arrays are constants."""

    def __init__(self, X: Any) -> None:
        self.nodes: list[NodeProto] = []
        self.constants: list[Any] = []
        self.X = X  # some rows, for modules that are traced
        self.shape: list[Any] = ["rows", None]
        self.fill: Any = None  # what stands for a missing number, where learners need one

    def node(self, operator: str, inputs: list[Any], out: str = "", **options: Any) -> str:
        """Adds a node; returns the name of its output."""
        from onnx import helper

        names = [x if isinstance(x, str) else self._constant(x) for x in inputs]
        out = out or f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, names, [out], **options))
        return out

    def _constant(self, value: Any) -> str:
        from onnx import numpy_helper

        self.constants.append(numpy_helper.from_array(np.asarray(value), f"c{len(self.constants)}"))
        return str(self.constants[-1].name)

    def cast(self, x: str, to: type) -> str:
        from onnx import helper

        return self.node("Cast", [x], to=helper.np_dtype_to_tensor_dtype(np.dtype(to)))

    def take(self, x: str, columns: Any) -> str:
        return self.node("Gather", [x, np.array(columns, np.int64)], axis=1)

    def affine(self, x: str, slope: Any, shift: Any) -> str:
        return self.node("Add", [self.node("Mul", [x, np.array(slope)]), np.array(shift)])

    # ---- models

    def raw(self, model: Any, x: str) -> str:
        """What `model.raw` computes, in float64."""
        if self.fill is not None and not isinstance(model, Forest | EnsembleModel):
            x = self.node("Where", [self.node("IsNaN", [x]), self.fill, x])
        if isinstance(model, LinearModel):
            return self.node("Add", [self.node("MatMul", [x, model.coef]), model.intercept])
        if isinstance(model, Forest):
            return self._forest(model, x)
        if isinstance(model, NetworkModel):
            return self._network(model, x)
        if isinstance(model, EnsembleModel):
            return self._average(model, x)
        raise NotImplementedError(f"what {type(model).__name__.removesuffix('Model')} has learned")

    def _forest(self, forest: Forest, x: str) -> str:
        from onnx import numpy_helper

        trees, base = forest.arrays(), forest.start.copy()
        inner, grown = trees.feature >= 0, np.repeat(trees.sizes > 1, trees.sizes)
        if len(trees.category):
            raise NotImplementedError("splits on categories")
        if not np.isnan(forest.placeholder):
            raise NotImplementedError("a number that stands for missing values")
        if (trees.missing[inner] == ZERO).any():
            raise NotImplementedError("zeros that count as missing")
        begins = np.cumsum(trees.sizes) - trees.sizes
        output = np.arange(len(trees.sizes)) % len(base)
        np.add.at(base, output[trees.sizes == 1], trees.value[begins[trees.sizes == 1]])
        if not inner.any():
            rows = self.node("Shape", [x], start=0, end=1)
            shape = self.node("Concat", [rows, np.array([1])], axis=0)
            return self.node("Expand", [base[None], shape])
        if forest.reads_float32:
            x = self.cast(self.cast(x, np.float32), np.float64)
        # ONNX lists nodes that split and leaves apart; a tree that is one leaf has no place there.
        leaf = grown & ~inner
        number = np.where(inner, np.cumsum(inner), np.cumsum(leaf)) - 1
        left = np.concatenate(
            [begin + tree.left[tree.inner] for begin, tree in zip(begins, trees, strict=True)]
        )
        to_left = np.where(trees.missing == NAN, trees.default_left, trees.threshold >= 0)
        columns = {
            "nodes_featureids": trees.feature[inner],
            "nodes_missing_value_tracks_true": to_left[inner],
            "nodes_truenodeids": number[left],
            "nodes_trueleafs": leaf[left],
            "nodes_falsenodeids": number[left + 1],
            "nodes_falseleafs": leaf[left + 1],
            "tree_roots": number[begins[trees.sizes > 1]],
            "leaf_targetids": np.repeat(output, trees.sizes)[leaf],
        }
        lists = {name: column.astype(int).tolist() for name, column in columns.items()}
        tensors: dict[str, NDArray[Any]] = {
            "nodes_splits": trees.threshold[inner],
            "nodes_modes": np.zeros(int(inner.sum()), np.uint8),  # all of them ask x <= threshold
            "leaf_weights": trees.value[leaf],
        }
        made = {name: numpy_helper.from_array(column) for name, column in tensors.items()}
        options: dict[str, Any] = {"domain": "ai.onnx.ml", "n_targets": len(base)}
        return self.node("Add", [self.node("TreeEnsemble", [x], **options, **lists, **made), base])

    def _network(self, model: NetworkModel, x: str) -> str:
        network = model.network
        base, unit = (
            np.asarray(t.detach().cpu(), np.float64) for t in (network.base, network.unit)
        )
        if isinstance(network.body, MLP):
            body = network.body
            x = x if body.scores is None else self._scores(body.scores, x)
            mean, deviation = (np.asarray(t.cpu()) for t in (body.mean, body.deviation))
            x = self.node("Div", [self.node("Sub", [x, mean]), deviation])
            x = self.cast(x, np.float32)
            for layer in body.layers:
                if isinstance(layer, nn.Linear):
                    weight, bias = (
                        np.asarray(p.detach().cpu()) for p in (layer.weight, layer.bias)
                    )
                    x = self.node("Gemm", [x, weight, bias], transB=1)
                elif isinstance(layer, nn.ReLU):
                    x = self.node("Relu", [x])
        else:
            x = self._traced(network.body, model.n_features, self.cast(x, np.float32))
            if len(base) == 1:
                x = self.node("Reshape", [x, np.array([-1, 1])])
        return self.affine(self.cast(x, np.float64), unit, base)

    def _scores(self, scores: Scores, x: str) -> str:
        """A sum over pieces: of each, how much of it lies below x, times its slope."""
        knots, values = (np.asarray(t.cpu()) for t in (scores.knots, scores.values))
        low, high, wide = knots[:, :-1], knots[:, 1:], np.diff(knots)
        slope = np.divide(np.diff(values), wide, out=np.zeros_like(wide), where=wide > 0)
        x = self.node("Unsqueeze", [x, np.array([2])])
        below = self.node("Sub", [self.node("Min", [self.node("Max", [x, low]), high]), low])
        risen = self.node(
            "ReduceSum", [self.node("Mul", [below, slope]), np.array([2])], keepdims=0
        )
        return self.node("Add", [risen, values[:, 0]])

    def _traced(self, body: nn.Module, n_features: int, x: str) -> str:
        """A module of the user's own, as torch exports it."""
        import onnx

        try:
            import onnxscript  # noqa: F401
        except ImportError as error:
            raise ImportError(
                "a module of your own needs the package onnxscript: pip install 'setwise[onnx]'"
            ) from error
        rows = torch.zeros(2, n_features) if self.X is None else torch.as_tensor(self.X)[:2].float()
        self.shape = ["rows", *rows.shape[1:]]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            program = torch.onnx.export(
                body.cpu().eval(), (rows,), dynamo=True, verbose=False,
                opset_version=OPSETS[""], dynamic_shapes=({0: torch.export.Dim("rows")},),
            )  # fmt: skip
        assert program is not None
        part = onnx.compose.add_prefix(program.model_proto, f"m{len(self.nodes)}_")
        self.node("Identity", [x], out=part.graph.input[0].name)
        self.nodes += part.graph.node
        self.constants += part.graph.initializer
        return str(part.graph.output[0].name)

    def _average(self, model: EnsembleModel, x: str) -> str:
        found = [
            self._matched(self.raw(part, x), m)
            for part, m in zip(model.parts, model.matches, strict=True)
        ]
        weights = np.asarray(model.weights)
        if model.outputs[0].startswith("logit_"):
            logs = [self.node("LogSoftmax", [raw], axis=1) for raw in found]
            return self._sum_of_logs(logs, weights)
        columns = []
        for i, name in enumerate(model.outputs):
            one = [self.take(raw, [i]) for raw in found]
            if name.startswith("log_"):
                columns.append(self._sum_of_logs(one, weights))
            else:
                columns.append(
                    self.node(
                        "Sum", [self.affine(c, w, 0.0) for c, w in zip(one, weights, strict=True)]
                    )
                )
        return self.node("Concat", columns, axis=1)

    def _sum_of_logs(self, logs: list[str], weights: Floats) -> str:
        """log Σ weight · exp(log)."""
        moved = [self.affine(x, 1.0, np.log(w)) for x, w in zip(logs, weights, strict=True)]
        stacked = self.node(
            "Concat", [self.node("Unsqueeze", [x, np.array([0])]) for x in moved], axis=0
        )
        return self.node("ReduceLogSumExp", [stacked, np.array([0])], keepdims=0)

    def _matched(self, raw: str, same: Match) -> str:
        if any(same.offset):
            raw = self.affine(raw, 1.0, same.offset)
        if same.classes is not None:
            return self.take(raw, same.classes)
        if (same.slope, same.shift) == (1.0, 0.0):
            return raw
        raise NotImplementedError("averages of models that sets leave a shift of")

    # ---- from raw parameters to predictions

    def spread(self, est: Any, raw: str) -> str:
        """Raw parameters with the spread that held-out sets have found: a straight line of each."""

        def moved(x: Any) -> Floats:
            args = torch.from_numpy(x), est.shared_, est.spread_, est.constant_
            return np.asarray(respread(est.family_, *args)[0])

        shift = moved(np.zeros((1, len(est.family_.outputs))))
        slope = moved(np.ones_like(shift)) - shift
        probes = _probes(shift.shape[1])
        if not _same(probes * slope + shift, moved(probes)):
            raise NotImplementedError(f"the spread of {est.family_!r}")
        return self.affine(raw, slope[0], shift[0])

    def mean(self, est: Any, raw: str) -> None:
        """What `predict` gives: a straight line in raw parameters, or the exponential of one."""
        align = est.alignment_.distribution if est.alignment_ else lambda d: d
        probes = _probes(len(est.family_.outputs))
        d = align(est.family_(torch.from_numpy(probes), est.shared_))
        wanted = np.asarray(point_estimate(d), np.float64)
        ones = np.hstack([probes, np.ones((len(probes), 1))])
        forms: list[tuple[Callable[[Any], Any], Callable[[Any], Any], str]] = [
            (lambda x: x, lambda x: x, "Identity")
        ]
        if (wanted > 0).all():
            forms.append((np.log, np.exp, "Exp"))
        for back, forth, operator in forms:
            found = np.linalg.lstsq(ones, back(wanted))[0]
            if _same(forth(ones @ found), wanted):
                line = self.node("Add", [self.node("MatMul", [raw, found[:-1]]), found[-1]])
                self.node(operator, [line], out="mean")
                return
        raise NotImplementedError(f"the mean of {est.family_!r}")

    def model(self, est: Any) -> ModelProto:
        """The whole model, with what a reader must know as properties."""
        from onnx import TensorProto, helper

        def value(name: str, *shape: Any) -> Any:
            return helper.make_tensor_value_info(name, TensorProto.DOUBLE, shape)

        width = len(est.family_.outputs)
        classes = hasattr(est, "classes_")
        shape = [*self.shape[:1], est.n_features_in_] if self.shape[1] is None else self.shape
        result = value("probabilities", "rows", width) if classes else value("mean", "rows")
        graph = helper.make_graph(
            self.nodes, "setwise", [value("X", *shape)], [value("raw", "rows", width), result],
            initializer=self.constants,
        )  # fmt: skip
        opsets = [helper.make_opsetid(name, number) for name, number in OPSETS.items()]
        made = helper.make_model(graph, opset_imports=opsets, ir_version=10)
        made.producer_name, made.producer_version = "setwise", version("setwise")
        told = {"outputs": list(est.family_.outputs), "shared": est.shared_.tolist()}
        told["family"] = repr(est.family_)
        if classes:
            told["classes"] = est.classes_.tolist()
        if (names := getattr(est, "feature_names_in_", None)) is not None:
            told["features"] = [str(name) for name in names]
        helper.set_model_props(made, {k: json.dumps(v, default=str) for k, v in told.items()})
        return made


def _probes(width: int) -> Floats:
    return np.random.default_rng(0).normal(size=(64, width))


def _same(found: Floats, wanted: Floats) -> bool:
    return bool(np.allclose(found, wanted, rtol=EXACT, atol=EXACT))
