"""The columns of ONNX Runtime and OpenVINO: the ONNX file that PyTorch writes of a model, for inference.

In: a case. Out: a function that runs it once, and its output.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import zoo
from with_torch import make


def prepare(column: str, case: zoo.Case, threads: int) -> tuple[Callable[[], object], Any]:
    """Return a function that runs the case once, and its logits."""
    if case.training:
        raise ValueError(f"{column} is for inference")
    x, _ = zoo.inputs(case)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "model.onnx")
        net = make(case.model).eval()
        torch.onnx.export(net, (torch.from_numpy(x),), path, dynamo=False, input_names=["x"])
        if column == "ort":
            import onnxruntime

            options = onnxruntime.SessionOptions()
            options.intra_op_num_threads = threads
            session = onnxruntime.InferenceSession(path, options, ["CPUExecutionProvider"])
            run: Callable[[], Any] = lambda: session.run(None, {"x": x})[0]
        else:
            import openvino

            settings = {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY"}
            settings |= {"INFERENCE_PRECISION_HINT": "f32", "NUM_STREAMS": 1}
            model = openvino.compile_model(openvino.Core().read_model(path), "CPU", settings)
            request = model.create_infer_request()
            run = lambda: request.infer([x], share_inputs=True)[0]
        for _ in range(4):
            output = run()
    return run, output
