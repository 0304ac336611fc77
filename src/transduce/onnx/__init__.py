"""The ONNX engine: the only part of the package that imports onnx and onnxruntime."""
