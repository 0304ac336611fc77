"""`transduce triton`: a model repository for NVIDIA Triton's Python backend.

`repository` writes it. `model` is the file that is deployed in it: it turns Triton's tensors into recordings
(`recordings`) and results into tensors (`outputs`), and leaves the work to `service`, which runs the flow of
the HTTP server over one batcher. Only `model` knows Triton's Python module. Importing this package imports
nothing.
"""

__all__: list[str] = []
